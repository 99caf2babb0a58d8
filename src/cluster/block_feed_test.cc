#include "cluster/block_feed.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>

namespace quire {
namespace {

using Kind = BlockEvent::Kind;

std::vector<TokenId> block_tokens(uint64_t hash) {
  return {TokenId(hash), TokenId(hash + 1), TokenId(hash + 2)};
}

void store(BlockFeed& feed, uint64_t hash, BlockPlace place = BlockPlace::memory) {
  const std::vector<TokenId> tokens = block_tokens(hash);
  feed.stored({.hash = hash, .parent = {}, .tokens = tokens, .place = place});
}

TEST(BlockFeed, GivesWhatItWasToldInItsOrder) {
  BlockFeed feed(3, 8);
  EXPECT_FALSE(feed.take().has_value());
  const std::vector<TokenId> tokens = {7, 8, 9};
  feed.stored({.hash = 5, .parent = 4, .tokens = tokens, .place = BlockPlace::host});
  feed.removed(4, BlockPlace::disk);
  feed.cleared();
  EXPECT_EQ(*feed.take(), (BlockEvent{Kind::stored, BlockPlace::host, 5, 4, {7, 8, 9}}));
  EXPECT_EQ(*feed.take(), (BlockEvent{Kind::removed, BlockPlace::disk, 4, {}, {}}));
  EXPECT_EQ(*feed.take(), BlockEvent{});
  EXPECT_FALSE(feed.take().has_value());
  EXPECT_EQ(feed.dropped(), 0u);
}

TEST(BlockFeed, WhereThereIsNoRoomSaysThatAllIsClearedAndDropsUntilHalfIsFree) {
  BlockFeed feed(3, 8);
  for (uint64_t hash = 1; hash <= 10; ++hash) store(feed, hash);
  EXPECT_EQ(feed.dropped(), 3u);
  for (uint64_t hash = 1; hash <= 3; ++hash) EXPECT_EQ(feed.take()->hash, hash);
  store(feed, 11);
  EXPECT_EQ(feed.dropped(), 4u) << "three of eight are free";
  EXPECT_EQ(feed.take()->hash, 4u);
  store(feed, 12);
  for (uint64_t hash = 5; hash <= 7; ++hash) EXPECT_EQ(feed.take()->hash, hash);
  EXPECT_EQ(feed.take()->kind, Kind::cleared);
  EXPECT_EQ(feed.take()->tokens, block_tokens(12));
  EXPECT_FALSE(feed.take().has_value());
  EXPECT_EQ(feed.dropped(), 4u);
}

// Blocks come and go faster than they are read: what the reader believes to be there is there or has gone since.
TEST(BlockFeed, AReaderWhoIsTooSlowBelievesTooLittleAndNeverTooMuch) {
  constexpr uint64_t kBlocks = 50'000;
  BlockFeed feed(3, 64);
  std::thread engine([&] {
    for (uint64_t hash = 1; hash <= kBlocks; ++hash) {
      store(feed, hash);
      if (hash > 10) feed.removed(hash - 10, BlockPlace::memory);
    }
  });
  std::set<uint64_t> believed;
  const auto read = [&] {
    while (const std::optional<BlockEvent> event = feed.take()) {
      if (event->kind == Kind::cleared) believed.clear();
      if (event->kind == Kind::removed) believed.erase(event->hash);
      if (event->kind != Kind::stored) continue;
      EXPECT_EQ(event->tokens, block_tokens(event->hash));
      EXPECT_TRUE(believed.insert(event->hash).second);
    }
    EXPECT_LE(believed.size(), 11u);
  };
  for (int i = 0; i < 100; ++i) read();
  engine.join();
  read();
  for (const uint64_t hash : believed) EXPECT_GT(hash, kBlocks - 10);
}

}  // namespace
}  // namespace quire
