#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/arch/arch.h"
#include "tensor/quantize.h"

namespace quire::arch {
namespace {

std::vector<float> read_vector(const ModelFile& file, const TensorEntry& entry, size_t count) {
  if (entry.shape.size() != 1 || entry.shape[0] != count) {
    throw Error("{}: {} should have {} values", file.path(), entry.name, count);
  }
  std::vector<float> values(count);
  dequantize_row(entry.dtype, file.load(entry).bytes.data(), values);
  return values;
}

// YaRN (Peng et al., 2023): fast pairs keep their frequency, slow ones are interpolated, a ramp lies between.
void apply_yarn(std::vector<double>& frequencies, const Keys& keys, double base, double factor,
                const RopeDefaults& defaults) {
  const double pairs = double(frequencies.size());
  const double original = double(keys.all().number(keys("rope.scaling.original_context_length")));
  const auto pair_with_rotations = [&](double rotations) {
    return 2 * pairs * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  double low = pair_with_rotations(keys.real("rope.scaling.yarn_beta_fast", 32));
  double high = pair_with_rotations(keys.real("rope.scaling.yarn_beta_slow", 1));
  if (keys.all().maybe_flag("quire.rope.yarn_truncate").value_or(defaults.yarn_truncates)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, 2 * pairs - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double interpolated = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / factor * interpolated + frequencies[i] * (1 - interpolated);
  }
}

// What cos and sin are times: files may say that attention's own scale has a part of it.
double yarn_attention(const Keys& keys, double factor) {
  const auto growth = [&](double by) { return factor <= 1 ? 1.0 : 0.1 * by * std::log(factor) + 1.0; };
  const double own = keys.real("rope.scaling.yarn_log_multiplier", 0);
  return own == 0 ? 0.1 * std::log(factor) + 1.0 : growth(1) / growth(own);
}

}  // namespace

RopeSpec plain_rope(uint32_t dims, float base, RopePairing pairing) {
  RopeSpec rope{.pairing = pairing, .inverse_frequencies = {}};
  for (uint32_t i = 0; i < dims / 2; ++i) {
    rope.inverse_frequencies.push_back(float(std::pow(double(base), -2.0 * i / dims)));
  }
  return rope;
}

RopeSpec read_rope(const ModelFile& file, uint32_t key_dim, const SpecOptions& options,
                   const RopeDefaults& defaults) {
  const Keys keys(file);
  const uint32_t dims = keys.maybe_count("rope.dimension_count").value_or(key_dim);
  if (dims > key_dim || dims % 2 != 0) {
    throw Error("{}: {} of {} values of a head cannot be rotated", file.path(), dims, key_dim);
  }
  const double base = keys.real(defaults.base_key, defaults.base);
  std::vector<double> frequencies(dims / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(base, -2.0 * double(i) / dims);

  RopeSpec rope{.pairing = defaults.pairing, .inverse_frequencies = {}};
  const std::string kind = keys.all().maybe_text(keys("rope.scaling.type")).value_or("none");
  const double factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1));
  if (!(factor > 0)) throw Error("{}: a rope scaling factor of {}", file.path(), factor);
  if (kind == "linear" || (kind == "none" && factor != 1)) {
    for (double& frequency : frequencies) frequency /= factor;
  } else if (kind == "yarn") {
    apply_yarn(frequencies, keys, base, factor, defaults);
    rope.scale =
        float(keys.all().maybe_real("quire.rope.attention_factor").value_or(yarn_attention(keys, factor)));
  } else if (kind == "longrope") {
    rope.scale = keys.real("rope.scaling.attn_factor", 1);
  } else if (kind != "none") {
    throw Error("{}: rope scaling of the kind '{}' is not known; linear, llama3, yarn and longrope are",
                file.path(), kind);
  }
  // Divisors per pair: Llama 3's scaling, and longrope's two sets, of which the context chooses one.
  const uint32_t trained = keys.count("context_length");
  const uint64_t original =
      keys.all().maybe_number(keys("rope.scaling.original_context_length")).value_or(trained);
  const uint32_t context = options.context > 0 ? options.context : trained;
  const char* longrope = context > original ? "rope_factors_long.weight" : "rope_factors_short.weight";
  for (const char* name : {"rope_freqs.weight", longrope}) {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) continue;
    const std::vector<float> divisors = read_vector(file, *entry, frequencies.size());
    for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= double(divisors[i]);
  }
  rope.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
  return rope;
}

}  // namespace quire::arch
