#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/norm.h"
#include "base/check.h"

// What recurrent layers need, on a CPU: one token after the other, whatever runs they come in. The values of a state are independent of
// each other, so threads take some values of a head each and keep their part of the state beside them for a whole run.

namespace quire {
namespace {

constexpr float kLengthEpsilon = 1e-6f;           // of queries and keys
constexpr size_t kConvolvedAtOnce = 256;          // channels: their weights stay in the first-level cache
constexpr float kNothing[kConvolvedAtOnce] = {};  // what there was before the sequence

const float* floats(const std::byte* bytes) {
  return reinterpret_cast<const float*>(bytes);
}

// The input of a token so many before this place of the run, which may be from before the run; null: before the sequence.
const float* input_before(const ConvolveParams& params, const TokenRun& run, uint32_t run_index,
                          uint32_t place, uint32_t back) {
  if (place >= back) return params.in.row(run.begin + place - back);
  const std::byte* before = params.inputs.state_before(run_index, 0);
  if (before == nullptr) return nullptr;
  return floats(before) + (params.span - 1 - (back - place)) * params.in.width;
}

// What a run leaves of some channels of its inputs.
void leave_inputs(const ConvolveParams& params, const TokenRun& run, uint32_t run_index, size_t first,
                  size_t count) {
  for (uint32_t i = 0; i < params.inputs.states_left(run_index); ++i) {
    float* left = reinterpret_cast<float*>(params.inputs.state_left(run_index, 0, i)) + first;
    const uint32_t place = params.inputs.state_row(run_index, i) - run.row;
    // Upwards: what is read in the same place is further on.
    for (uint32_t back = params.span - 1; back > 0; --back, left += params.in.width) {
      const float* in = input_before(params, run, run_index, place, back);
      if (in == nullptr) {
        std::fill_n(left, count, 0.0f);
      } else {
        std::memmove(left, in + first, count * sizeof(float));
      }
    }
  }
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

void CpuBackend::convolve_channels(const ConvolveParams& params, uint32_t run_index, size_t first) const {
  const TokenRun& run = batch_.runs[run_index];
  const size_t count = std::min(kConvolvedAtOnce, params.in.width - first), span = params.span;
  thread_local std::vector<float> weights;
  thread_local std::vector<const float*> rows;
  weights.resize(span * count);
  rows.resize(span);
  for (size_t c = 0; c < count; ++c) {
    for (size_t i = 0; i < span; ++i) weights[i * count + c] = params.weight.vector()[(first + c) * span + i];
  }
  for (uint32_t place = 0; place < run.count; ++place) {
    for (uint32_t i = 0; i < span; ++i) {
      const float* in = input_before(params, run, run_index, place, uint32_t(span) - 1 - i);
      rows[i] = in == nullptr ? kNothing : in + first;
    }
    float* out = params.out.row(run.begin + place) + first;
    kernels_.convolve({.rows = rows.data(),
                       .span = span,
                       .weights = weights.data(),
                       .bias = params.bias ? params.bias.vector() + first : nullptr,
                       .out = out,
                       .count = count});
    if (params.function) kernels_.activate(*params.function, out, nullptr, out, count);
  }
  leave_inputs(params, run, run_index, first, count);
}

void CpuBackend::convolve(const ConvolveParams& params) {
  CHECK(params.out.width == params.in.width && params.span > 1);
  const size_t parts = (params.in.width + kConvolvedAtOnce - 1) / kConvolvedAtOnce;
  pool_.parallel_for(batch_.runs.size() * parts, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      convolve_channels(params, uint32_t(i / parts), i % parts * kConvolvedAtOnce);
  });
}

void CpuBackend::recur_values(const Recurring& what, uint32_t run_index, uint32_t head, size_t first) const {
  const TokenRun& run = batch_.runs[run_index];
  const size_t keys = what.keys, values = what.values;
  RecurrenceArgs args = what.first;
  args.keys = keys;
  args.width = std::min(kStateValues, values - first);
  thread_local std::vector<float> state, rates;
  state.assign(keys * kStateValues, 0.0f);
  args.state = state.data();
  if (const std::byte* before = what.state.state_before(run_index, head)) {
    for (size_t k = 0; k < keys; ++k)
      std::copy_n(floats(before) + k * values + first, args.width, state.data() + k * kStateValues);
  }
  const size_t key_head =
      what.order == KeyOrder::tiled ? head % what.key_heads : head / (what.heads / what.key_heads);
  const size_t value = head * values + first;
  args.query += key_head * keys;
  args.key += key_head * keys;
  args.value += value;
  args.out += value;
  if (what.kind == Recurrence::selective) {
    rates.assign(keys * kStateValues, 0.0f);
    for (size_t v = 0; v < args.width; ++v) {
      for (size_t k = 0; k < keys; ++k)
        rates[k * kStateValues + v] = what.first.decay[(value + v) * keys + k];
    }
    args.decay = rates.data();
    args.beta += value;
  } else {
    args.decay += head * (what.kind == Recurrence::delta_of_keys ? keys : 1);
    args.beta += head;
  }
  const RecurrenceArgs of_batch = args;
  uint32_t done = 0;
  for (uint32_t i = 0; i < what.state.states_left(run_index); ++i) {
    const uint32_t place = what.state.state_row(run_index, i) - run.row;
    const size_t token = run.begin + done;
    args.tokens = place - done;
    args.query = of_batch.query + token * args.key_stride;
    args.key = of_batch.key + token * args.key_stride;
    args.value = of_batch.value + token * args.value_stride;
    args.decay = of_batch.decay + token * args.decay_stride;
    args.beta = of_batch.beta + token * args.beta_stride;
    args.out = of_batch.out + token * args.out_stride;
    if (args.tokens > 0) kernels_.recurrence[size_t(what.kind)](args);
    done = place;
    auto* left = reinterpret_cast<float*>(what.state.state_left(run_index, head, i));
    for (size_t k = 0; k < keys; ++k)
      std::copy_n(state.data() + k * kStateValues, args.width, left + k * values + first);
  }
  CHECK(done == run.count);
}

void CpuBackend::recur(const Recurring& what) {
  CHECK(what.keys % 4 == 0 && what.heads % what.key_heads == 0);
  const size_t parts = (what.values + kStateValues - 1) / kStateValues, each = what.heads * parts;
  pool_.parallel_for(batch_.runs.size() * each, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t part = i % each;
      recur_values(what, uint32_t(i / each), uint32_t(part / parts), part % parts * kStateValues);
    }
  });
}

void CpuBackend::open_gates(const DeltaNetParams& params, uint32_t token) {
  const size_t heads = params.value_heads, shared = heads / params.key_heads;
  const size_t decays = params.alpha_bias.view.cols;  // of a token
  const float *beta = params.beta.row(token), *alpha = params.alpha ? params.alpha.row(token) : nullptr;
  thread_local std::vector<float> apart;
  if (alpha == nullptr) {
    apart.resize(2 * heads);
    for (size_t h = 0; h < heads; ++h) {
      const float* both = beta + h / shared * 2 * shared + h % shared;
      apart[h] = both[0];
      apart[heads + h] = both[shared];
    }
    beta = apart.data();
    alpha = apart.data() + heads;
  }
  kernels_.steps(alpha, params.alpha_bias.vector(), rates_.data(), nullptr, &decays_[token * decays], decays);
  kernels_.activate({.kind = Nonlinearity::sigmoid}, beta, nullptr, &betas_[token * heads], heads);
}

void CpuBackend::delta_net(const DeltaNetParams& params) {
  const size_t tokens = params.mixed.rows, heads = params.value_heads, key_dim = params.key_dim;
  const size_t decays = params.alpha_bias.view.cols, keys = size_t(params.key_heads) * key_dim;
  CHECK(params.mixed.width == 2 * keys + heads * params.value_dim);
  CHECK(decays == heads || decays == heads * key_dim);
  rates_.resize(decays);
  for (size_t i = 0; i < decays; ++i) rates_[i] = params.rate.vector()[i / (decays / heads)];
  decays_.resize(tokens * decays);
  betas_.resize(tokens * heads);
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* row = params.mixed.row(t);
      for (size_t h = 0; h < 2 * size_t(params.key_heads); ++h) {
        const bool is_query = h < params.key_heads;
        set_length(row + h * key_dim, key_dim, is_query ? 1.0f / std::sqrt(float(key_dim)) : 1.0f);
      }
      open_gates(params, uint32_t(t));
    }
  });
  recur({.kind = decays == heads ? Recurrence::delta : Recurrence::delta_of_keys,
         .heads = heads,
         .key_heads = params.key_heads,
         .keys = key_dim,
         .values = params.value_dim,
         .order = params.order,
         .state = params.state,
         .first = {.query = params.mixed.data,
                   .key = params.mixed.data + keys,
                   .key_stride = params.mixed.stride,
                   .value = params.mixed.data + 2 * keys,
                   .value_stride = params.mixed.stride,
                   .decay = decays_.data(),
                   .decay_stride = decays,
                   .beta = betas_.data(),
                   .beta_stride = heads,
                   .out = params.out.f32.data,
                   .out_stride = params.out.f32.stride}});
  const Norm norm{NormKind::rms, params.epsilon, params.norm, {}};
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    std::vector<float> normed(params.value_dim);
    for (size_t t = begin; t < end; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        float* out = params.out.f32.row(t) + h * params.value_dim;
        norm_row(norm, out, normed.data(), params.value_dim);
        kernels_.activate({.kind = params.gate_function}, params.gate.row(t) + h * params.value_dim,
                          normed.data(), out, params.value_dim);
      }
      quantize(params.out, t);
    }
  });
}

void CpuBackend::state_space(const StateSpaceParams& params) {
  const size_t tokens = params.mixed.rows, heads = params.heads, inner = heads * params.head_dim;
  const size_t keys = size_t(params.groups) * params.state_dim, group = inner / params.groups;
  CHECK(params.mixed.width == inner + 2 * keys && params.gate.width == inner);
  decays_.resize(tokens * heads);
  betas_.resize(tokens * heads);
  pool_.parallel_for(tokens, 16, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t)
      kernels_.steps(params.step.row(t), params.step_bias.vector(), params.rate.vector(), &betas_[t * heads],
                     &decays_[t * heads], heads);
  });
  recur({.kind = Recurrence::state_space,
         .heads = heads,
         .key_heads = params.groups,
         .keys = params.state_dim,
         .values = params.head_dim,
         .state = params.state,
         .first = {.query = params.mixed.data + inner + keys,
                   .key = params.mixed.data + inner,
                   .key_stride = params.mixed.stride,
                   .value = params.mixed.data,
                   .value_stride = params.mixed.stride,
                   .decay = decays_.data(),
                   .decay_stride = heads,
                   .beta = betas_.data(),
                   .beta_stride = heads,
                   .out = params.out.f32.data,
                   .out_stride = params.out.f32.stride}});
  const Norm norm{NormKind::rms, params.epsilon, params.norm, {}};
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* out = params.out.f32.row(t);
      for (size_t h = 0; h < heads; ++h) {
        const float skip = params.skip.vector()[h];
        const float* in = params.mixed.row(t) + h * params.head_dim;
        for (size_t i = 0; i < params.head_dim; ++i) out[h * params.head_dim + i] += in[i] * skip;
      }
      kernels_.activate({.kind = Nonlinearity::silu}, params.gate.row(t), out, out, inner);
      for (size_t begin_of = 0; params.norm && begin_of < inner; begin_of += group)
        norm_row(norm, out + begin_of, out + begin_of, group, begin_of);
      quantize(params.out, t);
    }
  });
}

void CpuBackend::selective_scan(const SelectiveScanParams& params) {
  const size_t tokens = params.in.rows, width = params.in.width;
  CHECK(params.gate.width == width && params.step.width == width && params.key.stride == params.query.stride);
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* steps = params.step.row(t);
      kernels_.steps(steps, params.step_bias.vector(), nullptr, steps, nullptr, width);
    }
  });
  recur({.kind = Recurrence::selective,
         .heads = 1,
         .key_heads = 1,
         .keys = params.key.width,
         .values = width,
         .state = params.state,
         .first = {.query = params.query.data,
                   .key = params.key.data,
                   .key_stride = params.key.stride,
                   .value = params.in.data,
                   .value_stride = params.in.stride,
                   .decay = params.rate.vector(),
                   .beta = params.step.data,
                   .beta_stride = params.step.stride,
                   .out = params.out.f32.data,
                   .out_stride = params.out.f32.stride}});
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* out = params.out.f32.row(t);
      const float *in = params.in.row(t), *skip = params.skip.vector();
      for (size_t i = 0; i < width; ++i) out[i] += in[i] * skip[i];
      kernels_.activate({.kind = Nonlinearity::silu}, params.gate.row(t), out, out, width);
      quantize(params.out, t);
    }
  });
}

}  // namespace quire
