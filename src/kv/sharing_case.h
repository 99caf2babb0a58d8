#pragma once

#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "kv/host_kv.h"

namespace quire {

using Why = PrefixMiss::Why;
using Tokens = std::vector<TokenId>;

inline KvLayerShape layer(uint32_t window = 0, uint32_t page_tokens = 0) {
  return {.kv_heads = 1,
          .key_dim = 2,
          .value_dim = 2,
          .window = window,
          .page_tokens = page_tokens,
          .key_format = KvFormat::f32,
          .value_format = KvFormat::f32};
}

// A cache with pages of four tokens unless a layer says otherwise, and a model that writes each token's history into its row: whoever reads a row can
// tell whether it belongs to the tokens before it.
class Sharing : public testing::Test {
 protected:
  void make(std::vector<KvLayerShape> layers, std::vector<uint32_t> pages, KvCacheOptions options = {}) {
    kv_ = std::make_unique<HostKv>(make_kv_layout(layers, 4), pages, options);
  }

  struct Run {
    Run(HostKv& kv, uint32_t id, CacheSalt salt = {}) : table(kv.make_table(SequenceId{id}, salt)) {}
    PageTable table;
    Tokens tokens;
    uint32_t computed = 0;
    PrefixMatch match;
  };

  // Rows of other salts differ, which in a model they would not: whoever finds one that is not for it shows it.
  static float history(std::span<const TokenId> tokens, CacheSalt salt = {}) {
    uint32_t sum = 17 + uint32_t(salt.key * 7 + salt.text * 1001);
    for (TokenId token : tokens) sum = sum * 31 + token + 1;
    return float(sum % 100003);
  }

  float* row(const Run& run, uint32_t group, uint32_t position) {
    KvTables flat;
    const PageTable* tables[] = {&run.table};
    const auto views = kv_->view(tables, flat);
    const KvView view{&views[group], &kv_->layout().groups[group].layers.front()};
    return reinterpret_cast<float*>(view.key_row(0, 0, position / view.layer->shape.stride));
  }

  // What the last state of a run is before it runs, and what it leaves: the history of as many tokens.
  void run_states(const Run& run, uint32_t begin) {
    if (!kv_->layout().has_states()) return;
    const uint32_t group = *kv_->layout().states;
    KvTables flat;
    const PageTable* tables[] = {&run.table};
    const auto views = kv_->view(tables, flat);
    const KvView view{&views[group], &kv_->layout().groups[group].layers.front()};
    const auto after = [&](uint32_t tokens) {
      return history(std::span(run.tokens).first(tokens), run.table.salt());
    };
    const std::byte* before = view.state_before(0, 0);
    ASSERT_EQ(before == nullptr, begin == 0);
    if (before != nullptr) {
      EXPECT_EQ(*reinterpret_cast<const float*>(before), after(begin));
    }
    ASSERT_GT(view.states_left(0), 0u);
    for (uint32_t i = 0; i < view.states_left(0); ++i)
      *reinterpret_cast<float*>(view.state_left(0, 0, i)) = after(view.state_row(0, i));
  }

  Run start(uint32_t id, Tokens tokens, CacheSalt salt = {}) {
    Run run(*kv_, id, salt);
    run.tokens = std::move(tokens);
    run.match = kv_->attach(run.table, run.tokens);
    run.computed = run.match.tokens;
    return run;
  }

  bool compute(Run& run, uint32_t until) {
    if (!kv_->reserve(run.table, until)) return false;
    kv_->begin_run(run.table, run.computed, until - run.computed);
    run_states(run, run.computed);
    for (; run.computed < until; ++run.computed) {
      for (uint32_t g = 0; g < run.table.groups(); ++g)
        if (g != kv_->layout().states)
          *row(run, g, run.computed) =
              history(std::span(run.tokens).first(run.computed + 1), run.table.salt());
    }
    kv_->end_run(run.table, run.computed);
    kv_->publish(run.table, run.tokens, run.computed);
    kv_->release_behind_window(run.table, run.computed);
    kv_->check_invariants();
    return true;
  }

  // Every row that the next token sees has the history of this sequence's own tokens.
  void expect_right_rows(const Run& run) {
    for (uint32_t g = 0; g < run.table.groups(); ++g) {
      if (g == kv_->layout().states) continue;  // see run_states
      const uint32_t window = kv_->layout().groups[g].window;
      const uint32_t first = window == 0 || run.computed + 1 <= window ? 0 : run.computed + 1 - window;
      for (uint32_t p = first; p < run.computed; ++p)
        EXPECT_EQ(*row(run, g, p), history(std::span(run.tokens).first(p + 1), run.table.salt()))
            << "group " << g << " position " << p;
    }
  }

  void finish(Run& run, KvCache::Reason reason = KvCache::Reason::finished) {
    kv_->release(run.table, run.tokens, run.computed, reason);
    kv_->check_invariants();
  }

  static Tokens counted(uint32_t n, uint32_t from = 0) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), from);
    return tokens;
  }

  // Random texts that begin alike, forks, preemptions and ends over a small pool: every row that anybody sees is always
  // the right one, and at the end nothing is held.
  void let_everything_happen() {
    std::mt19937 random(7);
    const auto roll = [&](uint32_t n) { return uint32_t(random() % n); };
    std::vector<Run> runs;
    for (uint32_t i = 0; i < 6000; ++i) {
      const uint32_t what = roll(10);
      if (what < 3 && runs.size() < 4) {
        Tokens tokens(1 + roll(30));
        for (TokenId& token : tokens) token = roll(20) == 0 ? 1 : 0;
        runs.push_back(start(i, tokens, {.key = roll(2), .text = roll(4) == 0 ? 1u : 0u}));
      } else if (what == 3 && !runs.empty() && runs.size() < 4) {
        Run& from = runs[roll(uint32_t(runs.size()))];
        const uint32_t at = roll(from.computed + 1);
        if (auto table = kv_->fork(from.table, at, SequenceId{i})) {
          Run run(*kv_, i);
          run.table = std::move(*table);
          run.tokens.assign(from.tokens.begin(), from.tokens.begin() + at);
          run.computed = at;
          for (uint32_t n = 1 + roll(8); n > 0; --n) run.tokens.push_back(roll(2));
          runs.push_back(std::move(run));
        }
      } else if (!runs.empty()) {
        const uint32_t chosen = roll(uint32_t(runs.size()));
        Run& run = runs[chosen];
        expect_right_rows(run);
        const uint32_t left = uint32_t(run.tokens.size()) - run.computed;
        if (what < 8 && left > 0) {
          compute(run, run.computed + 1 + roll(std::min(left, 6u)));
        } else {
          finish(run, what == 8 ? KvCache::Reason::finished : KvCache::Reason::preempted);
          runs.erase(runs.begin() + chosen);
        }
      }
      if (HasFailure()) return;
    }
    for (Run& run : runs) finish(run);
    EXPECT_EQ(kv_->stats().held_pages, 0u);
    EXPECT_LE(kv_->salts(), 3u);
    EXPECT_GT(kv_->events().count(KvEventKind::evicted), 100u);
    EXPECT_GT(kv_->events().count(KvEventKind::copied), 100u);
  }

  std::unique_ptr<HostKv> kv_;
};

}  // namespace quire
