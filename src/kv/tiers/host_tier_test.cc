#include "kv/tiers/host_tier_case.h"

namespace quire {
namespace {

TEST_F(HostTierTest, GivesBackTheBytesOfEveryPageInEveryGroup) {
  const auto tier = make();
  std::map<std::pair<HostTokens, uint32_t>, HostPage> pages;
  for (uint32_t n = kTokensOfAPage; n <= 40; n += kTokensOfAPage) {
    for (uint32_t g = 0; g < 2; ++g) {
      const HostPage& page = pages[{ascending(n), g}] = random_page(g);
      EXPECT_EQ(store(*tier, ascending(n), page, g), HostTier::Stored::to_be_brought);
      EXPECT_EQ(store(*tier, ascending(n), page, g), HostTier::Stored::already_there);
    }
  }
  for (const auto& [key, page] : pages) EXPECT_EQ(load(*tier, key.first, key.second), page);
  const HostTier::Stats stats = tier->stats();
  EXPECT_EQ(stats.stored_pages, 20u);
  EXPECT_EQ(stats.loaded_pages, 20u);
  EXPECT_EQ(stats.stored_bytes, 10 * TierSlots::node_bytes(layout_));
  EXPECT_EQ(stats.used_bytes, stats.stored_bytes);
  EXPECT_EQ(tier->pages_of(0), 10u);
  tier->check_invariants();
}

TEST_F(HostTierTest, FindsAPageByAllTokensBeforeItAndItsSalt) {
  const auto tier = make();
  const HostPage page = random_page();
  HostTokens other = ascending(8);
  other[1] = 99;
  const HostTokens tokens = ascending(8);
  store(*tier, {tokens, CacheSalt{.key = 3}}, page);
  EXPECT_FALSE(tier->find(0, tokens));
  EXPECT_FALSE(tier->find(0, {other, CacheSalt{.key = 3}}));
  EXPECT_EQ(load(*tier, {tokens, CacheSalt{.key = 3}}), page);
  tier->check_invariants();
}

TEST_F(HostTierTest, WhatWasUsedLongestAgoMakesRoom) {
  const auto tier = make(3);
  std::vector<HostPage> pages;
  for (uint32_t i = 0; i < 3; ++i) store(*tier, ascending(4, i * 100), pages.emplace_back(random_page()));
  tier->touch_along(ascending(4, 0));
  store(*tier, ascending(4, 300), random_page());
  EXPECT_EQ(load(*tier, ascending(4, 0)), pages[0]);
  EXPECT_FALSE(tier->find(0, ascending(4, 100)));
  EXPECT_EQ(load(*tier, ascending(4, 200)), pages[2]);
  EXPECT_EQ(tier->stats().replaced_pages, 1u);
  tier->check_invariants();
}

TEST_F(HostTierTest, ASlotThatIsFilledOrReadIsGivenToNobodyElse) {
  const auto tier = make(2);
  const HostTier::Place filling = tier->store(0, ascending(4, 0));
  ASSERT_EQ(filling.stored, HostTier::Stored::to_be_brought);
  store(*tier, ascending(4, 100), random_page());
  const HostTier::Copy read = *tier->find(0, ascending(4, 100));
  tier->begin_read(0, read.slot);
  EXPECT_EQ(tier->store(0, ascending(4, 200)).stored, HostTier::Stored::dropped);
  EXPECT_EQ(tier->stats().dropped_pages, 1u);
  EXPECT_TRUE(tier->still_has(0, read));
  tier->end_read(0, read.slot);
  EXPECT_EQ(tier->store(0, ascending(4, 200)).copy.slot, read.slot);
  EXPECT_FALSE(tier->still_has(0, read)) << "its slot is another page's now";
  EXPECT_TRUE(tier->still_has(0, filling.copy));
  tier->check_invariants();
}

TEST_F(HostTierTest, MemoryWithoutRoomForAPageIsAnError) {
  EXPECT_THROW(HostTier(layout_, TierSlots::node_bytes(layout_) - 1, [](size_t n) { return Buffer(n); }),
               Error);
}

TEST_F(HostTierTest, ARateIsThatOfLargeMovesThatSomebodyHasTimed) {
  const auto tier = make();
  const double guess = tier->seconds_to_move(1000);
  tier->learn_rate(10, 5);
  tier->learn_rate(size_t(1) << 30, 0);
  EXPECT_EQ(tier->seconds_to_move(1000), guess);
  tier->learn_rate(100'000'000, 0.01);
  EXPECT_DOUBLE_EQ(tier->seconds_to_move(1'000'000), 1e-4);
}

// ---- and the disk behind it

class HostTierOverDisk : public HostTierTest {
 protected:
  HostTierOverDisk()
      : host_(make(4)),
        disk_(std::make_unique<DiskTier>(
            layout_,
            DiskTierOptions{.folder = testing::TempDir(), .bytes = 64 * TierSlots::node_bytes(layout_)})) {
    host_->write_to(*disk_);
  }
  void settle() {
    while (disk_->stats().queued_bytes > 0) disk_->wait(std::chrono::milliseconds(5));
    host_->write_behind();
  }
  HostPage read_from_disk(const HostTokens& prefix) {
    const auto ticket = disk_->read(0, prefix);
    if (!ticket) return {};
    while (true) {
      for (DiskTier::Arrival& arrival : disk_->take_arrivals()) {
        if (!arrival.bytes) return {};
        return HostPage(arrival.bytes.get(), arrival.bytes.get() + layout_.groups[0].page_bytes);
      }
      disk_->wait(std::chrono::milliseconds(5));
    }
  }

  std::unique_ptr<HostTier> host_;
  std::unique_ptr<DiskTier> disk_;  // ends first
};

TEST_F(HostTierOverDisk, PagesAreOnTheDiskBeforeTheirSlotsAreNeeded) {
  std::vector<HostPage> pages;
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(store(*host_, ascending(4, i * 100), pages.emplace_back(random_page())),
              HostTier::Stored::to_be_brought);
    host_->write_behind();
    settle();
  }
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_FALSE(host_->find(0, ascending(4, i * 100)));
    EXPECT_EQ(read_from_disk(ascending(4, i * 100)), pages[i]) << i;
  }
  EXPECT_EQ(host_->stats().replaced_pages, 16u);
  EXPECT_EQ(host_->stats().dropped_pages, 0u);
  EXPECT_LE(disk_->stats().written_pages, 19u) << "the newest stay where they are";
  host_->check_invariants();
  disk_->check_invariants();
}

TEST_F(HostTierOverDisk, WhatIsForgottenWhileTheDiskReadsItIsGivenBackWhenItHasRead) {
  for (int round = 0; round < 50; ++round) {
    for (uint32_t i = 0; i < 4; ++i) store(*host_, ascending(4, i * 100), random_page());
    host_->write_behind();
    disk_->forget_all();
    host_->forget_all();
    host_->check_invariants();
    EXPECT_FALSE(host_->find(0, ascending(4, 0)));
  }
  settle();
  for (uint32_t i = 0; i < 4; ++i)
    EXPECT_EQ(store(*host_, ascending(4, i * 100), random_page()), HostTier::Stored::to_be_brought);
  EXPECT_EQ(host_->stats().pages, 4u) << "every slot has come back";
  host_->check_invariants();
}

// ---- and a cache over it

}  // namespace
}  // namespace quire
