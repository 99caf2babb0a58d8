#include "base/keyed_hash.h"

#include <bit>
#include <cstring>

namespace quire {
namespace {

uint64_t word_at(const std::byte* bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < sizeof(word); ++i) word |= uint64_t(bytes[i]) << (8 * i);
  return word;
}

struct State {
  uint64_t a, b, c, d;

  void round() {
    a += b;
    b = std::rotl(b, 13) ^ a;
    a = std::rotl(a, 32);
    c += d;
    d = std::rotl(d, 16) ^ c;
    a += d;
    d = std::rotl(d, 21) ^ a;
    c += b;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  }
  void take(uint64_t word) {
    d ^= word;
    round();
    round();
    a ^= word;
  }
};

}  // namespace

uint64_t keyed_hash(const HashSecret& secret, std::span<const std::byte> bytes) {
  const uint64_t low = word_at(secret.data()), high = word_at(secret.data() + 8);
  State state{low ^ 0x736f6d6570736575u, high ^ 0x646f72616e646f6du, low ^ 0x6c7967656e657261u,
              high ^ 0x7465646279746573u};
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) state.take(word_at(bytes.data() + i));
  std::byte last[8] = {};
  if (whole < bytes.size()) std::memcpy(last, bytes.data() + whole, bytes.size() - whole);
  last[7] = std::byte(bytes.size() & 0xff);
  state.take(word_at(last));
  state.c ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

}  // namespace quire
