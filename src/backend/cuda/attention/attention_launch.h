#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/matmul/tensor_map.h"

// What the fast attention kernels share before they are launched.

namespace quire::cuda {

// Rows that one copy brings, a power of two from 16 to `most`: a copy must not leave a page.
inline uint32_t box_rows_of(uint32_t page_tokens, uint32_t most) {
  while (page_tokens % most != 0) most /= 2;
  return most;
}

// [pages, kv_heads, rows, head_dim]. Of codes there is none: they are copied as they lie.
inline CUtensorMap map_of_keys(const PagedRows& rows, KvFormat format, uint32_t box_rows) {
  if (!is_float(format)) return {};
  return make_tensor_map({.data = rows.layer,
                          .sizes = {rows.key_dim, rows.page_tokens, rows.kv_heads, rows.pages},
                          .strides_bytes = {rows.key_row_bytes, rows.head_bytes, rows.page_bytes},
                          .box = {64, box_rows, 1, 1}});
}
inline CUtensorMap map_of_values(const PagedRows& rows, KvFormat format, uint32_t box_rows) {
  if (!is_float(format)) return {};
  return make_tensor_map({.data = rows.layer + rows.page_tokens * rows.key_row_bytes,
                          .sizes = {rows.value_dim, rows.page_tokens, rows.kv_heads, rows.pages},
                          .strides_bytes = {rows.value_row_bytes, rows.head_bytes, rows.page_bytes},
                          .box = {64, box_rows, 1, 1}});
}

}  // namespace quire::cuda
