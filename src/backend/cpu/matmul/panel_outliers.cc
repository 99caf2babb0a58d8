#include "backend/cpu/matmul/panel_outliers.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kFewTokens = 4;
constexpr size_t kColumnTokens = 32;  // up to so many, columns that several of them use are few

Q8Row row_of(const OutlierRows& rows, size_t t) {
  return {rows.first + t * rows.stride_bytes, rows.cols, rows.group};
}

OutlierUse use_of(size_t token, const Outlier& outlier) {
  OutlierUse use{};
  use.token = token & (PanelOutliers::kMostTokens - 1);
  use.col = outlier.col & (kOutlierSpan - 1);
  use.value = outlier.value;
  return use;
}

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
  for (size_t span = 0; span < outlier_spans(rows.cols); ++span) {
    if (rows.order == OutlierOrder::by_column) {
      fill_by_column(rows, span);
    } else {
      fill_by_token(rows, span);
    }
    use_ends.push_back(uint32_t(uses.size()));
    column_ends.push_back(uint32_t(columns.size()));
  }
}

void OutlierList::fill_by_token(const OutlierRows& rows, size_t span) {
  const size_t first = uses.size();
  sort_tokens(rows.tokens, [&](size_t t) { return row_of(rows, t).outlier_counts[span]; });
  for (const uint32_t t : order_) {
    const Q8Row row = row_of(rows, t);
    const Outlier* outliers = row.outliers + span * most_outliers(rows.group);
    for (size_t i = 0; i < row.outlier_counts[span]; ++i) uses.push_back(use_of(t, outliers[i]));
  }
  if (uses.size() > first) list_columns(first, rows.tokens);
}

void OutlierList::fill_by_column(const OutlierRows& rows, size_t span) {
  const auto each = [&](const auto& visit) {
    for (size_t t = 0; t < rows.tokens; ++t) {
      const Q8Row row = row_of(rows, t);
      const Outlier* outliers = row.outliers + span * most_outliers(rows.group);
      for (size_t i = 0; i < row.outlier_counts[span]; ++i) visit(use_of(t, outliers[i]));
    }
  };
  ends_.assign(kOutlierSpan + 1, 0);
  each([&](const OutlierUse& use) { ++ends_[use.col + 1]; });
  for (size_t i = 1; i < ends_.size(); ++i) ends_[i] += ends_[i - 1];
  const size_t first = uses.size();
  uses.resize(first + ends_.back());
  each([&](const OutlierUse& use) { uses[first + ends_[use.col]++] = use; });
}

void OutlierLists::clear() {
  used_ = 0;
}

SharedOutlierList* OutlierLists::find(const OutlierRows& rows) {
  for (size_t i = 0; i < used_; ++i) {
    if (entries_[i]->rows_ == rows) return entries_[i].get();
  }
  return nullptr;
}

const SharedOutlierList& OutlierLists::begin(const OutlierRows& rows) {
  std::unique_lock lock(mutex_);
  if (const SharedOutlierList* found = find(rows)) return *found;
  if (used_ == entries_.size()) entries_.push_back(std::make_unique<SharedOutlierList>());
  SharedOutlierList& entry = *entries_[used_++];
  entry.rows_ = rows;
  entry.is_made_.store(false, std::memory_order_relaxed);
  lock.unlock();
  const auto let_go = [&] {
    entry.is_made_.store(true, std::memory_order_release);
    entry.is_made_.notify_all();
  };
  try {
    entry.list_.fill(rows);
  } catch (...) {  // of memory that there is not: the step fails, but nobody may wait for ever
    entry.list_.uses.clear();
    let_go();
    throw;
  }
  let_go();
  return entry;
}

PanelOutliers::PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group,
                             size_t first_token, size_t tokens)
    : kernels_(kernels),
      is_by_column_(kernels.add_by_column != nullptr && tokens > kFewTokens && tokens <= kColumnTokens) {
  struct Memory {
    OutlierList own;
    alignas(64) float weights[kOutlierSpan * kPanelRows];
  };
  thread_local Memory memory;
  const OutlierRows rows{args.input + first_token * args.input_stride_bytes,
                         args.input_stride_bytes,
                         args.weight.cols,
                         group,
                         tokens,
                         is_by_column_ ? OutlierOrder::by_column : OutlierOrder::by_token};
  // A list of few tokens is made sooner than the threads have waited for each other.
  if (args.outliers != nullptr && tokens > kFewTokens) {
    shared_ = &args.outliers->begin(rows);
  } else {
    memory.own.fill(rows);
    own_ = &memory.own;
  }
  weights_ = memory.weights;
}

void PanelOutliers::add(const uint8_t* panel, float (*products)[kPanelRows]) const {
  if (is_by_column_) {
    return add_to({.panel = panel, .panel_bytes = 0, .panels = 1, .out = products[0], .stride = kPanelRows});
  }
  const OutlierList& list = this->list();
  uint32_t use = 0, column = 0;
  for (size_t span = 0; use < list.uses.size(); ++span) {
    const uint32_t use_end = list.use_ends[span], column_end = list.column_ends[span];
    if (use == use_end) continue;
    kernels_.read(panel, span * kOutlierSpan, list.columns.data() + column, column_end - column, weights_);
    kernels_.add(list.uses.data() + use, use_end - use, weights_, products);
    use = use_end;
    column = column_end;
  }
}

void PanelOutliers::add_to(const OutlierProducts& products) const {
  const OutlierList& list = this->list();
  uint32_t use = 0;
  for (size_t span = 0; use < list.uses.size(); ++span) {
    const uint32_t use_end = list.use_ends[span];
    if (use == use_end) continue;
    kernels_.add_by_column(products, span * kOutlierSpan, list.uses.data() + use, use_end - use);
    use = use_end;
  }
}

void PanelStore::put(size_t panel, float (*products)[kPanelRows]) {
  const size_t first = panel * kPanelRows;
  const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
  const bool waits = outliers_.takes_several() && to - from == kPanelRows;
  if (!waits) outliers_.add(packed(panel), products);
  for (size_t t = 0; t < tokens_; ++t) {
    float* out = args_.out + (token_ + t) * args_.out_stride;
    std::memcpy(out + from, products[t] + (from - first), (to - from) * sizeof(float));
  }
  if (!waits) return;
  if (stored_ == 0) first_ = panel;
  CHECK(panel == first_ + stored_);
  if (++stored_ == kOutlierPanels) finish();
}

void PanelStore::finish() {
  if (stored_ == 0) return;
  outliers_.add_to({.panel = packed(first_),
                    .panel_bytes = panel_bytes_,
                    .panels = stored_,
                    .out = args_.out + token_ * args_.out_stride + first_ * kPanelRows,
                    .stride = args_.out_stride});
  stored_ = 0;
}

}  // namespace quire
