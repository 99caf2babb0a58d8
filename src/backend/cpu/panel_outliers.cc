#include "backend/cpu/panel_outliers.h"

#include <vector>

namespace quire {

struct PanelOutliers::Memory {
  std::vector<Outlier> outliers;
  std::vector<uint32_t> ends, columns, column_ends;
  alignas(64) float weights[kOutlierSpan * kPanelRows];

  // Those of a span that the outliers from `first` on are in, each once.
  void list_columns(size_t first, size_t tokens) {
    if (tokens == 1) {
      for (size_t i = first; i < outliers.size(); ++i) columns.push_back(outliers[i].col);
      return;
    }
    bool is_used[kOutlierSpan] = {};
    for (size_t i = first; i < outliers.size(); ++i) is_used[outliers[i].col] = true;
    for (uint32_t col = 0; col < kOutlierSpan; ++col) {
      if (is_used[col]) columns.push_back(col);
    }
  }
};

PanelOutliers::PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group,
                             size_t first_token, size_t tokens)
    : kernels_(kernels), first_token_(first_token), tokens_(tokens) {
  thread_local Memory memory;
  const size_t cols = args.weight.cols;
  memory.outliers.clear();
  memory.ends.clear();
  memory.columns.clear();
  memory.column_ends.clear();
  for (size_t span = 0; span < outlier_spans(cols); ++span) {
    const size_t first = memory.outliers.size();
    for (size_t t = first_token; t < first_token + tokens; ++t) {
      const Q8Row row(args.input + t * args.input_stride_bytes, cols, group);
      const Outlier* outliers = row.outliers + span * most_outliers(group);
      memory.outliers.insert(memory.outliers.end(), outliers, outliers + row.outlier_counts[span]);
      memory.ends.push_back(uint32_t(memory.outliers.size()));
    }
    if (memory.outliers.size() > first) memory.list_columns(first, tokens);
    memory.column_ends.push_back(uint32_t(memory.columns.size()));
  }
  spans_ = memory.columns.empty() ? 0 : outlier_spans(cols);
  outliers_ = memory.outliers.data();
  ends_ = memory.ends.data();
  columns_ = memory.columns.data();
  column_ends_ = memory.column_ends.data();
  weights_ = memory.weights;
}

void PanelOutliers::open(size_t span, const uint8_t* panel) const {
  for (uint32_t i = span == 0 ? 0 : column_ends_[span - 1]; i < column_ends_[span]; ++i)
    kernels_.read(panel, span * kOutlierSpan + columns_[i], weights_ + kPanelRows * columns_[i]);
}

void PanelOutliers::add(size_t span, size_t token, size_t count, float (*products)[kPanelRows]) const {
  const uint32_t* ends = ends_ + span * tokens_ + (token - first_token_);
  uint32_t begin = ends == ends_ ? 0 : ends[-1];
  for (size_t t = 0; t < count; begin = ends[t], ++t) {
    if (ends[t] > begin) kernels_.add(outliers_ + begin, ends[t] - begin, weights_, products[t]);
  }
}

}  // namespace quire
