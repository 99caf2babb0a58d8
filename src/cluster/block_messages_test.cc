#include "cluster/block_messages.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace quire {
namespace {

using namespace std::string_literals;
using Kind = BlockEvent::Kind;

BlockEvent stored(uint64_t hash, std::optional<uint64_t> parent, BlockPlace place = BlockPlace::memory) {
  return {Kind::stored, place, hash, parent, {TokenId(hash * 10), TokenId(hash * 10 + 1)}};
}
BlockEvent removed(uint64_t hash, BlockPlace place = BlockPlace::memory) {
  return {Kind::removed, place, hash, {}, {}};
}
Json events_of(const std::vector<BlockEvent>& events) {
  const Json batch = Json::from_msgpack(batch_message(events, 2, 1.5));
  EXPECT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[0], 1.5);
  EXPECT_EQ(batch[2], 0);
  return batch[1];
}
// A text as msgpack has short ones.
std::string text(const std::string& words) {
  return char(0xa0 | words.size()) + words;
}

TEST(BlockMessages, ABatchHasTheseBytes) {
  // An array of three: the time, the events, the rank. A map of eight.
  const std::string half = "\xca\x3f\xc0" + std::string(2, '\0');  // 1.5
  const std::string hash = "\xcf\xff\xee\xdd\xcc\xbb\xaa\x99\x88";
  const std::string expected = "\x93" + half + "\x91\x88" + text("type") + text("BlockStored") +
                               text("block_hashes") + "\x91" + hash + text("parent_block_hash") + "\xc0" +
                               text("token_ids") + "\x92\x07" + "\xcd\x01\x00"s + text("block_size") +
                               "\x02" + text("lora_id") + "\xc0" + text("medium") + text("GPU") +
                               text("lora_name") + "\xc0" + std::string(1, '\0');
  const BlockEvent block{Kind::stored, BlockPlace::memory, 0xffeeddccbbaa9988, {}, {7, 256}};
  EXPECT_EQ(batch_message({&block, 1}, 2, 1.5), expected);
}

TEST(BlockMessages, SaysWhereABlockIsAndWhatIsBeforeIt) {
  const Json events = events_of({stored(2, 1, BlockPlace::host), removed(3, BlockPlace::disk), {}});
  EXPECT_EQ(events[0], Json({{"type", "BlockStored"},
                             {"block_hashes", {2}},
                             {"parent_block_hash", 1},
                             {"token_ids", {20, 21}},
                             {"block_size", 2},
                             {"lora_id", nullptr},
                             {"medium", "CPU"},
                             {"lora_name", nullptr}}));
  EXPECT_EQ(events[1], Json({{"type", "BlockRemoved"}, {"block_hashes", {3}}, {"medium", "STORAGE"}}));
  EXPECT_EQ(events[2], Json::object({{"type", "AllBlocksCleared"}}));
}

TEST(BlockMessages, EveryPlaceHasTheNameThatRoutersKnow) {
  EXPECT_EQ(medium_of(BlockPlace::memory), "GPU");
  EXPECT_EQ(medium_of(BlockPlace::host), "CPU");
  EXPECT_EQ(medium_of(BlockPlace::disk), "STORAGE");
  EXPECT_EQ(medium_of(BlockPlace::remote), "SHARED_STORAGE");
}

TEST(BlockMessages, AChainOfBlocksIsOneEvent) {
  const Json events =
      events_of({stored(1, {}), stored(2, 1), stored(3, 2), stored(4, 2), stored(5, 4, BlockPlace::disk)});
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["block_hashes"], Json({1, 2, 3}));
  EXPECT_EQ(events[0]["token_ids"], Json({10, 11, 20, 21, 30, 31}));
  EXPECT_EQ(events[0]["parent_block_hash"], nullptr);
  EXPECT_EQ(events[1]["block_hashes"], Json({4})) << "a brother";
  EXPECT_EQ(events[1]["parent_block_hash"], 2);
  EXPECT_EQ(events[2]["medium"], "STORAGE");
}

TEST(BlockMessages, WhatGoesFromOnePlaceIsOneEvent) {
  const Json events =
      events_of({removed(1), removed(2), removed(3, BlockPlace::disk), stored(4, {}), removed(5)});
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["block_hashes"], Json({1, 2}));
  EXPECT_EQ(events[1]["block_hashes"], Json({3}));
  EXPECT_EQ(events[3]["block_hashes"], Json({5}));
}

TEST(BlockMessages, NumbersAreEightBytesTheHighestFirst) {
  EXPECT_EQ(number_bytes(0x0102030405060708), "\x01\x02\x03\x04\x05\x06\x07\x08");
  EXPECT_EQ(number_bytes(kEndOfReplay), std::string(8, '\xff'));
  for (const uint64_t number : {uint64_t(0), uint64_t(255), uint64_t(1) << 63, kEndOfReplay})
    EXPECT_EQ(number_from(number_bytes(number)), number);
  EXPECT_EQ(number_from("1234567"), std::nullopt);
  EXPECT_EQ(number_from("123456789"), std::nullopt);
  EXPECT_EQ(number_from(""), std::nullopt);
}

}  // namespace
}  // namespace quire
