#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"
#include "model/layer_blocks.h"
#include "tensor/quantize.h"

namespace quire::arch {
namespace {

constexpr uint64_t kMaxInputsWidth = 1u << 24;  // of all heads, or of all layers' inputs: no model comes near
constexpr uint32_t kMaxWindowHeadDim = 1u << 16;  // the same

float read_scale(const ModelFile& file, size_t layer) {
  const TensorEntry* entry = file.find(fmt::format("blk.{}.layer_output_scale.weight", layer));
  if (entry == nullptr) return 1;
  float scale = 0;
  const bool is_known =
      entry->dtype == DType::f32 || entry->dtype == DType::bf16 || entry->dtype == DType::f16;
  if (entry->shape == std::vector<uint64_t>{1} && is_known)
    dequantize_row(entry->dtype, file.load(*entry).bytes.data(), {&scale, 1});
  if (scale == 0 || !std::isfinite(scale))
    throw Error("{}: the tensor {} is not one number", file.path(), entry->name);
  return scale;
}

}  // namespace

void read_window_heads(const ModelFile& file, ModelSpec& spec) {
  const Keys keys(file);
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    GqaSpec& gqa = spec.layers[l].gqa();
    if (gqa.window == 0) continue;
    gqa.key_dim = keys.maybe_count("attention.key_length_swa").value_or(gqa.key_dim);
    gqa.value_dim = keys.maybe_count("attention.value_length_swa").value_or(gqa.value_dim);
    for (const auto& [dim, key] : {std::pair(gqa.key_dim, "attention.key_length_swa"),
                                   std::pair(gqa.value_dim, "attention.value_length_swa")}) {
      if (dim > kMaxWindowHeadDim || uint64_t(gqa.heads) * dim > kMaxInputsWidth)
        throw Error("{}: {} is {}, and {} such heads are more than any model has", keys.all().file_name(),
                    keys(key), dim, gqa.heads);
    }
    const uint32_t rotated = keys.maybe_count("rope.dimension_count_swa").value_or(gqa.key_dim);
    if (rotated > gqa.key_dim || rotated % 2 != 0)
      throw Error("{}: {} is {}, of heads of {}", keys.all().file_name(), keys("rope.dimension_count_swa"),
                  rotated, gqa.key_dim);
    if (spec.ropes.size() == 1)
      spec.ropes.push_back(plain_rope(rotated, keys.real("rope.freq_base_swa", 10000), RopePairing::halves));
    gqa.rope = 1;
  }
}

void read_sharing(const ModelFile& file, ModelSpec& spec) {
  const Keys keys(file);
  const char* key = "attention.shared_kv_layers";
  const uint64_t shared = keys.all().maybe_number(keys(key)).value_or(0), layers = spec.layers.size();
  if (shared >= layers && shared > 0)
    throw Error("{}: {} is {}, of {} layers", keys.all().file_name(), keys(key), shared, layers);
  for (size_t l = layers - shared; l < layers; ++l) {
    GqaSpec& gqa = spec.layers[l].gqa();
    for (uint32_t source = 0; source < layers - shared; ++source) {
      if (spec.layers[source].gqa().window == gqa.window) gqa.shares_with = source;
    }
    if (!gqa.shares_with)
      throw Error("{}: {} is {}, but no layer before has the window of layer {}", keys.all().file_name(),
                  keys(key), shared, l);
    const GqaSpec& source = spec.layers[*gqa.shares_with].gqa();
    if (source.kv_heads != gqa.kv_heads || source.key_dim != gqa.key_dim || source.value_dim != gqa.value_dim)
      throw Error("{}: layer {} has {} KV heads by {}, and layer {}, whose rows it reads, has {}",
                  keys.all().file_name(), l, gqa.kv_heads, keys("attention.head_count_kv"), *gqa.shares_with,
                  source.kv_heads);
  }
}

void read_output_scales(const ModelFile& file, ModelSpec& spec) {
  for (size_t l = 0; l < spec.layers.size(); ++l) spec.layers[l].output_scale = read_scale(file, l);
}

void read_layer_inputs(const ModelFile& file, ModelSpec& spec) {
  const Keys keys(file);
  const char* key = "embedding_length_per_layer_input";
  const uint64_t width = keys.all().maybe_number(keys(key)).value_or(0);
  if (width == 0) return;
  if (width > kMaxInputsWidth / spec.layers.size())
    throw Error("{}: {} is {}, which no model can have", keys.all().file_name(), keys(key), width);
  // The matrix's results are not divided by the root of the model's width as they were when it was trained; their norm is told.
  NormSpec norm = spec.output_norm;
  norm.epsilon *= float(spec.dim);
  // Further tokens are those of images and sound.
  const TensorEntry* table = file.find(kLayerTable);
  const bool is_shorter =
      table != nullptr && table->shape.size() == 2 && table->shape[0] > 0 && table->shape[0] < spec.vocab;
  spec.layer_inputs = {
      .width = uint32_t(width), .vocab = is_shorter ? uint32_t(table->shape[0]) : spec.vocab, .norm = norm};
  for (LayerSpec& layer : spec.layers)
    layer.input = LayerInputSpec{.width = uint32_t(width), .gate = {.kind = Nonlinearity::gelu_tanh}};
}

}  // namespace quire::arch
