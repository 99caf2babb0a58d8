#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

// Families that know distances by what scores lose with them, and rotate nothing.

namespace quire::arch {
namespace {

constexpr float kUsualBias = 8;

// Powers of one number; of heads that are no power of two, those that are left over have the powers of its root between them.
std::vector<float> slopes_of(uint32_t heads, float most) {
  const uint32_t whole = std::bit_floor(heads);
  std::vector<float> slopes;
  for (uint32_t h = 0; h < heads; ++h) {
    const float power = h < whole ? float(h + 1) : float(2 * (h - whole) + 1) / 2;
    slopes.push_back(std::exp2(-most * power / float(whole)));
  }
  return slopes;
}

void use_slopes(const ModelFile& file, ModelSpec& spec, float most) {
  if (!(most > 0 && most <= 1024))
    throw Error("{}: a bias of {} for distances (ALiBi) is not known", file.path(), most);
  spec.ropes.clear();
  for (LayerSpec& layer : spec.layers) {
    layer.gqa().rope.reset();
    layer.gqa().slopes = slopes_of(layer.gqa().heads, most);
  }
}

}  // namespace

ModelSpec bloom_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  use_layer_norms(spec);
  use_plain_mlps(spec, Nonlinearity::gelu_tanh);
  use_slopes(file, spec, Keys(file).real("attention.max_alibi_bias", kUsualBias));
  spec.embedding_norm = spec.output_norm;
  return spec;
}

ModelSpec mpt_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  if (keys.real("attention.clamp_kqv", 0) > 0)
    throw Error("{}: {} is {}; queries, keys and values that are clamped are not supported", file.path(),
                keys("attention.clamp_kqv"), keys.real("attention.clamp_kqv", 0));
  for (const char* tensor : {"blk.0.attn_q_norm.weight", "position_embd.weight", "blk.0.ffn_act.scales"}) {
    if (file.find(tensor) != nullptr)
      throw Error("{}: models of the family mpt with {} are not supported", file.path(), tensor);
  }
  ModelSpec spec = common_spec(file, options, {});
  use_layer_norms(spec);
  use_plain_mlps(spec, Nonlinearity::gelu_erf);
  use_slopes(file, spec, keys.real("attention.max_alibi_bias", kUsualBias));
  return spec;
}

}  // namespace quire::arch
