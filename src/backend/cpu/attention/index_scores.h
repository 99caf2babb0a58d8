#pragma once

#include <span>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

namespace quire {

// What the heads of an index make of the rows of some pages, for one token: the sum of weights[h] * max(query[h] . key, 0), in the order
// that attend.h says. Whole pages: there is room for the rows behind the last, which count for nothing.
struct IndexScores {
  const KvView& kv;  // one head, and keys alone
  uint32_t run;
  uint32_t rows;  // that the token sees
  uint32_t begin_page, end_page;
  const float* query;              // [heads, key_dim]
  std::span<const float> weights;  // [heads]
  float* scores;                   // [rows of the pages]
};
void score_index(const IndexScores& params, void (*attend)(const AttendArgs& args));

}  // namespace quire
