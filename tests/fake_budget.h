#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "engine/pruning/budget_options.h"
#include "fake_backend.h"

namespace quire {

// What a FakeBackend's model says of a sequence that keeps to a budget, from its tokens alone: rows, what its last tokens look at and
// where rows go, all in the plainest way there is.
class FakeBudget {
 public:
  // `windows`: by layer, as FakeBackend::next has them. `looks`: so many query heads add up what they see.
  FakeBudget(const BudgetOptions& options, const KvLayout& layout, std::span<const uint32_t> windows,
             uint32_t looks, uint32_t context)
      : options_(options),
        rows_(options.rows_of(layout)),
        step_(options.step_of(layout)),
        context_(context),
        looks_(looks) {
    for (const uint32_t window : windows) layers_.push_back({window, {}, {}, {}, {}});
  }

  void push(TokenId token) {
    if (count() == rows_) let_go();
    const uint32_t looking =
        options_.policy == PruningPolicy::snap ? std::min(8u, std::max(step_ / 2, 1u)) : 0;
    const bool looks = count() >= rows_ - looking;
    for (Layer& layer : layers_) {
      const uint64_t before = layer.keys.empty() ? FakeBackend::kStart : layer.keys.back();
      layer.keys.push_back(mix(before, token));
      if (layer.window != 0) continue;
      layer.ages.push_back(uint32_t(layer.keys.size()) - 1);
      layer.seen.resize(layer.keys.size());
      for (size_t row = 0; looks && row < layer.keys.size(); ++row)
        layer.seen[row] += looks_ * (mix(layer.keys[row], position_) % 1000);
    }
    ++position_;
    ++tokens_;
    hash_ = mix(hash_, token);
  }

  TokenId next(uint64_t seed, uint32_t choice, size_t vocab) const {
    uint64_t state = 0;
    for (const Layer& layer : layers_) {
      uint64_t sum = 0;
      const size_t n = layer.keys.size();
      for (size_t row = layer.window == 0 || n <= layer.window ? 0 : n - layer.window; row < n; ++row)
        sum += mix(layer.keys[row], 1);
      state = mix(state, layer.window == FakeBackend::kState ? hash_ : sum);
    }
    return FakeBackend::draw(state, seed, choice, tokens_, vocab);
  }
  uint32_t times_let_go() const { return times_let_go_; }
  uint32_t times_counted_anew() const { return times_counted_anew_; }

 private:
  struct Layer {
    uint32_t window;
    std::vector<uint64_t> keys;
    std::vector<uint32_t> ages;   // rows, the oldest first; of layers that see everything, as the next
    std::vector<uint64_t> seen;   // by row
    std::vector<uint32_t> where;  // positions, by row
  };
  uint32_t count() const {
    for (const Layer& layer : layers_) {
      if (layer.window == 0) return uint32_t(layer.keys.size());
    }
    return 0;
  }

  void let_go() {
    ++times_let_go_;
    const uint32_t left = rows_ - step_;
    const bool anew = position_ + step_ > context_;
    for (Layer& layer : layers_) {
      if (layer.window != 0) {
        for (uint64_t& key : layer.keys) key = anew ? mix(key, position_ - left) : key;
        continue;
      }
      for (uint32_t at = position_ - (rows_ - uint32_t(layer.where.size())); layer.where.size() < rows_; ++at)
        layer.where.push_back(at);
      // Those that go, worst first.
      std::vector<size_t> places;
      for (size_t age = options_.pinned; age < rows_ - options_.window; ++age) places.push_back(age);
      const auto worth = [&](size_t age) {
        uint64_t sum = 0;
        for (size_t near = age < 3 ? 0 : age - 3; near < std::min<size_t>(age + 4, rows_); ++near)
          sum += layer.seen[layer.ages[near]];
        return sum;
      };
      if (options_.policy == PruningPolicy::snap) std::ranges::stable_sort(places, {}, worth);
      places.resize(step_);
      std::vector<uint32_t> gone;
      for (const size_t age : places) gone.push_back(layer.ages[age]);
      for (const uint32_t row : gone) std::erase(layer.ages, row);
      std::erase_if(gone, [&](uint32_t row) { return row >= left; });
      std::ranges::sort(gone);
      size_t hole = 0;
      for (uint32_t& row : layer.ages) {
        if (row < left) continue;
        layer.keys[gone[hole]] = layer.keys[row];
        layer.where[gone[hole]] = layer.where[row];
        row = gone[hole++];
      }
      layer.keys.resize(left);
      layer.where.resize(left);
      layer.seen.assign(left, 0);
      for (uint32_t age = 0; anew && age < left; ++age) {
        const uint32_t row = layer.ages[age], back = layer.where[row] - age;
        if (back > 0) layer.keys[row] = mix(layer.keys[row], back);
        layer.where[row] = age;
      }
    }
    if (!anew) return;
    position_ = left;
    ++times_counted_anew_;
  }

  const BudgetOptions options_;
  const uint32_t rows_, step_, context_, looks_;
  std::vector<Layer> layers_;
  uint32_t position_ = 0, tokens_ = 0;
  uint64_t hash_ = FakeBackend::kStart;
  uint32_t times_let_go_ = 0, times_counted_anew_ = 0;
};

}  // namespace quire
