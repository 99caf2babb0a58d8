#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/norm.h"
#include "base/check.h"

// Gated delta net on a CPU: one token after the other, whatever runs they come in. The values of a state are independent of each
// other, so threads take some values of a head each and keep their part of the state beside them for a whole run.

namespace quire {
namespace {

constexpr float kLengthEpsilon = 1e-6f;  // of queries and keys

float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

const float* floats(const std::byte* bytes) {
  return reinterpret_cast<const float*>(bytes);
}

// The input of a token so many before this place of the run, which may be from before the run; null: before the sequence.
const float* input_before(const DeltaNetParams& params, const TokenRun& run, uint32_t run_index,
                          uint32_t place, uint32_t back) {
  if (place >= back) return params.mixed.row(run.begin + place - back);
  const std::byte* before = params.inputs.state_before(run_index, 0);
  if (before == nullptr) return nullptr;
  return floats(before) + (params.span - 1 - (back - place)) * params.channels();
}

// Makes a vector as long as `length`.
void set_length(float* values, size_t count, float length) {
  const float scale = length / std::sqrt(dot(values, values, count) + kLengthEpsilon);
  for (size_t i = 0; i < count; ++i) values[i] *= scale;
}

}  // namespace

void CpuBackend::split_heads(const SplitHeadsParams& params) {
  const size_t dim = params.head_dim, heads = params.first.width / dim;
  CHECK(params.both.width == 2 * heads * dim && params.second.width == heads * dim);
  pool_.parallel_for(params.both.rows, 4, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const float* both = params.both.row(t) + 2 * h * dim;
        std::copy_n(both, dim, params.first.row(t) + h * dim);
        std::copy_n(both + dim, dim, params.second.row(t) + h * dim);
      }
    }
  });
}

void CpuBackend::convolve(const DeltaNetParams& params, uint32_t token) const {
  const uint32_t run_index = batch_.run_of_token[token];
  const TokenRun& run = batch_.runs[run_index];
  const size_t channels = params.channels();
  float* out = params.convolved.row(token);
  std::fill_n(out, channels, 0.0f);
  for (uint32_t tap = 0; tap < params.span; ++tap) {
    const float* in = input_before(params, run, run_index, token - run.begin, params.span - 1 - tap);
    if (in == nullptr) continue;
    const float* weights = taps_.data() + tap * channels;
    for (size_t c = 0; c < channels; ++c) out[c] += in[c] * weights[c];
  }
  kernels_.activate({.kind = Nonlinearity::silu}, out, nullptr, out, channels);
  for (size_t h = 0; h < 2 * size_t(params.key_heads); ++h) {
    const bool is_query = h < params.key_heads;
    set_length(out + h * params.key_dim, params.key_dim,
               is_query ? 1.0f / std::sqrt(float(params.key_dim)) : 1.0f);
  }
}

void CpuBackend::open_gates(const DeltaNetParams& params, uint32_t token) {
  const size_t heads = params.value_heads, shared = heads / params.key_heads;
  for (size_t h = 0; h < heads; ++h) {
    float beta, alpha;
    if (params.alpha) {
      beta = params.beta.row(token)[h];
      alpha = params.alpha.row(token)[h];
    } else {
      const float* both = params.beta.row(token) + h / shared * 2 * shared + h % shared;
      beta = both[0];
      alpha = both[shared];
    }
    betas_[token * heads + h] = 1.0f / (1.0f + std::exp(-beta));
    decays_[token * heads + h] =
        std::exp(params.rate.vector()[h] * softplus(alpha + params.alpha_bias.vector()[h]));
  }
}

void CpuBackend::leave_inputs(const DeltaNetParams& params, uint32_t run_index) const {
  const TokenRun& run = batch_.runs[run_index];
  const size_t channels = params.channels();
  for (uint32_t i = 0; i < params.inputs.states_left(run_index); ++i) {
    auto* left = reinterpret_cast<float*>(params.inputs.state_left(run_index, 0, i));
    const uint32_t place = params.inputs.state_row(run_index, i) - run.row;
    // Upwards: what is read in the same place is further on.
    for (uint32_t back = params.span - 1; back > 0; --back, left += channels) {
      const float* in = input_before(params, run, run_index, place, back);
      if (in == nullptr) {
        std::fill_n(left, channels, 0.0f);
      } else {
        std::memmove(left, in, channels * sizeof(float));
      }
    }
  }
}

void CpuBackend::run_delta_rule(const DeltaNetParams& params, uint32_t run_index, uint32_t head,
                                uint32_t first) const {
  const TokenRun& run = batch_.runs[run_index];
  const size_t key_dim = params.key_dim, value_dim = params.value_dim, heads = params.value_heads;
  const size_t width = std::min(kDeltaValues, value_dim - first);
  thread_local std::vector<float> state;
  state.assign(key_dim * kDeltaValues, 0.0f);
  if (const std::byte* before = params.state.state_before(run_index, head)) {
    for (size_t k = 0; k < key_dim; ++k)
      std::copy_n(floats(before) + k * value_dim + first, width, state.data() + k * kDeltaValues);
  }
  const size_t key_head =
      params.order == KeyOrder::tiled ? head % params.key_heads : head / (heads / params.key_heads);
  const size_t keys = size_t(params.key_heads) * key_dim;
  uint32_t done = 0;
  for (uint32_t i = 0; i < params.state.states_left(run_index); ++i) {
    const uint32_t place = params.state.state_row(run_index, i) - run.row, token = run.begin + done;
    const float* row = params.convolved.row(token);
    if (place > done) {
      kernels_.delta_rule({.state = state.data(),
                           .key_dim = key_dim,
                           .tokens = place - done,
                           .query = row + key_head * key_dim,
                           .key = row + keys + key_head * key_dim,
                           .value = row + 2 * keys + head * value_dim + first,
                           .stride = params.convolved.stride,
                           .width = width,
                           .decay = &decays_[token * heads + head],
                           .beta = &betas_[token * heads + head],
                           .gate_stride = heads,
                           .out = params.out.f32.row(token) + head * value_dim + first,
                           .out_stride = params.out.f32.stride});
    }
    done = place;
    auto* left = reinterpret_cast<float*>(params.state.state_left(run_index, head, i));
    for (size_t k = 0; k < key_dim; ++k)
      std::copy_n(state.data() + k * kDeltaValues, width, left + k * value_dim + first);
  }
  CHECK(done == run.count);
}

void CpuBackend::delta_net(const DeltaNetParams& params) {
  const size_t tokens = params.mixed.rows, channels = params.channels(), heads = params.value_heads;
  CHECK(params.mixed.width == channels && params.convolved.width == channels && params.key_dim % 4 == 0);
  taps_.resize(params.span * channels);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t tap = 0; tap < params.span; ++tap)
      taps_[tap * channels + c] = params.convolution.vector()[c * params.span + tap];
  }
  decays_.resize(tokens * heads);
  betas_.resize(tokens * heads);
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      convolve(params, uint32_t(t));
      open_gates(params, uint32_t(t));
    }
  });
  const size_t parts = (params.value_dim + kDeltaValues - 1) / kDeltaValues, each = heads * parts;
  pool_.parallel_for(batch_.runs.size() * (each + 1), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto run = uint32_t(i / (each + 1)), part = uint32_t(i % (each + 1));
      if (part == each) {
        leave_inputs(params, run);
      } else {
        run_delta_rule(params, run, uint32_t(part / parts), uint32_t(part % parts * kDeltaValues));
      }
    }
  });
  const Norm norm{NormKind::rms, params.epsilon, params.norm, {}};
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    std::vector<float> normed(params.value_dim);
    for (size_t t = begin; t < end; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        float* out = params.out.f32.row(t) + h * params.value_dim;
        norm_row(norm, out, normed.data(), params.value_dim);
        kernels_.activate({.kind = Nonlinearity::silu}, params.gate.row(t) + h * params.value_dim,
                          normed.data(), out, params.value_dim);
      }
      quantize(params.out, t);
    }
  });
}

}  // namespace quire
