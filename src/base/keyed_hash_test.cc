#include "base/keyed_hash.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/random_bytes.h"

namespace quire {
namespace {

HashSecret counted_secret() {
  HashSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = std::byte(i);
  return secret;
}

// The first of the vectors that its authors give for the bytes 0, 1, 2, ... of lengths 0, 1, ..., and that of their paper.
TEST(KeyedHash, IsSipHashByItsAuthorsVectors) {
  constexpr uint64_t kExpected[] = {0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a,
                                    0x85676696d7fb7e2d, 0xcf2794e0277187b7, 0x18765564cd99a68d,
                                    0xcbc9466e58fee3ce, 0xab0200f58b01d137, 0x93f5f5799a932462};
  std::vector<std::byte> bytes;
  for (const uint64_t expected : kExpected) {
    EXPECT_EQ(keyed_hash(counted_secret(), bytes), expected) << bytes.size() << " bytes";
    bytes.push_back(std::byte(bytes.size()));
  }
  while (bytes.size() < 15) bytes.push_back(std::byte(bytes.size()));
  EXPECT_EQ(keyed_hash(counted_secret(), bytes), 0xa129ca6149be45e5u);
}

TEST(KeyedHash, DependsOnEveryByteOfTheSecret) {
  std::set<uint64_t> hashes = {keyed_hash(counted_secret(), {})};
  for (size_t i = 0; i < counted_secret().size(); ++i) {
    HashSecret other = counted_secret();
    other[i] ^= std::byte{1};
    EXPECT_TRUE(hashes.insert(keyed_hash(other, {})).second);
  }
}

TEST(RandomBytes, AreOtherOnesEachTime) {
  std::set<std::array<std::byte, 16>> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(random_bytes<16>()).second);
}

}  // namespace
}  // namespace quire
