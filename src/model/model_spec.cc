#include "model/model_spec.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
    {"llama", arch::llama_spec},   {"qwen2", arch::qwen2_spec},        {"qwen3", arch::qwen3_spec},
    {"gemma2", arch::gemma2_spec}, {"gemma3", arch::gemma3_spec},      {"phi3", arch::phi3_spec},
    {"olmo2", arch::olmo2_spec},   {"smollm3", arch::smollm3_spec},    {"granite", arch::granite_spec},
    {"gpt2", arch::gpt2_spec},     {"qwen3moe", arch::qwen3_moe_spec}, {"gpt-oss", arch::gpt_oss_spec},
    {"qwen35", arch::qwen35_spec},
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
  return architecture->read(file, options);
}

void check_computable(const ModelSpec& spec, const BackendTraits& backend) {
  if (backend.recurrent || std::ranges::none_of(spec.layers, &LayerSpec::is_recurrent)) return;
  throw Error("{} has recurrent layers, which {} does not compute; --device cpu does",
              spec.name.empty() ? spec.architecture : spec.name, backend.device);
}

const GqaSpec& LayerSpec::gqa() const {
  if (const auto* attention = std::get_if<GqaSpec>(&mixer)) return *attention;
  throw Error(
      "a layer of this model is recurrent: it has no attention heads, and what was asked for needs them");
}

GqaSpec& LayerSpec::gqa() {
  return const_cast<GqaSpec&>(std::as_const(*this).gqa());
}

uint32_t LayerSpec::window() const {
  const auto* attention = std::get_if<GqaSpec>(&mixer);
  return attention != nullptr ? attention->window : 0;
}

std::vector<KvLayer> kv_shapes(const ModelSpec& spec, const KvFormats& formats) {
  const std::vector<KvFormatPair> of_layers = formats.of_layers(spec.layers.size());
  std::vector<KvLayer> shapes;
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    KvLayer& layer = shapes.emplace_back(block_of(spec.layers[l].mixer, spec.dim)->cached());
    for (KvStream& stream : layer) {
      if (stream.own_format) continue;
      const KvFormatPair& chosen = of_layers[stream.shares_with.value_or(l)];
      stream.key_format = chosen.key;
      stream.value_format = chosen.value;
    }
  }
  return shapes;
}

}  // namespace quire
