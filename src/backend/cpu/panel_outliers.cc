#include "backend/cpu/panel_outliers.h"

#include <vector>

#include "base/check.h"

namespace quire {

struct PanelOutliers::Memory {
  struct Rest {  // of a token's outliers in a span
    const Outlier* next;
    const Outlier* end;
    uint32_t token;
  };

  std::vector<OutlierUse> uses;
  std::vector<uint32_t> use_ends, columns, column_ends;
  std::vector<Rest> rests;
  alignas(64) float weights[kOutlierSpan * kPanelRows];

  void clear() {
    uses.clear();
    use_ends.clear();
    columns.clear();
    column_ends.clear();
  }

  // First the first of each token, then the second, and so on: sums that follow each other do not wait for each other.
  void list_uses() {
    while (!rests.empty()) {
      size_t left = 0;
      for (Rest& rest : rests) {
        OutlierUse use{};
        use.token = rest.token & (kMostTokens - 1);
        use.col = rest.next->col & (kOutlierSpan - 1);
        use.value = rest.next->value;
        uses.push_back(use);
        if (++rest.next != rest.end) rests[left++] = rest;
      }
      rests.resize(left);
    }
  }

  // Those of the uses from `first` on, each once.
  void list_columns(size_t first, size_t tokens) {
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
};

PanelOutliers::PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group,
                             size_t first_token, size_t tokens)
    : kernels_(kernels) {
  CHECK(tokens <= kMostTokens);
  thread_local Memory memory;
  const size_t cols = args.weight.cols;
  memory.clear();
  for (size_t span = 0; span < outlier_spans(cols); ++span) {
    for (size_t t = 0; t < tokens; ++t) {
      const Q8Row row(args.input + (first_token + t) * args.input_stride_bytes, cols, group);
      const Outlier* outliers = row.outliers + span * most_outliers(group);
      const size_t count = row.outlier_counts[span];
      if (count > 0) memory.rests.push_back({outliers, outliers + count, uint32_t(t)});
    }
    const size_t first = memory.uses.size();
    memory.list_uses();
    if (memory.uses.size() > first) memory.list_columns(first, tokens);
    memory.use_ends.push_back(uint32_t(memory.uses.size()));
    memory.column_ends.push_back(uint32_t(memory.columns.size()));
  }
  spans_ = memory.uses.empty() ? 0 : outlier_spans(cols);
  uses_ = memory.uses.data();
  use_ends_ = memory.use_ends.data();
  columns_ = memory.columns.data();
  column_ends_ = memory.column_ends.data();
  weights_ = memory.weights;
}

void PanelOutliers::add(const uint8_t* panel, float (*products)[kPanelRows]) const {
  uint32_t use = 0, column = 0;
  for (size_t span = 0; span < spans_; ++span) {
    kernels_.read(panel, span * kOutlierSpan, columns_ + column, column_ends_[span] - column, weights_);
    column = column_ends_[span];
    kernels_.add(uses_ + use, use_ends_[span] - use, weights_, products);
    use = use_ends_[span];
  }
}

}  // namespace quire
