// Two caches that share a store: what one has computed the other brings back, and nothing else.
#include <algorithm>
#include <cstring>
#include <random>

#include "kv/block_ledger_case.h"
#include "kv/sharing_case.h"
#include "kv/tiers/remote_tier_case.h"

namespace quire {
namespace {

class CacheWithStore : public Sharing {
 protected:
  // Caches of their own, each with a way to the store, used in turn.
  struct Server {
    std::unique_ptr<RemoteTier> tier;
    std::unique_ptr<HostKv> kv;
  };
  void make_servers(const std::vector<KvLayerShape>& layers, std::vector<uint32_t> pages,
                    uint32_t count = 2) {
    const KvLayout layout = make_kv_layout(layers, 4);
    for (uint32_t i = 0; i < count; ++i) {
      Server& server = servers_.emplace_back();
      server.tier = std::make_unique<RemoteTier>(layout, remote_options(store_));
      server.kv = std::make_unique<HostKv>(layout, pages);
      server.kv->send_to(*server.tier);
    }
    use(0);
  }
  // The tests of sharing work on `kv_`.
  void use(uint32_t server) {
    if (kv_) std::swap(servers_[used_].kv, kv_);
    std::swap(servers_[server].kv, kv_);
    used_ = server;
  }
  RemoteTier& tier() { return *servers_[used_].tier; }

  void wait_until_sent() {
    kv_->settle_moves();
    while (!tier().is_done(tier().last_sent())) tier().wait(std::chrono::milliseconds(5));
  }
  RemoteTier::Arrival arrival_of(RemoteTier::Ticket ticket) {
    while (true) {
      for (RemoteTier::Arrival& arrival : tier().take_arrivals()) {
        if (arrival.ticket == ticket) return arrival;
      }
      tier().wait(std::chrono::milliseconds(5));
    }
  }
  // As much of a prompt as the store has; says of how many tokens that is.
  uint32_t bring_back(const Tokens& tokens, CacheSalt salt = {}) {
    const auto prompt = std::make_shared<const PromptKey>(PromptKey{tokens, salt});
    arrival_of(tier().ask(prompt, 0, {}));
    const TierMatch match = kv_->lookup_in_store({tokens, salt});
    const uint64_t use = kv_->touch({tokens, salt});
    for (const TierMatch::Page& page : match.pages) {
      const RemoteTier::Arrival arrival = arrival_of(tier().read(prompt, page.page, page.node));
      if (!arrival.bytes) break;
      const Tokens prefix(tokens.begin(), tokens.begin() + ptrdiff_t((page.node + 1) * 4));
      if (!kv_->bring_back(page.page, {prefix, salt}, arrival.bytes, use, KvEventKind::received)) break;
      kv_->settle_moves();
    }
    kv_->check_invariants();
    tier().check_invariants();
    return match.tokens;
  }
  void compute_all(const Tokens& tokens, CacheSalt salt = {}) {
    Run run = start(1, tokens, salt);
    expect_right_rows(run);
    ASSERT_TRUE(compute(run, uint32_t(tokens.size())));
    expect_right_rows(run);
    finish(run);
    wait_until_sent();
  }

  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::vector<Server> servers_;
  uint32_t used_ = 0;
};

TEST_F(CacheWithStore, WhatOneHasComputedTheOtherFindsBitByBit) {
  make_servers({layer()}, {32});
  compute_all(counted(22));
  EXPECT_EQ(kv_->events().count(KvEventKind::sent), 5u);
  EXPECT_EQ(store_->size(), 5u) << "whole pages";
  use(1);
  EXPECT_EQ(kv_->lookup(counted(22)).tokens, 0u);
  EXPECT_EQ(bring_back(counted(22)), 20u);
  EXPECT_EQ(kv_->lookup(counted(22)).tokens, 20u);
  EXPECT_EQ(kv_->events().count(KvEventKind::received), 5u);
  EXPECT_EQ(kv_->stats().held_pages, 0u);
  compute_all(counted(22));  // which looks at every row
  EXPECT_EQ(store_->size(), 5u);
  EXPECT_EQ(kv_->events().count(KvEventKind::sent), 0u) << "what came from there is not sent back";
}

TEST_F(CacheWithStore, OfWindowLayersOnlyThePagesComeThatAreSeen) {
  make_servers({layer(), layer(6)}, {32, 32});
  compute_all(counted(40));
  use(1);
  EXPECT_EQ(bring_back(counted(40)), 36u);
  // 9 pages of the layer that sees everything; the next token sees 31 to 36 in the other: pages 7 and 8.
  EXPECT_EQ(kv_->events().count(KvEventKind::received), 11u);
  EXPECT_EQ(kv_->lookup(counted(40)).tokens, 36u);
  compute_all(counted(40));
}

TEST_F(CacheWithStore, StatesComeBackWithTheRowsBeforeThem) {
  KvLayerShape state = layer();
  state.state = true;
  make_servers({layer(), state}, {32, 12});
  Run run = start(1, counted(22));
  kv_->keep_state_at(run.table, 20);
  ASSERT_TRUE(compute(run, 20));
  ASSERT_TRUE(compute(run, 22));
  finish(run);
  wait_until_sent();
  use(1);
  EXPECT_EQ(bring_back(counted(22)), 20u);
  compute_all(counted(22));  // whose run begins with the state, and looks at it
}

TEST_F(CacheWithStore, APageFoundUnderOneSaltIsNotFoundUnderAnother) {
  make_servers({layer()}, {32});
  compute_all(counted(22), {.key = 1});
  use(1);
  EXPECT_EQ(bring_back(counted(22)), 0u);
  EXPECT_EQ(bring_back(counted(22), {.key = 2}), 0u);
  EXPECT_EQ(bring_back(counted(22), {.key = 1}), 20u);
  compute_all(counted(22), {.key = 1});
}

TEST_F(CacheWithStore, ComingBackEvictsNothingThatIsHeld) {
  make_servers({layer()}, {4});
  compute_all(counted(16));
  use(1);
  compute_all(counted(16, 1000));
  PageTable held = kv_->pin(counted(8, 1000), SequenceId{9});
  EXPECT_EQ(bring_back(counted(17)), 16u) << "so much is there";
  EXPECT_EQ(kv_->lookup(counted(17)).tokens, 8u) << "and for so much there is room";
  EXPECT_EQ(kv_->lookup(counted(9, 1000)).tokens, 8u);
  kv_->release(held, {}, 0, KvCache::Reason::forgotten);
  kv_->check_invariants();
}

TEST_F(CacheWithStore, WhatFoundNoRoomWhenItWasPublishedIsSentLater) {
  make_servers({layer()}, {32});
  store_->close();
  servers_[0].tier.reset();
  RemoteTierOptions options = remote_options(store_);
  options.queue_bytes = 1;
  servers_[0].tier = std::make_unique<RemoteTier>(kv_->layout(), std::move(options));
  kv_->send_to(*servers_[0].tier);
  Run run = start(1, counted(20));
  ASSERT_TRUE(compute(run, 20));
  store_->open();
  wait_until_sent();
  EXPECT_LT(store_->size(), 5u);
  for (int i = 0; i < 5; ++i) {
    kv_->send(counted(20));
    wait_until_sent();
  }
  EXPECT_EQ(store_->size(), 5u);
  finish(run);
}

TEST_F(CacheWithStore, ListenersHearWhatIsKnownToBeThereAndNothingUnderASalt) {
  make_servers({layer()}, {32});
  BlockLedger ledger;
  kv_->tell(&ledger);
  compute_all(counted(12));
  const std::set<Tokens> blocks = {counted(4), counted(8), counted(12)};
  EXPECT_EQ(ledger.prefixes(BlockPlace::remote), blocks);
  compute_all(counted(12, 100), {.key = 1});
  EXPECT_EQ(ledger.prefixes(BlockPlace::remote), blocks);
  use(1);
  BlockLedger other;
  kv_->tell(&other);
  bring_back(counted(13));
  EXPECT_EQ(other.prefixes(BlockPlace::remote), blocks) << "what others have sent, once it was asked for";
  EXPECT_EQ(other.prefixes(BlockPlace::memory), blocks);
  store_->with([](MemoryStore& store) { store.values.clear(); });
  arrival_of(tier().ask(std::make_shared<const PromptKey>(PromptKey{counted(13), {}}), 0, {}));
  EXPECT_TRUE(other.at(BlockPlace::remote).empty());
  EXPECT_EQ(other.prefixes(BlockPlace::memory), blocks);
}

TEST_F(CacheWithStore, RandomTextsOfThreeServersAlwaysFindTheirOwnRows) {
  std::mt19937 random(11);
  for (const uint32_t window : {0u, 6u}) {
    servers_.clear();
    kv_.reset();
    used_ = 0;
    make_servers({layer(), layer(window)}, window == 0 ? std::vector{14u} : std::vector{14u, 14u}, 3);
    uint64_t gained = 0;
    for (uint32_t round = 0; round < 200; ++round) {
      use(random() % 3);
      Tokens tokens = counted(5 + random() % 40, 1000 * (random() % 6));
      if (random() % 2 == 0) tokens[random() % tokens.size()] = 7;
      const CacheSalt salt{.key = random() % 2};
      store_->with([&](MemoryStore& store) {
        if (random() % 4 == 0 && !store.values.empty()) store.values.erase(store.values.begin());
        store.lie = nullptr;
        if (random() % 3 == 0)
          store.lie = [flip = random() % 200](auto, auto& value) {
            value[flip % value.size()] ^= std::byte(4);
          };
      });
      const uint32_t before = kv_->lookup({tokens, salt}).tokens;
      bring_back(tokens, salt);
      gained += kv_->lookup({tokens, salt}).tokens - before;
      compute_all(tokens, salt);
      if (HasFailure()) return;
    }
    EXPECT_GT(gained, 200u);
  }
}

}  // namespace
}  // namespace quire
