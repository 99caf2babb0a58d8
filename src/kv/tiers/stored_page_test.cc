#include "kv/tiers/stored_page.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "kv/tiers/remote_tier_case.h"

namespace quire {
namespace {

class StoredPage : public testing::Test {
 protected:
  StoredPage() {
    std::iota(tokens_.begin(), tokens_.end(), 5);
    for (std::byte& byte : page_) byte = std::byte(random_());
  }
  PageAddress address(uint32_t node_page = 1) {
    return {.space = tags_.space(),
            .prefix = tags_.of(tokens_, {}, 2),
            .node_page = node_page,
            .tokens = std::span(tokens_).subspan(4, 4),
            .bytes = page_.size()};
  }
  std::vector<std::byte> value(const PageAddress& at) {
    std::vector<std::byte> bytes = stored_head(at);
    const StoreTag tag = stored_tag(bytes, page_, mac_);
    bytes.insert(bytes.end(), page_.begin(), page_.end());
    bytes.insert(bytes.end(), tag.begin(), tag.end());
    return bytes;
  }
  PageFault read(const std::vector<std::byte>& bytes, const PageAddress& wanted) {
    std::span<const std::byte> page;
    const PageFault fault = read_stored_page(bytes, wanted, mac_, page);
    EXPECT_EQ(page.empty(), fault != PageFault::none) << "of a page that is wrong nothing is seen";
    if (fault == PageFault::none) {
      EXPECT_TRUE(std::ranges::equal(page, page_));
    }
    return fault;
  }

  std::mt19937 random_{7};
  TestMac mac_;
  PrefixTags tags_{mac_, "a model", 4};
  std::vector<TokenId> tokens_ = std::vector<TokenId>(12);
  std::vector<std::byte> page_ = std::vector<std::byte>(100);
};

TEST_F(StoredPage, IsWhatItWasWhenItIsReadWithItsAddress) {
  const std::vector<std::byte> bytes = value(address());
  EXPECT_EQ(bytes.size(), stored_size(address()));
  EXPECT_EQ(read(bytes, address()), PageFault::none);
}

TEST_F(StoredPage, NoByteOfItCanBeChanged) {
  const std::vector<std::byte> good = value(address());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 7}) {
      std::vector<std::byte> bytes = good;
      bytes[i] ^= std::byte(1 << bit);
      EXPECT_NE(read(bytes, address()), PageFault::none) << "byte " << i;
    }
  }
}

TEST_F(StoredPage, NoLengthButItsOwnIsTaken) {
  const std::vector<std::byte> good = value(address());
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(read({good.begin(), good.begin() + ptrdiff_t(size)}, address()), PageFault::length) << size;
  std::vector<std::byte> longer = good;
  longer.push_back({});
  EXPECT_EQ(read(longer, address()), PageFault::length);
}

TEST_F(StoredPage, WhatIsWrongWithItIsSaid) {
  const PageAddress own = address();
  EXPECT_EQ(read(value(own), address(0)), PageFault::foreign) << "another page of the same node";
  PrefixTags others(mac_, "another model", 4);
  PageAddress foreign = own;
  foreign.space = others.space();
  EXPECT_EQ(read(value(foreign), own), PageFault::foreign);
  PageAddress longer = own;
  longer.prefix = tags_.of(tokens_, {}, 3);
  longer.tokens = std::span(tokens_).subspan(8, 4);
  EXPECT_EQ(read(value(longer), own), PageFault::tokens) << "a page of other tokens";
  PageAddress salted = own;
  salted.prefix = tags_.of(tokens_, {.key = 3}, 2);
  EXPECT_EQ(read(value(salted), own), PageFault::tokens) << "the same tokens under a salt";
  PageAddress smaller = own;
  smaller.bytes -= 1;
  EXPECT_EQ(read(value(own), smaller), PageFault::length);
  const TestMac other_key(2);
  std::vector<std::byte> forged = stored_head(own);
  const StoreTag tag = stored_tag(forged, page_, other_key);
  forged.insert(forged.end(), page_.begin(), page_.end());
  forged.insert(forged.end(), tag.begin(), tag.end());
  EXPECT_EQ(read(forged, own), PageFault::tag);
}

TEST_F(StoredPage, RandomBytesAreNoPage) {
  const std::vector<std::byte> good = value(address());
  for (uint32_t round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(round % 2 == 0 ? good.size() : random_() % 400);
    for (std::byte& byte : bytes) byte = std::byte(random_());
    if (round % 3 == 0)
      std::copy_n(good.begin(), std::min<size_t>(bytes.size(), random_() % 100), bytes.begin());
    EXPECT_NE(read(bytes, address()), PageFault::none);
  }
}

TEST_F(StoredPage, NamesDifferInModelTokensSaltKeyAndPage) {
  std::vector<std::string> names = {stored_name(address()), stored_name(address(0))};
  PageAddress at = address();
  at.prefix = tags_.of(tokens_, {}, 1);
  names.push_back(stored_name(at));
  for (const CacheSalt salt : {CacheSalt{.key = 1}, CacheSalt{.text = 1}, CacheSalt{.key = 1, .text = 1}}) {
    at.prefix = tags_.of(tokens_, salt, 2);
    names.push_back(stored_name(at));
  }
  PrefixTags others(mac_, "another model", 4);
  at = address();
  at.space = others.space();
  names.push_back(stored_name(at));
  const TestMac key(9);
  PrefixTags keyed(key, "a model", 4);
  at.space = keyed.space();
  at.prefix = keyed.of(tokens_, {}, 2);
  names.push_back(stored_name(at));
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  for (const std::string& name : names) EXPECT_TRUE(name.starts_with("quire:1:")) << name;
}

TEST_F(StoredPage, TagsAreTheSameInWhateverOrderTheyAreAskedFor) {
  std::map<std::pair<uint64_t, size_t>, StoreTag> known;
  std::vector<std::vector<TokenId>> texts = {tokens_, tokens_, {tokens_.begin(), tokens_.begin() + 8}};
  texts[1][5] = 1000;
  for (uint32_t round = 0; round < 300; ++round) {
    const uint32_t which = random_() % 3;
    const size_t nodes = 1 + random_() % (texts[which].size() / 4);
    const CacheSalt salt{.key = random_() % 2};
    // The third text is the beginning of the first, and so are all of one node.
    const uint32_t text = nodes == 1 || which == 2 ? 0 : which;
    const StoreTag tag = tags_.of(texts[which], salt, nodes);
    const auto [at, is_new] = known.emplace(std::pair(text * 2 + salt.key, nodes), tag);
    EXPECT_EQ(at->second, tag);
  }
  std::vector<StoreTag> all;
  for (const auto& [of, tag] : known) all.push_back(tag);
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
}

TEST_F(StoredPage, AHandOverIsReadAsItWasWritten) {
  const HandOver over{.tokens = 8, .prefix = tags_.of(tokens_, {}, 2)};
  const auto read = HandOver::parse(over.text());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->tokens, 8u);
  EXPECT_EQ(read->prefix, over.prefix);
}

TEST_F(StoredPage, WhatIsNoHandOverIsNone) {
  const std::string good = HandOver{.tokens = 8, .prefix = {}}.text();
  for (const std::string& text :
       {std::string(), std::string("1:"), std::string("1:8"), std::string("1:8:"), "2" + good.substr(1),
        good + "0", good.substr(0, good.size() - 1), std::string("1:-8") + good.substr(3),
        std::string("1:99999999999") + good.substr(3), good.substr(0, good.size() - 1) + "g",
        good.substr(0, 4) + "+f" + good.substr(6), std::string(1 << 20, '1'),
        std::string("1:8:") + std::string(64, '\0')})
    EXPECT_FALSE(HandOver::parse(text).has_value()) << text.substr(0, 100);
}

}  // namespace
}  // namespace quire
