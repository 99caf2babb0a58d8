#include "model/blocks/gathered.h"

#include "ranks/column_gather.h"

namespace quire {
namespace {

// What is multiplied is rounded row by row, and a rank has to have a whole row for that.
void round_whole_rows(const BlockStep& step, const Activation& rows) {
  if (rows.forms.bits == 0) return;
  const Norm none;
  step.backend.norm_quantize(
      {.stream = rows.f32, .branch = {}, .branch_gate = {}, .norm = &none, .rows = {}, .out = rows});
}

}  // namespace

Rows own_rows_of_product(const Rows& rows, RankPlace place) {
  const RowShare own = rows_of(rows.width, place);
  return rows.columns(own.begin, own.count);
}

Activation own_columns_of_product(const Activation& rows, RankPlace place) {
  if (place.is_alone()) return rows;
  return {.f32 = own_rows_of_product(rows.f32, place), .forms = {}};
}

void gather_activation(const BlockStep& step, const Activation& rows, size_t unit) {
  if (step.gather == nullptr) return;
  step.gather->gather(rows.f32, unit);
  round_whole_rows(step, rows);
}

void gather_product(const BlockStep& step, const Activation& rows) {
  if (step.gather == nullptr) return;
  step.gather->gather_rows_of_product(rows.f32);
  round_whole_rows(step, rows);
}

void gather_product(const BlockStep& step, const Rows& rows) {
  if (step.gather != nullptr) step.gather->gather_rows_of_product(rows);
}

}  // namespace quire
