#include "engine/pruning/budget_run.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace quire {
namespace {

constexpr uint32_t kLooking = 8;  // more of them change little, and each costs its attention once more

}  // namespace

std::string why_positions_end(const ModelSpec& spec, const BackendTraits& backend) {
  if (spec.learned_positions) return "its positions are rows of a table";
  if (!backend.limits.rotated_keys)
    return fmt::format("the kernels of {} do not rotate keys that are stored", backend.device);
  for (const LayerSpec& layer : spec.layers) {
    const GqaSpec* attention = layer.attention();
    if (attention == nullptr || !attention->rope) continue;
    const bool norms = attention->query_key_norm != QueryKeyNorm::none;
    if (norms && attention->norm_order == HeadNormOrder::after_rotation)
      return "its keys are normed after they are rotated, and cannot be rotated again";
  }
  return {};
}

BudgetRun::BudgetRun(const BudgetOptions& options, const ModelSpec& spec, const KvLayout& layout,
                     uint32_t context, bool counts_anew)
    : options_(options),
      context_(context),
      counts_anew_(counts_anew),
      rows_(options.rows_of(layout)),
      step_(options.step_of(layout)) {
  if (rows_ > context) {
    throw Error("a budget of {} rows is more than the context of {} tokens that it is to go on beyond", rows_,
                context);
  }
  // Runs end where it is full: after the first time they are of so many tokens as go at a time, which may begin and end inside a page.
  at_once_ = rows_;
  for (const KvGroupLayout& group : layout.groups)
    at_once_ = std::max(at_once_, group.window + step_ + 2 * layout.node_tokens);
  if (options.policy == PruningPolicy::snap) {
    looking_ = std::min(kLooking, std::max(step_ / 2, 1u));
    scorer_ = std::make_unique<LastLook>(PruningOptions{.tokens = rows_}, spec, layout, rows_);
  }
  for (uint32_t l = 0; l < layout.places.size(); ++l) {
    if (layout.places[l].empty() || layout.at(layout.places[l].front()).shape.state) continue;
    const KvLayout::Place& place = layout.places[l].front();
    for (uint32_t h = 0; h < layout.at(place).shape.kv_heads; ++h)
      places_.push_back({l, h, layout.groups[place.group].keeps_all()});
  }
  heads_.resize(places_.size());
}

uint32_t BudgetRun::most_guesses(uint32_t rows) const {
  if (is_full(rows)) rows -= step_;  // some will have gone before the next token
  return first_seen() > rows ? first_seen() - rows - 1 : 0;
}

std::vector<bool> BudgetRun::leaving(const Head& head, std::span<const Choice::Row> rows) const {
  const uint32_t first = options_.pinned, end = uint32_t(rows.size()) - options_.window;
  std::vector<uint32_t> ages(end - first);
  std::iota(ages.begin(), ages.end(), first);
  if (scorer_) {
    const std::span<const float> sums = scorer_->sums(head.layer, head.head);
    std::vector<float> by_age;
    by_age.reserve(rows.size());
    for (const Choice::Row& row : rows) by_age.push_back(sums[row.row]);
    const std::vector<float> scores = pooled(by_age);
    const auto goes_first = [&](uint32_t a, uint32_t b) {
      // What is no number is worth nothing, and orders would not be orders with it.
      const float x = scores[a] == scores[a] ? scores[a] : 0, y = scores[b] == scores[b] ? scores[b] : 0;
      return x != y ? x < y : a < b;
    };
    std::ranges::nth_element(ages, ages.begin() + step_, goes_first);
  }
  std::vector<bool> leaving(rows.size());
  for (uint32_t i = 0; i < step_; ++i) leaving[ages[i]] = true;
  return leaving;
}

BudgetRun::Choice BudgetRun::choose() const {
  const uint32_t left = rows_ - step_;
  Choice choice;
  MovedRows& moved = choice.moved;
  moved.count = left;
  moved.of_head.resize(places_.size());
  choice.heads.resize(places_.size());
  uint32_t end = end_;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].sees_all) continue;
    std::vector<Choice::Row> rows = heads_[i];
    end = end_;
    for (uint32_t row = uint32_t(rows.size()); row < rows_; ++row) rows.push_back({row, end++});
    const std::vector<bool> goes = leaving(places_[i], rows);
    std::vector<uint32_t> holes;
    std::vector<Choice::Row*> movers;  // by age, which is their order too: they are the last there are
    for (size_t age = 0; age < rows.size(); ++age) {
      if (goes[age] && rows[age].row < left) holes.push_back(rows[age].row);
      if (!goes[age] && rows[age].row >= left) movers.push_back(&rows[age]);
    }
    std::ranges::sort(holes);
    CHECK(holes.size() == movers.size());
    for (size_t hole = 0; hole < holes.size(); ++hole) {
      moved.of_head[i].push_back({movers[hole]->row, holes[hole]});
      movers[hole]->row = holes[hole];
    }
    for (size_t age = 0; age < rows.size(); ++age) {
      if (!goes[age]) choice.heads[i].push_back(rows[age]);
    }
  }
  choice.end = end;
  choice.set_back = set_back_;
  choice.counted_anew = times_counted_anew_;
  if (!counts_anew_ || uint64_t(end) + step_ <= context_) return choice;
  moved.back.resize(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].sees_all) continue;
    moved.back[i].resize(left);
    for (uint32_t age = 0; age < left; ++age) {
      Choice::Row& row = choice.heads[i][age];
      moved.back[i][row.row] = row.position - age;
      row.position = age;
    }
  }
  moved.window_back = end - left;
  choice.end = left;
  choice.set_back = set_back_ + moved.window_back;
  ++choice.counted_anew;
  return choice;
}

void BudgetRun::take(Choice choice) {
  heads_ = std::move(choice.heads);
  end_ = choice.end;
  set_back_ = choice.set_back;
  times_counted_anew_ = choice.counted_anew;
  if (scorer_) scorer_->restart();
}

void BudgetRun::restart() {
  for (auto& rows : heads_) rows.clear();
  end_ = set_back_ = times_counted_anew_ = 0;
  if (scorer_) scorer_->restart();
}

}  // namespace quire
