// The tier behind a store of this process: what is sent, what comes back, and what becomes of a store that is slow, full, gone or lies.
#include "kv/tiers/remote_tier.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "kv/tiers/remote_tier_case.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

class Remote : public testing::Test {
 protected:
  using Tokens = std::vector<TokenId>;
  static constexpr uint32_t kTokens = 4;

  static KvLayout layout() {
    const KvLayerShape shape{.kv_heads = 2, .key_dim = 4, .value_dim = 2};
    return make_kv_layout(std::vector{shape, shape}, kTokens);
  }
  std::unique_ptr<RemoteTier> make(RemoteTierOptions options) {
    return std::make_unique<RemoteTier>(layout_, std::move(options));
  }
  std::unique_ptr<RemoteTier> make(uint64_t key = 1) { return make(remote_options(store_, key)); }
  static Tokens counted(uint32_t n, uint32_t from = 0) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), from);
    return tokens;
  }
  std::vector<std::byte> page_of(const Tokens& prefix) const {
    std::seed_seq seed(prefix.begin(), prefix.end());
    std::mt19937 random(seed);
    std::vector<std::byte> page(layout_.groups[0].page_bytes);
    for (std::byte& byte : page) byte = std::byte(random());
    return page;
  }
  // Sends the pages of all whole nodes of these tokens; says how many were taken.
  uint32_t send(RemoteTier& tier, const Tokens& tokens, CacheSalt salt = {}) const {
    uint32_t taken = 0;
    for (uint32_t end = kTokens; end <= tokens.size(); end += kTokens) {
      const Tokens prefix(tokens.begin(), tokens.begin() + end);
      const RemoteTier::Place place = tier.send(0, {prefix, salt});
      if (place.bytes == nullptr) continue;
      const std::vector<std::byte> page = page_of(prefix);
      std::memcpy(place.bytes, page.data(), page.size());
      tier.filled(place.ticket);
      ++taken;
    }
    return taken;
  }
  static void wait_until_sent(RemoteTier& tier) {
    while (!tier.is_done(tier.last_sent())) tier.wait(10ms);
  }
  static RemoteTier::Arrival arrival_of(RemoteTier& tier, RemoteTier::Ticket ticket) {
    while (true) {
      for (RemoteTier::Arrival& arrival : tier.take_arrivals()) {
        if (arrival.ticket == ticket) return arrival;
      }
      tier.wait(10ms);
    }
  }
  static std::shared_ptr<const PromptKey> key_of(const Tokens& tokens, CacheSalt salt = {}) {
    return std::make_shared<const PromptKey>(PromptKey{tokens, salt});
  }
  // How many nodes from the first on are there.
  static uint32_t ask(RemoteTier& tier, const Tokens& tokens, CacheSalt salt = {},
                      std::optional<HandOver> over = {}) {
    EXPECT_FALSE(arrival_of(tier, tier.ask(key_of(tokens, salt), 0, over)).failed);
    const auto pages = tier.pages_along({tokens, salt});
    return uint32_t(std::ranges::find(pages, false, [](const auto& has) { return bool(has[0]); }) -
                    pages.begin());
  }
  RemoteTier::Arrival read(RemoteTier& tier, const Tokens& tokens, uint32_t node, CacheSalt salt = {}) {
    return arrival_of(tier, tier.read(key_of(tokens, salt), 0, node));
  }
  void expect_page(const RemoteTier::Arrival& arrival, const Tokens& tokens, uint32_t node) {
    ASSERT_NE(arrival.bytes, nullptr);
    const std::vector<std::byte> page = page_of({tokens.begin(), tokens.begin() + (node + 1) * kTokens});
    EXPECT_EQ(std::memcmp(arrival.bytes.get(), page.data(), page.size()), 0);
  }

  KvLayout layout_ = layout();
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
};

TEST_F(Remote, WhatOneHasSentAnotherFindsAndGets) {
  const auto one = make(), other = make();
  const Tokens tokens = counted(18);
  EXPECT_EQ(send(*one, tokens), 4u);
  wait_until_sent(*one);
  EXPECT_EQ(store_->size(), 4u);
  EXPECT_TRUE(other->pages_along(tokens).empty()) << "nobody has asked yet";
  EXPECT_EQ(ask(*other, tokens), 4u);
  for (uint32_t node = 0; node < 4; ++node) expect_page(read(*other, tokens, node), tokens, node);
  const RemoteTier::Stats sent = one->stats(), got = other->stats();
  EXPECT_EQ(sent.sent_pages, 4u);
  EXPECT_EQ(sent.sent_bytes, 4 * layout_.groups[0].page_bytes);
  EXPECT_EQ(got.hit_pages, 4u);
  EXPECT_EQ(got.missed_pages + got.failures, 0u);
  EXPECT_TRUE(got.readable && sent.writable);
  other->check_invariants();
}

TEST_F(Remote, TheLastTokenIsNeverAskedForAsItIsAlwaysComputed) {
  const auto one = make(), other = make();
  send(*one, counted(8));
  wait_until_sent(*one);
  EXPECT_EQ(ask(*other, counted(8)), 1u);
  EXPECT_EQ(ask(*other, counted(9)), 2u);
}

TEST_F(Remote, WhatIsThereIsNotSentAgain) {
  const auto one = make(), other = make();
  send(*one, counted(16));
  EXPECT_EQ(send(*one, counted(16)), 0u) << "it remembers";
  wait_until_sent(*one);
  EXPECT_EQ(send(*other, counted(16)), 4u) << "it does not know";
  wait_until_sent(*other);
  EXPECT_EQ(other->stats().sent_pages, 0u) << "but asks before it sends";
  EXPECT_EQ(other->stats().there_pages, 4u);
}

TEST_F(Remote, PagesAreFoundUnderTheirSaltModelAndKeyAndUnderNoOther) {
  const auto one = make();
  const Tokens tokens = counted(9);
  send(*one, tokens, {.key = 1});
  wait_until_sent(*one);
  const auto other = make();
  EXPECT_EQ(ask(*other, tokens, {.key = 1}), 2u);
  for (const CacheSalt salt : {CacheSalt{}, CacheSalt{.key = 2}, CacheSalt{.key = 1, .text = 1}}) {
    EXPECT_EQ(ask(*other, tokens, salt), 0u);
    EXPECT_EQ(read(*other, tokens, 0, salt).bytes, nullptr);
  }
  RemoteTierOptions options = remote_options(store_);
  options.identity = "another model";
  EXPECT_EQ(ask(*make(std::move(options)), tokens, {.key = 1}), 0u);
  EXPECT_EQ(ask(*make(2), tokens, {.key = 1}), 0u) << "another key";
  options = remote_options(store_);
  options.salted = false;
  const auto unsalted = make(std::move(options));
  EXPECT_FALSE(unsalted->takes({.key = 1}));
  EXPECT_EQ(send(*unsalted, counted(8), {.text = 1}), 0u);
  EXPECT_EQ(send(*unsalted, counted(8)), 2u);
}

TEST_F(Remote, APageThatIsNotWhatItShouldBeIsNotThereAndIsSentAnew) {
  const auto one = make();
  const Tokens tokens = counted(9);
  send(*one, tokens);
  wait_until_sent(*one);
  const auto other = make();
  struct Case {
    PageFault fault;
    std::function<void(std::string_view, MemoryStore::Value&)> lie;
  };
  MemoryStore& store = *store_;
  const Case cases[] = {
      {PageFault::length, [](auto, auto& value) { value.pop_back(); }},
      {PageFault::length, [](auto, auto& value) { value.push_back({}); }},
      {PageFault::length, [](auto, auto& value) { value.clear(); }},
      {PageFault::foreign, [](auto, auto& value) { value[0] ^= std::byte(1); }},
      {PageFault::tag, [](auto, auto& value) { value[value.size() - 40] ^= std::byte(1); }},
      {PageFault::tag, [](auto, auto& value) { value.back() ^= std::byte(1); }},
      {PageFault::tokens,
       [&](std::string_view name, auto& value) {  // another's page
         for (const auto& [other_name, other_value] : store.values) {
           if (other_name != name) value = other_value;
         }
       }},
  };
  uint64_t faults = 0;
  for (const Case& one_case : cases) {
    store_->with([&](MemoryStore& s) { s.lie = one_case.lie; });
    EXPECT_EQ(ask(*other, tokens), 2u);
    const RemoteTier::Arrival arrival = read(*other, tokens, 0);
    EXPECT_EQ(arrival.bytes, nullptr);
    EXPECT_FALSE(arrival.failed);
    EXPECT_EQ(arrival.fault, one_case.fault) << name(arrival.fault);
    EXPECT_FALSE(other->pages_along(tokens)[0][0]) << "it is not remembered any more";
    ++faults;
  }
  EXPECT_EQ(other->stats().missed_pages, faults);
  store_->with([&](MemoryStore& s) { s.lie = nullptr; });
  EXPECT_EQ(send(*other, counted(4)), 1u);
  wait_until_sent(*other);
  EXPECT_EQ(other->stats().sent_pages, 1u) << "what is wrong there is written over";
  expect_page(read(*other, tokens, 0), tokens, 0);
}

TEST_F(Remote, AStoreThatIsGoneIsLeftAloneAndTriedAgainLater) {
  const auto one = make();
  const Tokens tokens = counted(9);
  store_->set_down(true);
  EXPECT_TRUE(arrival_of(*one, one->ask(key_of(tokens), 0, {})).failed);
  EXPECT_FALSE(one->is_readable());
  EXPECT_EQ(one->stats().problem, "the store is down");
  const uint64_t tried = store_->with([](MemoryStore& s) { return s.connections; });
  EXPECT_TRUE(arrival_of(*one, one->read(key_of(tokens), 0, 0)).failed);
  const uint32_t taken = send(*one, tokens);  // until it is known that nobody takes them
  EXPECT_GE(taken, 1u);
  wait_until_sent(*one);
  EXPECT_EQ(one->stats().dropped_pages, taken);
  EXPECT_FALSE(one->is_writable());
  EXPECT_EQ(send(*one, tokens), 0u) << "nobody would take them";
  std::this_thread::sleep_for(100ms);
  EXPECT_LT(store_->with([](MemoryStore& s) { return s.connections; }), tried + 40) << "in pauses that grow";
  store_->set_down(false);
  for (int i = 0; i < 500 && !(one->is_readable() && one->is_writable()); ++i)
    std::this_thread::sleep_for(2ms);
  EXPECT_TRUE(one->is_readable() && one->is_writable());
  EXPECT_EQ(send(*one, tokens), 2u);
  wait_until_sent(*one);
  EXPECT_EQ(ask(*one, tokens), 2u);
}

TEST_F(Remote, WhatWasKnownIsForgottenWithAStoreThatWasGone) {
  const auto one = make();
  send(*one, counted(8));
  wait_until_sent(*one);
  EXPECT_EQ(one->stats().known_pages, 2u);
  store_->set_down(true);
  arrival_of(*one, one->ask(key_of(counted(30, 100)), 0, {}));
  EXPECT_EQ(one->stats().known_pages, 0u) << "it may have come back empty";
}

TEST_F(Remote, AFullStoreTakesNothingAndStillGives) {
  const auto one = make();
  send(*one, counted(8));
  wait_until_sent(*one);
  store_->with([](MemoryStore& s) { s.full = true; });
  const uint32_t taken = send(*one, counted(8, 100));  // until it is known that it is full
  wait_until_sent(*one);
  EXPECT_GE(one->stats().refused_pages, 1u);
  EXPECT_EQ(one->stats().refused_pages + one->stats().dropped_pages, taken);
  EXPECT_EQ(one->stats().problem, "there is no room");
  EXPECT_EQ(one->stats().failures, 0u);
  EXPECT_TRUE(one->pages_along(counted(8, 100)).empty());
  EXPECT_EQ(ask(*one, counted(9)), 2u);
}

TEST_F(Remote, TheQueueIsBoundedAndWhatFindsNoRoomIsDropped) {
  store_->close();
  RemoteTierOptions options = remote_options(store_);
  options.queue_bytes = 5 * layout_.groups[0].page_bytes;
  const auto one = make(std::move(options));
  EXPECT_LT(send(*one, counted(64)), 6u);
  EXPECT_LE(one->stats().queued_bytes, 5 * layout_.groups[0].page_bytes);
  EXPECT_GT(one->stats().dropped_pages, 9u);
  store_->open();
  wait_until_sent(*one);
  EXPECT_EQ(one->stats().queued_bytes, 0u);
}

TEST_F(Remote, WhoeverEndsWhileTheStoreIsSilentWaitsForItAndNothingIsLost) {
  store_->close();
  auto one = make();
  send(*one, counted(8));
  one->ask(key_of(counted(9)), 0, {});
  std::thread opener([&] {
    std::this_thread::sleep_for(20ms);
    store_->open();
  });
  one.reset();
  opener.join();
}

TEST_F(Remote, AHandOverThatIsTrueOfAPromptSavesTheQuestion) {
  const auto one = make(), other = make();
  const Tokens tokens = counted(18);
  EXPECT_FALSE(one->hand_over(tokens).has_value());
  send(*one, tokens);
  wait_until_sent(*one);
  const auto over = one->hand_over(tokens);
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->tokens, 16u);
  const uint64_t before = store_->with([](MemoryStore& s) { return s.questions; });
  EXPECT_EQ(ask(*other, tokens, {}, over), 4u);
  EXPECT_EQ(store_->with([](MemoryStore& s) { return s.questions; }), before);
  expect_page(read(*other, tokens, 3), tokens, 3);
}

TEST_F(Remote, AHandOverThatIsNotTrueOfAPromptIsNotBelieved) {
  const auto one = make(), other = make();
  const Tokens tokens = counted(18);
  send(*one, counted(8));
  wait_until_sent(*one);
  HandOver over = *one->hand_over(tokens);
  EXPECT_EQ(over.tokens, 8u) << "so much of it is there";
  for (const uint32_t count : {0u, 4u, 7u, 12u, 4000u, UINT32_MAX}) {
    HandOver false_one = over;
    false_one.tokens = count;
    EXPECT_EQ(ask(*make(), tokens, {}, false_one), 2u) << "the store was asked";
  }
  EXPECT_EQ(ask(*make(), tokens, {.key = 1}, over), 0u) << "another's prompt";
  EXPECT_EQ(ask(*make(), counted(18, 3), {}, over), 0u);
  over.prefix[0] ^= std::byte(1);
  EXPECT_EQ(ask(*make(), tokens, {}, over), 2u);
  // One whose pages have gone since: it is believed, and the first page that is missing says the truth.
  over.prefix[0] ^= std::byte(1);
  store_->with([](MemoryStore& s) { s.values.clear(); });
  EXPECT_EQ(ask(*other, tokens, {}, over), 2u);
  EXPECT_EQ(read(*other, tokens, 0).bytes, nullptr);
}

TEST_F(Remote, WhatIsRememberedIsBounded) {
  RemoteTierOptions options = remote_options(store_);
  options.known_nodes = 8;
  const auto one = make(std::move(options));
  for (uint32_t i = 0; i < 20; ++i) {
    send(*one, counted(16, 1000 * i));
    wait_until_sent(*one);
    EXPECT_LE(one->stats().known_pages, 8u);
    one->check_invariants();
  }
  EXPECT_EQ(store_->size(), 80u);
  EXPECT_EQ(ask(*one, counted(17)), 4u);
  EXPECT_LE(ask(*one, counted(70, 1000)), 8u);
  one->check_invariants();
}

TEST_F(Remote, ForgettingAllLeavesNothingOnItsWay) {
  const auto one = make();
  const RemoteTier::Place place = one->send(0, counted(4));
  ASSERT_NE(place.bytes, nullptr);
  one->ask(key_of(counted(9)), 0, {});
  one->forget_all();
  EXPECT_EQ(one->stats().queued_bytes, 0u);
  EXPECT_TRUE(one->is_done(one->last_sent()));
  EXPECT_EQ(send(*one, counted(8)), 2u);
  wait_until_sent(*one);
  EXPECT_EQ(ask(*one, counted(9)), 2u);
  one->check_invariants();
}

TEST_F(Remote, AnEstimateIsLearntFromWhatCameAndDoubtedWhenNobodyAsks) {
  const auto one = make();
  send(*one, counted(64));
  wait_until_sent(*one);
  ask(*one, counted(65));
  EXPECT_GT(one->stats().round_trip_s, 0);
  for (uint32_t node = 0; node < 16; ++node) read(*one, counted(65), node);
  EXPECT_GT(one->stats().read_bytes_per_s, 0);
  const double bad = one->seconds_to_read(1 << 30);
  for (int i = 0; i < 1000; ++i) one->doubt_rate();
  EXPECT_LE(one->seconds_to_read(1 << 30), std::max(bad, 3.0));
}

TEST(StoreBreaker, PausesGrowUntilSomethingWorks) {
  StoreBreaker breaker({.first = 10ms, .longest = 35ms});
  const Clock::time_point begin = Clock::now();
  EXPECT_TRUE(breaker.may_try(begin));
  for (const auto pause : {10ms, 20ms, 35ms, 35ms}) {
    breaker.failed(begin);
    EXPECT_TRUE(breaker.is_open());
    EXPECT_FALSE(breaker.may_try(begin + pause - 1ms));
    EXPECT_TRUE(breaker.may_try(begin + pause));
  }
  breaker.half_close();
  breaker.failed(begin);
  EXPECT_EQ(breaker.again(), begin + 35ms);
  breaker.worked();
  EXPECT_FALSE(breaker.is_open());
  breaker.failed(begin);
  EXPECT_EQ(breaker.again(), begin + 10ms);
}

}  // namespace
}  // namespace quire
