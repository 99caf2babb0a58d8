#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv_rows.h"
#include "backend/cpu/vector_math.h"
#include "base/check.h"

// Where a token looks, head by head. Written for clarity before speed: it is asked for a few tokens of a prompt only. Every
// score and every share depends on the token and the rows before it alone, whatever the threads.

namespace quire {
namespace {

// Of two rows padded with zeros to a multiple of four.
float dot(const float* a, const float* b, size_t width) {
  F32x4 sum = all4(0);
  for (size_t i = 0; i < width; i += 4) sum = multiply_add(load4(a + i), load4(b + i), sum);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Scores become shares of their sum; a sink takes part in it.
void softmax(std::span<float> scores, const float* sink) {
  float max = sink != nullptr ? *sink : -std::numeric_limits<float>::infinity();
  for (const float score : scores) max = std::max(max, score);
  double sum = sink != nullptr ? std::exp(*sink - max) : 0.0;
  for (float& score : scores) {
    score = std::exp(score - max);
    sum += score;
  }
  for (float& score : scores) score = float(score / sum);
}

}  // namespace

void CpuBackend::attention_shares(const AttentionSharesParams& params) {
  const KvLayerShape& shape = params.kv.layer->shape;
  const uint32_t run = batch_.run_of_token[params.token];
  const uint32_t row = batch_.runs[run].row_of(params.token, shape.window);
  const uint32_t first = shape.window == 0 || row < shape.window ? 0 : row + 1 - shape.window;
  const uint32_t page_tokens = params.kv.group->layout->page_tokens;
  const uint32_t group = params.heads / shape.kv_heads;
  CHECK(params.out.rows == params.heads && params.out.width > row);
  const uint32_t first_head = params.head.value_or(0);
  const uint32_t end_head = params.head ? *params.head + 1 : params.heads;
  CHECK(end_head <= params.heads);
  for (uint32_t h = first_head; h < end_head; ++h) std::fill_n(params.out.row(h), first, 0.0f);

  const size_t width = (shape.key_dim + 3) / 4 * 4;
  std::vector<float> queries(params.heads * width);  // padded
  for (uint32_t h = first_head; h < end_head; ++h)
    std::copy_n(params.query.row(params.token) + h * shape.key_dim, shape.key_dim, &queries[h * width]);

  const uint32_t first_page = first / page_tokens, pages = row / page_tokens + 1 - first_page;
  const uint32_t first_kv_head = first_head / group, end_kv_head = (end_head - 1) / group + 1;
  pool_.parallel_for(size_t(pages) * (end_kv_head - first_kv_head), 4, [&](size_t begin, size_t end) {
    std::vector<float> key(width);
    for (size_t i = begin; i < end; ++i) {
      const uint32_t kv_head = first_kv_head + uint32_t(i / pages), page = first_page + uint32_t(i % pages);
      const uint32_t group_begin = std::max(first_head, kv_head * group);
      const uint32_t group_end = std::min(end_head, (kv_head + 1) * group);
      const uint32_t last = std::min(row, (page + 1) * page_tokens - 1);
      for (uint32_t at = std::max(first, page * page_tokens); at <= last; ++at) {
        load_kv_row(shape.key_format, params.kv.key_row(run, kv_head, at),
                    std::span(key).first(shape.key_dim));
        for (uint32_t h = group_begin; h < group_end; ++h) {
          float score = params.scale * dot(&queries[h * width], key.data(), width);
          if (params.soft_cap > 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
          params.out.row(h)[at] = score;
        }
      }
    }
  });
  pool_.parallel_for(end_head - first_head, 1, [&](size_t begin, size_t end) {
    for (size_t h = first_head + begin; h < first_head + end; ++h)
      softmax({params.out.row(h) + first, size_t(row) + 1 - first},
              params.sinks ? params.sinks.vector() + h : nullptr);
  });
}

}  // namespace quire
