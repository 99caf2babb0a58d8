#pragma once

#include <vector>

#include "ranks/ranks.h"
#include "tensor/tensor_view.h"

namespace quire {

// Brings together rows of which every rank has computed the columns that are its own. One thread.
class ColumnGather {
 public:
  // `ranks` must outlive it.
  explicit ColumnGather(Ranks& ranks) : ranks_(ranks) {}

  // Columns were divided by units (share_of).
  void gather(const Rows& rows, size_t unit, Ranks::To to = Ranks::To::all);
  // Those of a product's rows (rows_of).
  void gather_rows_of_product(const Rows& rows, Ranks::To to = Ranks::To::all) {
    gather(rows, row_unit(rows.width, ranks_.count()), to);
  }

 private:
  Ranks& ranks_;
  std::vector<float> packed_;  // of several rows, rank by rank
  std::vector<RowShare> shares_;
  std::vector<size_t> pieces_;
};

}  // namespace quire
