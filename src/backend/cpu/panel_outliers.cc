#include "backend/cpu/panel_outliers.h"

#include <vector>

namespace quire {

struct PanelOutliers::Memory {
  std::vector<Piece> pieces;
  std::vector<uint32_t> ends;
  std::vector<uint32_t> columns;
  std::vector<uint8_t> is_listed;  // by column; all 0 between uses
  std::vector<float> weights;
};

PanelOutliers::PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group,
                             size_t first_token, size_t tokens)
    : kernels_(kernels), first_token_(first_token) {
  thread_local Memory memory;
  const size_t cols = args.weight.cols;
  memory.pieces.clear();
  memory.ends.clear();
  memory.columns.clear();
  if (memory.is_listed.size() < cols) memory.is_listed.resize(cols);
  if (memory.weights.size() < cols * kPanelRows) memory.weights.resize(cols * kPanelRows);
  for (size_t t = first_token; t < first_token + tokens; ++t) {
    add_row({args.input + t * args.input_stride_bytes, cols, group}, cols, memory);
    memory.ends.push_back(uint32_t(memory.pieces.size()));
  }
  for (uint32_t column : memory.columns) memory.is_listed[column] = 0;
  pieces_ = memory.pieces.data();
  ends_ = memory.ends.data();
  columns_ = memory.columns.data();
  column_count_ = memory.columns.size();
  weights_ = memory.weights.data();
}

void PanelOutliers::add_row(const Q8Row& row, size_t cols, Memory& memory) const {
  for (size_t span = 0; span < outlier_spans(cols); ++span) {
    const uint32_t count = row.outlier_counts[span], first = uint32_t(span * kOutlierSpan);
    if (count == 0) continue;
    const Outlier* outliers = row.outliers + span * kMostOutliers;
    memory.pieces.push_back({outliers, count, first});
    for (size_t i = 0; i < count; ++i) {
      uint8_t& is_listed = memory.is_listed[first + outliers[i].col];
      if (is_listed == 0) memory.columns.push_back(first + outliers[i].col);
      is_listed = 1;
    }
  }
}

void PanelOutliers::open(const uint8_t* panel) const {
  for (size_t i = 0; i < column_count_; ++i)
    kernels_.read(panel, columns_[i], weights_ + kPanelRows * columns_[i]);
}

void PanelOutliers::add(size_t token, size_t count, float (*products)[kPanelRows]) const {
  if (column_count_ == 0) return;
  const size_t first = token - first_token_;
  uint32_t piece = first == 0 ? 0 : ends_[first - 1];
  for (size_t t = 0; t < count; ++t) {
    for (; piece < ends_[first + t]; ++piece) {
      const Piece& at = pieces_[piece];
      kernels_.add(at.outliers, at.count, weights_ + kPanelRows * at.first_col, products[t]);
    }
  }
}

}  // namespace quire
