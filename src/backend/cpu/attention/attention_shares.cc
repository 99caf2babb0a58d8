#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/vector_math.h"
#include "base/check.h"

// Where a token looks, head by head. Written for clarity before speed: it is asked for a few tokens of a prompt only. Every
// score and every share depends on the token and the rows before it alone, whatever the threads.

namespace quire {
namespace {

constexpr size_t kMostTappedKeys = size_t(8) << 20;  // floats that are kept from one token to the next

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

// Head by head, in order: a sum is the same whatever else the step computes.
void join_tapped(const Tap& tap, const Rows& seen, std::span<float> values) {
  const size_t known = std::min<size_t>(tap.width, seen.width);
  for (uint32_t i = 0; i < tap.heads; ++i) {
    float* to = values.data() + size_t(i / tap.heads_per_row) * tap.width;
    const float* from = seen.row(i);
    switch (tap.join) {
      case Tap::Join::store:
        std::copy_n(from, known, to);
        std::fill(to + known, to + tap.width, 0.0f);
        break;
      case Tap::Join::sum:
        for (size_t j = 0; j < known; ++j) to[j] += from[j];
        break;
      case Tap::Join::most:
        for (size_t j = 0; j < known; ++j) to[j] = std::max(to[j], from[j]);
        break;
    }
  }
}

}  // namespace

Rows CpuBackend::tap_rows(size_t rows, size_t width) {
  tapped_.resize(std::max(tapped_.size(), rows * width));
  return {tapped_.data(), rows, width, width};
}

void CpuBackend::TappedKeys::begin(const void* of_layer, uint32_t of_run, size_t row_width,
                                   uint32_t kv_heads) {
  if (layer == of_layer && run == of_run && width == row_width) return;
  for (Head& head : heads) {
    head.rows = 0;
    if (width != row_width) head.values.clear();  // what pads a row is nought
  }
  heads.resize(kv_heads);
  layer = of_layer;
  run = of_run;
  width = row_width;
}

Rows CpuBackend::attention_shares(const AttendParams& params, uint32_t token, uint32_t first_head,
                                  uint32_t heads) {
  const KvLayerShape& shape = params.kv.layer->shape;
  const uint32_t run = batch_.run_of_token[token];
  const uint32_t page_tokens = params.kv.group->layout->page_tokens;
  const uint32_t group = params.heads / shape.kv_heads;
  const uint32_t end_head = first_head + heads;
  CHECK(heads > 0 && end_head <= params.heads);
  struct Piece {
    uint32_t kv_head, begin, end;  // rows of one page
  };
  struct Seen {
    uint32_t first, row;  // by a KV head: a token's own is the last
  };
  std::vector<Piece> pieces;
  std::vector<Seen> seen(shape.kv_heads);
  uint32_t last = 0;
  for (uint32_t h = first_head / group; h <= (end_head - 1) / group; ++h) {
    const uint32_t row = params.kv.head_row(run, h, batch_.runs[run].row_of(token));
    const uint32_t in_window = shape.window == 0 || row < shape.window ? 0 : row + 1 - shape.window;
    const uint32_t first =
        params.chunk == 0 ? in_window : std::max(in_window, row / params.chunk * params.chunk);
    last = std::max(last, row);
    seen[h] = {first, row};
    for (uint32_t begin = first, end; begin <= row; begin = end) {
      end = std::min((begin / page_tokens + 1) * page_tokens, row + 1);
      pieces.push_back({h, begin, end});
    }
  }
  const Rows out = tap_rows(heads, size_t(last) + 1);
  // Padded; what a key goes on with begins at a multiple of four.
  const size_t key_width = (shape.key_dim + 3) / 4 * 4;
  const size_t width = key_width + (shape.key_goes_on ? (shape.value_dim + 3) / 4 * 4 : 0);
  std::vector<float> queries(heads * width);
  for (uint32_t i = 0; i < heads; ++i) {
    const uint32_t h = first_head + i;
    const float* query = params.query.row(token) + h * shape.query_dim();
    std::copy_n(query, shape.key_dim, &queries[i * width]);
    if (shape.key_goes_on)
      std::copy_n(query + shape.key_dim, shape.value_dim, &queries[i * width + key_width]);
    const auto [first, row] = seen[h / group];
    std::fill_n(out.row(i), first, 0.0f);
    std::fill(out.row(i) + row + 1, out.row(i) + out.width, 0.0f);
  }
  tapped_keys_.begin(params.kv.layer, run, width, shape.kv_heads);
  std::vector<bool> stay(shape.kv_heads);
  for (uint32_t h = first_head / group; h <= (end_head - 1) / group; ++h) {
    const size_t rows = size_t(seen[h].row) + 1;
    std::vector<float>& values = tapped_keys_.heads[h].values;
    stay[h] = seen[h].first == 0 && rows * width <= kMostTappedKeys / shape.kv_heads;
    if (stay[h]) values.resize(std::max(values.size(), rows * width));
  }
  pool_.parallel_for(pieces.size(), 4, [&](size_t begin, size_t end) {
    std::vector<float> read(width);
    for (size_t i = begin; i < end; ++i) {
      const uint32_t kv_head = pieces[i].kv_head;
      TappedKeys::Head& keys = tapped_keys_.heads[kv_head];
      const uint32_t group_begin = std::max(first_head, kv_head * group) - first_head;
      const uint32_t group_end = std::min(end_head, (kv_head + 1) * group) - first_head;
      for (uint32_t at = pieces[i].begin; at < pieces[i].end; ++at) {
        const std::span<float> key =
            stay[kv_head] ? std::span(keys.values).subspan(at * width, width) : std::span(read);
        const bool is_there = stay[kv_head] && at < keys.rows;
        if (!is_there)
          load_kv_row(shape.key_format, params.kv.key_row(run, kv_head, at), key.first(shape.key_dim));
        if (!is_there && shape.key_goes_on)
          load_kv_row(shape.value_format, params.kv.value_row(run, kv_head, at),
                      key.subspan(key_width, shape.value_dim));
        for (uint32_t h = group_begin; h < group_end; ++h) {
          float score = params.scale * dot(&queries[h * width], key.data(), width);
          if (params.soft_cap > 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
          if (!params.slopes.empty())
            score = std::fma(-params.slopes[first_head + h], float(seen[kv_head].row - at), score);
          out.row(h)[at] = score;
        }
      }
    }
  });
  for (uint32_t h = 0; h < shape.kv_heads; ++h) {
    if (stay[h]) tapped_keys_.heads[h].rows = std::max(tapped_keys_.heads[h].rows, seen[h].row + 1);
  }
  const uint32_t block = std::max(params.block, 1u);
  if (params.most > 0 && last / block >= params.most) {
    // Rows that were not chosen have no share.
    for (uint32_t i = 0; i < heads; ++i) {
      const size_t chooser = size_t(token) * shape.kv_heads + (first_head + i) / group;
      std::vector<bool> kept(out.width / block + 1);
      for (const uint32_t at : params.chosen.subspan(chooser * params.most, params.most)) kept[at] = true;
      for (size_t at = 0; at < out.width; ++at)
        if (!kept[at / block]) out.row(i)[at] = -std::numeric_limits<float>::infinity();
    }
  }
  pool_.parallel_for(heads, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto [first, row] = seen[(first_head + i) / group];
      softmax({out.row(i) + first, size_t(row) + 1 - first},
              params.sinks ? params.sinks.vector() + first_head + i : nullptr);
    }
  });
  return out;
}

Rows CpuBackend::unturned_queries(const AttendParams& params, uint32_t token, uint32_t first_head,
                                  uint32_t heads) {
  const KvLayerShape& shape = params.kv.layer->shape;
  const uint32_t dim = shape.query_dim();
  const Rows out = tap_rows(heads, dim);
  for (uint32_t i = 0; i < heads; ++i) {
    std::copy_n(params.query.row(token) + (first_head + i) * dim, dim, out.row(i));
    if (is_turned(shape.key_format)) turn_kv_row({out.row(i), shape.key_dim});
    if (shape.key_goes_on && is_turned(shape.value_format))
      turn_kv_row({out.row(i) + shape.key_dim, shape.value_dim});
  }
  return out;
}

void CpuBackend::tap(const Tap& tap, const AttendParams& attend, std::span<float> values) {
  const Rows seen = tap.what == Tap::What::shares
                        ? attention_shares(attend, tap.token, tap.first_head, tap.heads)
                        : unturned_queries(attend, tap.token, tap.first_head, tap.heads);
  join_tapped(tap, seen, values.subspan(tap.at, size_t(tap.rows()) * tap.width));
}

}  // namespace quire
