// Any bytes are either a snapshot whose nodes a cache takes, or an Error that leaves the cache as it was.
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"
#include "base/error.h"
#include "kv/kv_snapshot.h"

namespace {

using namespace quire;

const KvIdentity kIdentity{.model_name = "fuzz", .model = "1", .positions = "2", .kernels = "3"};

KvLayout layout() {
  const KvLayerShape whole{.kv_heads = 1,
                           .key_dim = 2,
                           .value_dim = 2,
                           .window = 0,
                           .key_format = KvFormat::int8,
                           .value_format = KvFormat::int8};
  KvLayerShape window = whole;
  window.window = 3;
  return make_kv_layout(std::vector{whole, window}, 2);
}

// Changed bytes would all end at the first checksum: the input is a list of parts instead, each with a byte for its
// length, and gets the head and the checksums that it needs.
std::vector<std::byte> with_checksums(std::span<const std::byte> input) {
  const std::string text = describe(kIdentity, layout());
  std::vector<std::byte> file(16 + text.size());
  const uint32_t numbers[] = {kSnapshotVersion, uint32_t(text.size())};
  std::memcpy(file.data(), "quire kv", 8);
  std::memcpy(file.data() + 8, numbers, sizeof(numbers));
  std::memcpy(file.data() + 16, text.data(), text.size());
  uint64_t checksum = 0;
  for (size_t begin = 0;;) {
    checksum = XXH3_64bits_withSeed(file.data() + begin, file.size() - begin, checksum);
    file.resize(file.size() + 8);
    std::memcpy(file.data() + file.size() - 8, &checksum, 8);
    if (input.empty()) return file;
    begin = file.size();
    const size_t length = std::min(size_t(input[0]), input.size() - 1);
    file.insert(file.end(), input.begin() + 1, input.begin() + 1 + ptrdiff_t(length));
    input = input.subspan(1 + length);
  }
}

void restore(std::span<const std::byte> bytes) {
  // One that refuses is as it was, and serves the next input: a new cache takes longer than all the rest.
  static std::unique_ptr<KvCache> cache;
  if (!cache || cache->stats().free_pages < 9) {
    const std::vector<uint32_t> pages = {5, 4};
    cache = std::make_unique<KvCache>(layout(), pages, [](size_t n) { return Buffer(n); });
  }
  KvCache& kv = *cache;
  const auto read = [bytes](uint64_t offset, std::span<std::byte> into) {
    CHECK(offset <= bytes.size() && into.size() <= bytes.size() - offset);
    if (!into.empty()) std::memcpy(into.data(), bytes.data() + offset, into.size());
  };
  try {
    restore_snapshot(kv, kIdentity, {"fuzz", bytes.size(), read});
  } catch (const Error&) {
    CHECK(kv.stats().free_pages == 9);
  }
  CHECK(kv.stats().held_pages == 0);
  kv.check_invariants();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  restore(input);
  restore(with_checksums(input));
  const std::string own = describe(kIdentity, layout());
  difference({reinterpret_cast<const char*>(data), size}, own);
  return 0;
}
