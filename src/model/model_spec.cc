#include "model/model_spec.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"
#include "model/layer_blocks.h"

namespace quire {
namespace {

struct Architecture {
  const char* name;
  ModelSpec (*read)(const ModelFile&, const SpecOptions&);
};

constexpr Architecture kArchitectures[] = {
    {"llama", arch::llama_spec},
    {"mistral3", arch::mistral3_spec},
    {"llama4", arch::llama4_spec},
    {"qwen2", arch::qwen2_spec},
    {"qwen2vl", arch::qwen2_spec},
    {"qwen2moe", arch::qwen2_moe_spec},
    {"qwen3", arch::qwen3_spec},
    {"qwen3vl", arch::qwen3_spec},
    {"qwen3moe", arch::qwen3_moe_spec},
    {"qwen3vlmoe", arch::qwen3_moe_spec},
    {"gemma", arch::gemma_spec},
    {"gemma2", arch::gemma2_spec},
    {"gemma3", arch::gemma3_spec},
    {"gemma3n", arch::gemma3n_spec},
    {"gemma4", arch::gemma4_spec},
    {"phi2", arch::phi2_spec},
    {"phi3", arch::phi3_spec},
    {"phimoe", arch::phi_moe_spec},
    {"olmo2", arch::olmo2_spec},
    {"olmoe", arch::olmoe_spec},
    {"smollm3", arch::smollm3_spec},
    {"granite", arch::granite_spec},
    {"granitemoe", arch::granite_moe_spec},
    {"gpt2", arch::gpt2_spec},
    {"gpt-oss", arch::gpt_oss_spec},
    {"gptneox", arch::gpt_neox_spec},
    {"starcoder2", arch::starcoder2_spec},
    {"falcon", arch::falcon_spec},
    {"bloom", arch::bloom_spec},
    {"mpt", arch::mpt_spec},
    {"chatglm", arch::chatglm_spec},
    {"glm4", arch::glm4_spec},
    {"glm4moe", arch::glm4_moe_spec},
    {"minimax-m2", arch::minimax_m2_spec},
    {"minimax-m3", arch::minimax_m3_spec},
    {"command-r", arch::command_r_spec},
    {"cohere2", arch::cohere2_spec},
    {"cohere2moe", arch::cohere2_moe_spec},
    {"mimo2", arch::mimo2_spec},
    {"laguna", arch::laguna_spec},
    {"muse-glimmer", arch::muse_glimmer_spec},
    {"exaone4", arch::exaone4_spec},
    {"seed_oss", arch::seed_oss_spec},
    {"ernie4_5", arch::ernie4_5_spec},
    {"ernie4_5-moe", arch::ernie4_5_moe_spec},
    {"apertus", arch::apertus_spec},
    {"dots1", arch::dots1_spec},
    {"deepseek2", arch::deepseek2_spec},
    {"deepseek32", arch::deepseek32_spec},
    {"deepseek4", arch::deepseek4_spec},
    {"glm-dsa", arch::glm_dsa_spec},
    {"mistral4", arch::mistral4_spec},
    {"kimi-linear", arch::kimi_linear_spec},
    {"hy_v3", arch::dots1_spec},
    {"hunyuan-dense", arch::hunyuan_spec},
    {"hunyuan-moe", arch::hunyuan_spec},
    {"qwen35", arch::qwen35_spec},
    {"qwen35moe", arch::qwen35_moe_spec},
    {"qwen3next", arch::qwen3_next_spec},
    {"lfm2", arch::lfm2_spec},
    {"lfm2moe", arch::lfm2_moe_spec},
    {"granitehybrid", arch::granite_hybrid_spec},
    {"nemotron_h", arch::nemotron_h_spec},
    {"nemotron_h_moe", arch::nemotron_h_spec},
    {"mamba", arch::mamba_spec},
    {"mamba2", arch::mamba2_spec},
    {"jamba", arch::jamba_spec},
    {"falcon-h1", arch::falcon_h1_spec},
};

}  // namespace

ModelSpec read_model_spec(const ModelFile& file, const SpecOptions& options) {
  const std::string& name = file.metadata().text("general.architecture");
  const auto* architecture = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                          [&](const Architecture& a) { return a.name == name; });
  if (architecture == std::end(kArchitectures)) {
    std::string known;
    for (const Architecture& a : kArchitectures) known += (known.empty() ? "" : ", ") + std::string(a.name);
    throw Error("{}: the architecture '{}' is not known; known are {}", file.path(), name, known);
  }
  // What comes after a token would change what is cached of it.
  if (!file.metadata().maybe_flag(name + ".attention.causal").value_or(true))
    throw Error(
        "{}: the tokens of this model see those that come after them ({}.attention.causal), which is not "
        "supported",
        file.path(), name);
  return architecture->read(file, options);
}

ModelSpec read_predictor_spec(const ModelFile& file, const SpecOptions& options) {
  const std::string prefix = file.metadata().text("general.architecture") + ".";
  const uint64_t predicting = file.metadata().maybe_number(prefix + "nextn_predict_layers").value_or(0);
  if (predicting == 0)
    throw Error("{}: no layer of this model predicts further tokens ({}nextn_predict_layers)", file.path(),
                prefix);
  SpecOptions all = options;
  all.part = SpecOptions::Part::all;
  ModelSpec spec = read_model_spec(file, all);
  spec.first_layer = uint32_t(spec.layers.size() - predicting);
  spec.layers = {spec.layers[spec.first_layer]};
  const std::string own = fmt::format("blk.{}.nextn.shared_head_norm", spec.first_layer);
  if (file.find(own + ".weight") != nullptr) spec.output_norm_tensor = own;
  spec.joins = spec.output_norm;
  const auto* latent = std::get_if<LatentSpec>(&spec.layers.front().mixer);
  if (latent != nullptr && latent->index && latent->index->is_shared)
    throw Error("{}: layer {}, which predicts further tokens, takes over another layer's choice of rows",
                file.path(), spec.first_layer);
  const GqaSpec* attention = spec.layers.front().attention();
  if (attention == nullptr || attention->shares_with || spec.layer_inputs.width > 0)
    throw Error("{}: layer {}, which predicts further tokens, is not of attention alone", file.path(),
                spec.first_layer);
  return spec;
}

const GqaSpec* LayerSpec::attention() const {
  if (const auto* latent = std::get_if<LatentSpec>(&mixer)) return &latent->attention;
  return std::get_if<GqaSpec>(&mixer);
}

const GqaSpec& LayerSpec::gqa() const {
  if (const GqaSpec* own = attention()) return *own;
  if (std::holds_alternative<CompressedSpec>(mixer))
    throw Error(
        "a layer of this model attends to rows of several tokens, which what was asked for does not know");
  throw Error(
      "a layer of this model is recurrent, or has no mixer: it has no attention heads, and what was asked "
      "for "
      "needs them");
}

GqaSpec& LayerSpec::gqa() {
  return const_cast<GqaSpec&>(std::as_const(*this).gqa());
}

bool LayerSpec::is_recurrent() const {
  if (beside) return true;
  return attention() == nullptr && !std::holds_alternative<AbsentSpec>(mixer) &&
         !std::holds_alternative<CompressedSpec>(mixer) && !std::holds_alternative<BlockPtr>(mixer);
}

uint32_t LayerSpec::window() const {
  const GqaSpec* own = attention();
  if (own == nullptr) return 0;
  return own->chunk == 0 ? own->window : own->chunk;
}

std::vector<KvLayer> kv_shapes(const ModelSpec& spec, const KvFormats& formats) {
  const std::vector<KvFormatPair> of_layers = formats.of_layers(spec.layers.size());
  std::vector<KvLayer> shapes;
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    KvLayer& layer = shapes.emplace_back(block_of(spec.layers[l].mixer, spec.dim)->cached());
    if (spec.layers[l].beside) {
      const KvLayer more = make_block(*spec.layers[l].beside, spec.dim)->cached();
      layer.insert(layer.end(), more.begin(), more.end());
    }
    for (KvStream& stream : layer) {
      stream.side = spec.layers[l].sides.mixer;
      if (stream.own_format) continue;
      const KvFormatPair& chosen = of_layers[stream.shares_with.value_or(l)];
      stream.key_format = chosen.key;
      stream.value_format = chosen.value;
    }
  }
  return shapes;
}

}  // namespace quire
