#include "backend/cpu/matmul/panel_outliers.h"

#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kFewTokens = 4;

}  // namespace

// Tokens by how many outliers they have: then a CPU can foretell where those of a token end.
template <class Count>
void OutlierList::sort_tokens(size_t tokens, const Count& count_of) {
  order_.resize(tokens);
  if (tokens <= kFewTokens) {
    for (size_t t = 0; t < tokens; ++t) order_[t] = uint32_t(t);
    return;
  }
  ends_.assign(kOutlierSpan + 2, 0);
  for (size_t t = 0; t < tokens; ++t) ++ends_[count_of(t) + 1];
  for (size_t i = 1; i < ends_.size(); ++i) ends_[i] += ends_[i - 1];
  for (size_t t = 0; t < tokens; ++t) order_[ends_[count_of(t)]++] = uint32_t(t);
}

// Those of the uses from `first` on, each once.
void OutlierList::list_columns(size_t first, size_t tokens) {
  if (tokens == 1) {
    for (size_t i = first; i < uses.size(); ++i) columns.push_back(uses[i].col);
    return;
  }
  bool is_used[kOutlierSpan] = {};
  for (size_t i = first; i < uses.size(); ++i) is_used[uses[i].col] = true;
  for (uint32_t col = 0; col < kOutlierSpan; ++col) {
    if (is_used[col]) columns.push_back(col);
  }
}

void OutlierList::fill(const OutlierRows& rows) {
  CHECK(rows.tokens <= PanelOutliers::kMostTokens);
  uses.clear();
  use_ends.clear();
  columns.clear();
  column_ends.clear();
  const auto row = [&](size_t t) { return Q8Row(rows.first + t * rows.stride_bytes, rows.cols, rows.group); };
  for (size_t span = 0; span < outlier_spans(rows.cols); ++span) {
    const size_t first = uses.size();
    sort_tokens(rows.tokens, [&](size_t t) { return row(t).outlier_counts[span]; });
    for (const uint32_t t : order_) {
      const Q8Row of = row(t);
      const Outlier* outliers = of.outliers + span * most_outliers(rows.group);
      for (size_t i = 0; i < of.outlier_counts[span]; ++i) {
        OutlierUse use{};
        use.token = t & (PanelOutliers::kMostTokens - 1);
        use.col = outliers[i].col & (kOutlierSpan - 1);
        use.value = outliers[i].value;
        uses.push_back(use);
      }
    }
    if (uses.size() > first) list_columns(first, rows.tokens);
    use_ends.push_back(uint32_t(uses.size()));
    column_ends.push_back(uint32_t(columns.size()));
  }
}

void OutlierLists::clear() {
  used_ = 0;
}

const OutlierList& OutlierLists::of(const OutlierRows& rows) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < used_; ++i) {
    if (entries_[i]->rows == rows) return entries_[i]->list;
  }
  if (used_ == entries_.size()) entries_.push_back(std::make_unique<Entry>());
  Entry& entry = *entries_[used_++];
  entry.rows = rows;
  entry.list.fill(rows);
  return entry.list;
}

PanelOutliers::PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group,
                             size_t first_token, size_t tokens)
    : kernels_(kernels) {
  struct Memory {
    OutlierList own;
    alignas(64) float weights[kOutlierSpan * kPanelRows];
  };
  thread_local Memory memory;
  const OutlierRows rows{args.input + first_token * args.input_stride_bytes, args.input_stride_bytes,
                         args.weight.cols, group, tokens};
  // A list of few tokens is made sooner than the threads have waited for each other.
  if (args.outliers != nullptr && tokens > kFewTokens) {
    list_ = &args.outliers->of(rows);
  } else {
    memory.own.fill(rows);
    list_ = &memory.own;
  }
  weights_ = memory.weights;
}

void PanelOutliers::add(const uint8_t* panel, float (*products)[kPanelRows]) const {
  if (list_->uses.empty()) return;
  uint32_t use = 0, column = 0;
  for (size_t span = 0; span < list_->use_ends.size(); ++span) {
    const uint32_t use_end = list_->use_ends[span], column_end = list_->column_ends[span];
    if (use == use_end) continue;
    kernels_.read(panel, span * kOutlierSpan, list_->columns.data() + column, column_end - column, weights_);
    kernels_.add(list_->uses.data() + use, use_end - use, weights_, products);
    use = use_end;
    column = column_end;
  }
}

}  // namespace quire
