#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_math.h"
#include "kv/layout/kv_layout.h"
#include "kv/layout/kv_view.h"

namespace quire::cuda {

// One layer's rows in the pages of its group, as kernels find them: the same bytes in the same places as on the CPU.
struct PagedRows {
  std::byte* layer = nullptr;  // the first page, at the layer's offset
  size_t page_bytes = 0, head_bytes = 0;
  size_t key_row_bytes = 0, value_row_bytes = 0;
  uint32_t page_tokens = 0;
  uint32_t pages = 0;  // of the pool
  uint32_t kv_heads = 0, key_dim = 0, value_dim = 0;
  bool key_goes_on = false;  // KvStream::key_goes_on

  QUIRE_BOTH uint32_t query_dim() const { return key_goes_on ? key_dim + value_dim : key_dim; }

  QUIRE_BOTH std::byte* key_row(uint32_t page, uint32_t head, uint32_t row) const {
    return layer + size_t(page) * page_bytes + head * head_bytes + row * key_row_bytes;
  }
  QUIRE_BOTH std::byte* value_row(uint32_t page, uint32_t head, uint32_t row) const {
    return key_row(page, head, 0) + page_tokens * key_row_bytes + row * value_row_bytes;
  }
};

inline PagedRows paged_rows(const KvGroupLayout& layout, uint32_t slot, std::byte* pages, uint32_t count) {
  const KvLayerLayout& layer = layout.layers[slot];
  return {.layer = pages + layer.offset,
          .page_bytes = layout.page_bytes,
          .head_bytes = layer.head_bytes,
          .key_row_bytes = layer.key_row_bytes,
          .value_row_bytes = layer.value_row_bytes,
          .page_tokens = layout.page_tokens,
          .pages = count,
          .kv_heads = layer.shape.kv_heads,
          .key_dim = layer.shape.key_dim,
          .value_dim = layer.shape.value_dim,
          .key_goes_on = layer.shape.key_goes_on};
}

}  // namespace quire::cuda
