#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/norm.h"
#include "base/check.h"

// Rows of several tokens. What a row is made of are rows of another stream, which are read by their places in the sequence and summed in
// the order of the tokens: so neither the chunks that they came in nor anything beside them can be seen in it.

namespace quire {
namespace {

// What a thread works in; it grows and stays.
struct CompressRoom {
  std::vector<float> most, sum, total;
};

class RowOfTokens {
 public:
  RowOfTokens(const CompressRowsParams& params, uint32_t run, CompressRoom& room)
      : params_(params),
        run_(run),
        room_(room),
        stride_(params.kv.layer->shape.stride),
        wide_(params.inputs.layer->shape.key_dim),
        width_(params.kv.layer->shape.query_dim()) {}

  // The row whose last token has this row among the inputs, unnormed.
  std::span<float> make(uint32_t last) {
    room_.most.assign(width_, -INFINITY);
    room_.sum.assign(width_, 0.0f);
    room_.total.assign(width_, 0.0f);
    const uint32_t first = last + 1 - stride_;
    const bool overlaps = wide_ != width_;
    const auto visit = [&](const auto& use) {
      if (overlaps && first > 0) each(first - stride_, 0, use);
      each(first, overlaps ? width_ : 0, use);
    };
    visit([&](const float*, const float* gate, const float* bias) {
      for (size_t i = 0; i < width_; ++i) room_.most[i] = std::max(room_.most[i], gate[i] + bias[i]);
    });
    visit([&](const float* value, const float* gate, const float* bias) {
      for (size_t i = 0; i < width_; ++i) {
        const float share = std::exp(gate[i] + bias[i] - room_.most[i]);
        room_.sum[i] += share;
        room_.total[i] += share * value[i];
      }
    });
    for (size_t i = 0; i < width_; ++i) room_.total[i] /= room_.sum[i];
    return room_.total;
  }

 private:
  // The part of the inputs from column `column` on, of the tokens of one row.
  template <class Use>
  void each(uint32_t first, size_t column, const Use& use) const {
    for (uint32_t i = 0; i < stride_; ++i) {
      const auto* value = reinterpret_cast<const float*>(params_.inputs.key_row(run_, 0, first + i));
      const auto* gate = reinterpret_cast<const float*>(params_.inputs.value_row(run_, 0, first + i));
      use(value + column, gate + column, params_.bias.vector() + i * wide_ + column);
    }
  }

  const CompressRowsParams& params_;
  const uint32_t run_;
  CompressRoom& room_;
  const uint32_t stride_;
  const size_t wide_, width_;  // of an input, and of a row
};

}  // namespace

void CpuBackend::compress_rows(const CompressRowsParams& params) {
  const KvLayerShape &in = params.inputs.layer->shape, &out = params.kv.layer->shape;
  const size_t width = out.query_dim(), pairs = params.cos.width;
  CHECK(in.kv_heads == 1 && in.stride == 1 && in.key_dim == in.value_dim && in.key_format == KvFormat::f32 &&
        in.value_format == KvFormat::f32);
  CHECK(out.kv_heads == 1 && (out.key_dim == 0 || out.value_dim == 0) && 2 * pairs <= width);
  CHECK(in.key_dim == width || in.key_dim == 2 * width);
  CHECK(in.window == 0 || in.window >= in.key_dim / width * out.stride);
  CHECK(params.bias.view.rows * params.bias.view.cols == size_t(out.stride) * in.key_dim);
  pool_.parallel_for(batch_.tokens.size(), 1, [&](size_t begin, size_t end) {
    thread_local CompressRoom room;
    for (size_t t = begin; t < end; ++t) {
      const uint32_t run = batch_.run_of_token[t];
      const uint32_t last = params.inputs.head_row(run, 0, batch_.runs[run].row_of(uint32_t(t)));
      if ((last + 1) % out.stride != 0) continue;
      const std::span<float> row = RowOfTokens(params, run, room).make(last);
      norm_row(params.norm, row.data(), row.data(), width);
      rotate_pairs(row.data() + width - 2 * pairs, params.cos.row(t), params.sin.row(t), pairs,
                   params.pairing);
      const uint32_t at = last / out.stride;
      if (out.key_dim > 0)
        store_kv_row(out.key_format, row, params.kv.key_row(run, 0, at));
      else
        store_kv_row(out.value_format, row, params.kv.value_row(run, 0, at));
    }
  });
}

}  // namespace quire
