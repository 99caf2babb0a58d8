#include <cmath>
#include <vector>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/norm.h"
#include "base/check.h"

namespace quire {

void rotate_pairs(float* values, const float* cos, const float* sin, size_t pairs, RopePairing pairing) {
  const size_t step = pairing == RopePairing::interleaved ? 2 : 1;
  const size_t partner = pairing == RopePairing::interleaved ? 1 : pairs;
  for (size_t i = 0; i < pairs; ++i) {
    float& a = values[i * step];
    float& b = values[i * step + partner];
    const float x = a;
    const float y = b;
    a = x * cos[i] - y * sin[i];
    b = x * sin[i] + y * cos[i];
  }
}

namespace {

void norm_heads(const Norm* norm, const RopeStoreParams& params, float* row, size_t width) {
  if (norm == nullptr) return;
  const size_t weights = norm->weight ? norm->weight.view.cols : 0;
  const size_t span = params.norm_span != 0 ? params.norm_span : weights;
  CHECK(span == width || span == params.head_dim);
  for (size_t begin = 0; begin < width; begin += span)
    norm_row(*norm, row + begin, row + begin, span, weights == width ? begin : 0);
}

// Norms and rotates the heads of a row, in either order.
void turn_heads(const RopeStoreParams& params, const Norm* norm, float* row, size_t width, size_t head_dim,
                size_t token) {
  if (params.norm_order == HeadNormOrder::before_rotation) norm_heads(norm, params, row, width);
  if (params.cos) {
    for (size_t h = 0; h < width; h += head_dim)
      rotate_pairs(row + h, params.cos.row(token), params.sin.row(token), params.cos.width, params.pairing);
  }
  if (params.norm_order == HeadNormOrder::after_rotation) norm_heads(norm, params, row, width);
}

void turn_query(const KvLayerShape& shape, float* query) {
  if (is_turned(shape.key_format)) turn_kv_row({query, shape.key_dim});
  if (shape.key_goes_on && is_turned(shape.value_format))
    turn_kv_row({query + shape.key_dim, shape.value_dim});
}

}  // namespace

void CpuBackend::rope_table(const RopeTableParams& params) {
  const size_t pairs = params.inverse_frequencies.size();
  for (size_t t = 0; t < batch_.tokens.size(); ++t) {
    float* cos = params.cos.row(t);
    float* sin = params.sin.row(t);
    const double position = double(batch_.positions[t] / params.step * params.step);
    for (size_t i = 0; i < pairs; ++i) {
      const double angle = position * double(params.inverse_frequencies[i]);
      cos[i] = float(std::cos(angle) * params.scale);
      sin[i] = float(std::sin(angle) * params.scale);
    }
  }
}

void CpuBackend::rotate_heads(const RotateHeadsParams& params) {
  const size_t pairs = params.cos.width, dim = params.head_dim;
  CHECK(params.first + 2 * pairs <= dim && params.rows.width % dim == 0);
  pool_.parallel_for(params.rows.rows, 1, [&](size_t begin, size_t end) {
    std::vector<float> sines(pairs);
    for (size_t t = begin; t < end; ++t) {
      const float sign = params.turn == RotateHeadsParams::Turn::back ? -1.0f : 1.0f;
      for (size_t i = 0; i < pairs; ++i) sines[i] = sign * params.sin.row(t)[i];
      float* row = params.rows.row(t);
      for (size_t h = 0; h < params.rows.width; h += dim)
        rotate_pairs(row + h + params.first, params.cos.row(t), sines.data(), pairs, params.pairing);
    }
  });
}

void CpuBackend::rope_store(const RopeStoreParams& params) {
  const KvLayerShape& shape = params.kv.layer->shape;
  CHECK(params.head_dim == shape.query_dim() && params.query.width % params.head_dim == 0);
  CHECK(!params.key || (params.key.width == shape.kv_heads * shape.key_dim &&
                        params.value.width == shape.kv_heads * shape.value_dim));
  const auto store = [&](KvFormat format, std::span<const float> values, std::byte* out) {
    if (format == KvFormat::f16) {
      kernels_.to_f16(values.data(), values.size(), reinterpret_cast<uint16_t*>(out));
    } else {
      store_kv_row(format, values, out);
    }
  };
  pool_.parallel_for(batch_.tokens.size(), 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* query = params.query.row(t);
      float* key = params.key ? params.key.row(t) : nullptr;
      turn_heads(params, params.query_norm, query, params.query.width, params.head_dim, t);
      if (key != nullptr) turn_heads(params, params.key_norm, key, params.key.width, shape.key_dim, t);
      if (params.temperature.slope != 0) {
        const float factor = params.temperature.at(batch_.positions[t]);
        for (size_t i = 0; i < params.query.width; ++i) query[i] *= factor;
      }
      for (size_t h = 0; h < params.query.width; h += params.head_dim)
        turn_query(shape, query + h);  // as the keys will be
      if (key == nullptr) continue;
      const uint32_t run = batch_.run_of_token[t];
      const uint32_t run_row = batch_.runs[run].row_of(uint32_t(t));
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        const uint32_t row = params.kv.head_row(run, h, run_row);
        store(shape.key_format, {key + h * shape.key_dim, shape.key_dim}, params.kv.key_row(run, h, row));
        if (shape.value_dim == 0) continue;
        store(shape.value_format, {params.value.row(t) + h * shape.value_dim, shape.value_dim},
              params.kv.value_row(run, h, row));
      }
    }
  });
}

void CpuBackend::rotate_keys(const RotateKeysParams& params) {
  const KvLayerShape& shape = params.layer->shape;
  const size_t pairs = params.inverse_frequencies.size();
  pool_.parallel_for(params.back.size(), 8, [&](size_t begin, size_t end) {
    std::vector<float> key(shape.key_dim), cos(pairs), sin(pairs);
    for (size_t row = begin; row < end; ++row) {
      if (params.back[row] == 0) continue;
      for (size_t i = 0; i < pairs; ++i) {
        const double angle = -double(params.back[row]) * double(params.inverse_frequencies[i]);
        cos[i] = float(std::cos(angle));
        sin[i] = float(std::sin(angle));
      }
      std::byte* stored = params.keys + row * params.layer->key_row_bytes;
      load_kv_row(shape.key_format, stored, key);
      if (is_turned(shape.key_format)) turn_kv_row(key);
      rotate_pairs(key.data(), cos.data(), sin.data(), pairs, params.pairing);
      store_kv_row(shape.key_format, key, stored);
    }
  });
}

}  // namespace quire
