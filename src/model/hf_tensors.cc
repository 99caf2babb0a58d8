#include "model/hf_tensors.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"
#include "model/hf_names.h"
#include "model/hf_shapes.h"

namespace quire {
namespace {

const HfName* find_name(std::span<const HfName> names, std::string_view hf) {
  const auto found = std::ranges::find(names, hf, &HfName::hf);
  return found == names.end() ? nullptr : &*found;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// "12.rest" -> 12, leaving "rest".
std::optional<uint64_t> take_index(std::string_view& text) {
  uint64_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return {};
  text.remove_prefix(size_t(end + 1 - text.data()));
  return index;
}

bool is_scale(std::string_view name) {
  for (const char* own : {".per_expert_scale", ".correct_output_scale", "hc_attn_scale", "hc_ffn_scale",
                          "hc_head_scale", ".hc_scale"})
    if (name.ends_with(own)) return false;
  return name.ends_with("_scale_inv") || name.ends_with("_scale") || name.ends_with("_scales");
}

// Not of the text model, or what it does not need.
// `more_layers`: layers that predict further tokens, which some families keep apart.
bool is_ignored(std::string_view name, uint64_t more_layers) {
  if (name.starts_with(kHfPredictorPrefix)) return more_layers == 0;
  return std::ranges::any_of(kHfIgnoredPrefixes, [&](auto prefix) { return name.starts_with(prefix); }) ||
         std::ranges::any_of(kHfIgnoredSuffixes, [&](auto suffix) { return name.ends_with(suffix); });
}

class Planner {
 public:
  Planner(const SafetensorsFolder& files, const HfPackedTensors& packed, const HfConfig& config,
          const std::string& folder)
      : files_(files), packed_(packed), config_(config), folder_(folder) {}

  std::vector<HfTensor> plan() {
    for (const auto& [name, tensor] : files_.tensors())
      if (!is_ignored(name, config_.more_layers) && !is_scale(name) && !is_scale_beside(name) &&
          !packed_.parts.contains(name))
        place(tensor);
    for (const auto& [name, tensor] : packed_.tensors)
      if (!is_ignored(name, config_.more_layers)) place(tensor);
    for (const auto& [name, values] : config_.computed_tensors) {
      HfTensor& made = add(name);
      made.computed = values;
      made.entry.shape = {values.size()};
      made.entry.bytes = values.size() * sizeof(float);
    }
    // One that makes vectors may have none.
    if (!config_.tied && !made_.contains("output.weight") && !makes_vectors())
      throw Error("{} has no tensor \"lm_head.weight\", and its output is not tied to the embedding",
                  folder_);
    std::vector<HfTensor> tensors;
    for (auto& [name, tensor] : made_) {
      finish_hf_tensor(tensor, config_, folder_, made_.contains(scales_name_of(tensor)));
      if (tensor.entry.dtype == DType::nvfp4) tensors.push_back(common_scales(tensor));
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

 private:
  // "wq_a.scale" beside "wq_a.weight", as DeepSeek V4 has them.
  bool is_scale_beside(std::string_view name) const {
    constexpr std::string_view kEnd = ".scale";
    if (!name.ends_with(kEnd)) return false;
    const SafetensorsTensor* weight =
        files_.find(std::string(name.substr(0, name.size() - kEnd.size())) + ".weight");
    return weight != nullptr && is_hf_fp8(*weight);
  }

  bool makes_vectors() const {
    return config_.metadata.has(fmt::format("{}.pooling_type", config_.family->architecture));
  }
  [[noreturn]] void refuse(const SafetensorsTensor& tensor, std::string_view why) const {
    refuse_hf_tensor(tensor, folder_, why);
  }

  HfTensor& add(const std::string& name) {
    HfTensor tensor;
    tensor.entry.name = name;
    const auto [place, is_new] = made_.emplace(name, std::move(tensor));
    if (!is_new) throw Error("{}: two tensors would become {}", folder_, name);
    return place->second;
  }

  void place(const SafetensorsTensor& tensor) {
    std::string_view rest = tensor.name;
    for (const char* prefix : {"model.language_model.", "language_model.model.", "language_model.", "model.",
                               "transformer.", "gpt_neox.", "backbone."})
      if (take_prefix(rest, prefix)) break;
    const bool apart = take_prefix(rest, kHfPredictorPrefix);
    if (take_prefix(rest, "layers.") || take_prefix(rest, "h.") || take_prefix(rest, "blocks.")) {
      const auto own = take_index(rest);
      const auto layer = own && apart ? std::optional(config_.layers + *own) : own;
      if (layer && *layer >= config_.layers && *layer - config_.layers < config_.more_layers)
        return place_predictor(tensor, *layer, rest);
      if (!layer || *layer >= config_.layers)
        refuse(tensor, fmt::format("is of none of {} layers", config_.layers));
      return place_in_layer(tensor, *layer, rest);
    }
    if (apart) return place_predictor(tensor, config_.layers, rest);
    for (const char* stack : {"altup_projections.", "altup_unembed_projections."})
      if (take_prefix(rest, stack)) return place_stream(tensor, stack, rest);
    for (const HfName& whole : kHfModelTensors)
      if (rest == whole.hf) return place_plain(tensor, std::string(whole.gguf));
    const auto [module, suffix] = split_suffix(rest);
    const HfName* name = find_name(kHfModelNames, module);
    if (!name || suffix.empty()) refuse(tensor, "is not known");
    if (name->gguf == "output" && config_.tied) return;
    place_plain(tensor, fmt::format("{}{}", name->gguf, suffix));
  }

  // Of several streams, what one of them but the first begins or ends with; GGUF has all of them in one.
  void place_stream(const SafetensorsTensor& tensor, std::string_view stack, std::string_view rest) {
    const auto index = take_index(rest);
    if (!index || rest != "weight" || *index + 1 >= out_streams()) refuse(tensor, "is not known");
    stack.remove_suffix(1);
    place_one_of(tensor, fmt::format("{}.weight", find_name(kHfModelNames, stack)->gguf), *index,
                 out_streams() - 1);
  }
  uint64_t out_streams() const { return std::max<uint64_t>(config_.streams, 1); }

  // One of a stack's matrices.
  void place_one_of(const SafetensorsTensor& tensor, const std::string& name, uint64_t index,
                    uint64_t count) {
    HfTensor& made = made_.contains(name) ? made_.at(name) : add(name);
    if (made.parts.empty()) made.parts.resize(count);
    if (made.parts.size() != count || made.parts[index].data) refuse(tensor, "is there twice");
    made.parts[index] = part(tensor);
  }

  // Of a layer that predicts further tokens: what joins, or what it has like others. Embedding and head are the model's.
  void place_predictor(const SafetensorsTensor& tensor, uint64_t layer, std::string_view rest) {
    const auto [module, suffix] = split_suffix(rest);
    if (module == "embed_tokens" || module == "shared_head.head") return;
    const HfName* name = find_name(kHfPredictorNames, module);
    if (name == nullptr) return place_in_layer(tensor, layer, rest);
    place_plain(tensor, fmt::format("blk.{}.nextn.{}{}", layer, name->gguf, suffix));
  }

  // "norm.weight" -> "norm", ".weight". The suffix is empty if it is none of a tensor's.
  static std::pair<std::string_view, std::string_view> split_suffix(std::string_view rest) {
    for (const std::string_view suffix : {".weight", ".bias"})
      if (rest.ends_with(suffix)) return {rest.substr(0, rest.size() - suffix.size()), suffix};
    return {rest, {}};
  }

  void place_in_layer(const SafetensorsTensor& tensor, uint64_t layer, std::string_view rest) {
    const std::string block = fmt::format("blk.{}.", layer);
    const std::string as_mlp = "mlp." + std::string(rest.substr(rest.find('.') + 1));
    const std::string as_mixer = "mixer." + std::string(rest.substr(rest.find('.') + 1));
    if (rest.starts_with("feed_forward.") || rest.starts_with("ffn.")) rest = as_mlp;
    // Transformers saves the dense layers of Kimi Linear so, too.
    if (rest.starts_with("block_sparse_moe.") && find_name(kHfLayerNames, split_suffix(as_mlp).first))
      rest = as_mlp;
    if (rest.starts_with("mamba.")) rest = as_mixer;
    if (rest == "self_attn.sinks" || rest == "self_attn.attention_sink_bias")
      return place_plain(tensor, block + "attn_sinks.weight");
    if (rest.ends_with(".e_score_correction_bias")) return place_plain(tensor, block + "exp_probs_b.bias");
    if (rest == "linear_attn.in_proj_qkvz.weight") return place_mixed(tensor, block);
    if (rest == "self_attn.kv_b_proj.weight" && config_.latent_plain_dim > 0)
      return place_latent_heads(tensor, block);
    if (rest == "mlp.gate.bias" && is_hf_compressed(*config_.family))
      return place_plain(tensor, block + "exp_probs_b.bias");
    if (rest == "mlp.expert_bias") return place_plain(tensor, block + "exp_probs_b.bias");
    if (rest == "mixer.D") return place_plain(tensor, block + "ssm_d");
    if (rest == "linear_attn.dt_bias" || rest == "mixer.dt_bias" || rest == "self_attn.dt_bias")
      return place_plain(tensor, block + "ssm_dt.bias");
    if (rest == "linear_attn.A_log" || rest == "mixer.A_log" || rest == "self_attn.A_log") {
      place_plain(tensor, block + "ssm_a");
      made_.at(block + "ssm_a").negative_exponential = true;
      return;
    }
    for (const HfName& whole : kHfLayerTensors)
      if (rest == whole.hf) return place_plain(tensor, block + std::string(whole.gguf));
    for (const char* experts : {"mlp.experts.", "block_sparse_moe.experts.", "mixer.experts.", "experts."})
      if (take_prefix(rest, experts)) return place_experts(tensor, block, rest);
    if (rest == "block_sparse_moe.input_linear.weight")
      return place_all_experts(tensor, block, "gate_up_proj");
    if (rest == "block_sparse_moe.output_linear.weight") return place_all_experts(tensor, block, "down_proj");
    if (rest == "mlp.gate_up_proj.weight" && config_.family->architecture == "minimax-m3")
      return place_gate_and_up(tensor, block, ".weight");
    if (take_prefix(rest, "shared_mlp.")) return place_granite_mlp(tensor, block, rest);
    for (const char* shared : {"block_sparse_moe.shared_experts.", "mlp.shared_experts.",
                               "mlp.shared_expert.", "mlp.shared_mlp.", "mixer.shared_experts."})
      if (take_prefix(rest, shared)) return place_shared(tensor, block, rest);
    const auto [module, suffix] = split_suffix(rest);
    if (module == "post_attention_layernorm") {
      const char* name = config_.family->post_norms ? "post_attention_norm" : "ffn_norm";
      return place_plain(tensor, fmt::format("{}{}{}", block, name, suffix));
    }
    const HfName* name = find_name(kHfLayerNames, module);
    if (!name || suffix.empty()) refuse(tensor, "is not known");
    place_plain(tensor, fmt::format("{}{}{}", block, name->gguf, suffix));
  }

  // Of each head the rows of its keys, and then those of its values. Queries are multiplied with keys' columns.
  void place_latent_heads(const SafetensorsTensor& tensor, const std::string& block) {
    const uint64_t plain = config_.latent_plain_dim, values = config_.latent_value_dim;
    const auto add_part = [&](const char* name, HfSections::Section section, bool turned) {
      HfTensor& made = add(block + name);
      made.parts = {part(tensor)};
      made.rows = HfRows::sections;
      made.sections = {config_.heads, plain + values, {section}};
      made.head_stack = config_.heads;
      made.heads_turned = turned;
    };
    add_part("attn_k_b.weight", {0, plain}, true);
    add_part("attn_v_b.weight", {plain, values}, false);
  }

  // Qwen3-Next has the query, key, values and gates of a key head together.
  void place_mixed(const SafetensorsTensor& tensor, const std::string& block) {
    if (config_.delta_key_heads == 0) refuse(tensor, "is of a layer that config.json does not speak of");
    const uint64_t keys = config_.delta_key_dim;
    const uint64_t values = config_.delta_value_heads / config_.delta_key_heads * config_.delta_value_dim;
    const auto add_part = [&](const char* name, std::vector<HfSections::Section> list) {
      HfTensor& made = add(block + name);
      made.parts = {part(tensor)};
      made.rows = HfRows::sections;
      made.sections = {config_.delta_key_heads, 2 * keys + 2 * values, std::move(list)};
    };
    add_part("attn_qkv.weight", {{0, keys}, {keys, keys}, {2 * keys, values}});
    add_part("attn_gate.weight", {{2 * keys + values, values}});
  }

  // Granite 4 has an MLP for every token, beside experts or instead of them.
  void place_granite_mlp(const SafetensorsTensor& tensor, const std::string& block, std::string_view rest) {
    const char* suffix = config_.experts > 0 ? "_shexp.weight" : ".weight";
    if (rest == "output_linear.weight") return place_plain(tensor, block + "ffn_down" + suffix);
    if (rest != "input_linear.weight") refuse(tensor, "is not known");
    place_gate_and_up(tensor, block, suffix);
  }

  // Both in one, the gate's rows first.
  void place_gate_and_up(const SafetensorsTensor& tensor, const std::string& block, const char* suffix) {
    for (const auto& [name, rows] :
         {std::pair("ffn_gate", HfRows::first_half), std::pair("ffn_up", HfRows::second_half)}) {
      HfTensor& made = add(fmt::format("{}{}{}", block, name, suffix));
      made.parts = {part(tensor)};
      made.rows = rows;
    }
  }

  void place_shared(const SafetensorsTensor& tensor, const std::string& block, std::string_view rest) {
    const auto [module, suffix] = split_suffix(rest);
    if (rest == "gate_up_proj.weight") return place_gate_and_up(tensor, block, "_shexp.weight");
    const HfName* name = find_name(kHfSharedNames, module);
    if (!name || suffix.empty()) refuse(tensor, "is not known");
    place_plain(tensor, fmt::format("{}{}{}", block, name->gguf, suffix));
  }

  void place_plain(const SafetensorsTensor& tensor, const std::string& name) {
    HfTensor& made = add(name);
    made.parts = {part(tensor)};
    const bool is_whole = config_.family->architecture == "muse-glimmer" && !name.starts_with("blk.");
    if (config_.family->norm_plus_one && name.ends_with("norm.weight") &&
        !name.ends_with("ssm_norm.weight") && !is_whole)
      made.added = 1;
    for (const auto& [ending, factors] : config_.factors)
      if (ending.starts_with('.') ? name.ends_with(ending) : name == ending) made.factors = factors;
    if (config_.delta_key_heads > 0 && config_.delta_tiled) made.tiles = tiles_of(name);
    const bool query = name.find(".attn_q.") != std::string::npos;
    if (config_.family->pairs && (query || name.find(".attn_k.") != std::string::npos)) {
      made.rows = HfRows::pairs;
      made.heads = query ? config_.heads : config_.kv_heads;
    }
    // GPT-NeoX, Falcon and BLOOM have the rows of a head of keys and values after those of the queries that share it.
    const std::string_view architecture = config_.family->architecture;
    if ((architecture == "gptneox" || architecture == "falcon" || architecture == "bloom") &&
        name.find(".attn_qkv.") != std::string::npos) {
      const uint64_t sharing = config_.heads / config_.kv_heads, all = config_.heads + 2 * config_.kv_heads;
      const uint64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0] / all;
      if (rows == 0) refuse(tensor, fmt::format("does not divide into {} heads", all));
      made.rows = HfRows::sections;
      made.sections = {config_.kv_heads,
                       (sharing + 2) * rows,
                       {{0, sharing * rows}, {sharing * rows, rows}, {(sharing + 1) * rows, rows}}};
    }
    // GPT-2 keeps its matrices the other way round, except for the embeddings.
    made.transposed =
        config_.family->model_type == "gpt2" && name.starts_with("blk.") && tensor.shape.size() == 2;
  }

  HfTiles tiles_of(const std::string& name) const {
    HfTiles tiles{.key_heads = config_.delta_key_heads, .value_heads = config_.delta_value_heads};
    const uint64_t keys = 2 * config_.delta_key_heads * config_.delta_key_dim;
    const auto is = [&](const char* ending) { return name.ends_with(ending); };
    tiles.columns = is(".ssm_out.weight");
    if (is(".attn_qkv.weight") || is(".ssm_conv1d.weight")) tiles.begin = keys;
    if (is(".ssm_beta.weight") || is(".ssm_alpha.weight") || is(".ssm_a") || is(".ssm_dt.bias")) {
      tiles.size = 1;
    } else if (tiles.columns || tiles.begin > 0 || is(".attn_gate.weight")) {
      tiles.size = config_.delta_value_dim;
    }
    return tiles.size == 0 ? HfTiles{} : tiles;
  }

  void place_experts(const SafetensorsTensor& tensor, const std::string& block, std::string_view rest) {
    if (config_.experts == 0) refuse(tensor, "is of an expert, and config.json speaks of none");
    if (const auto expert = take_index(rest)) {
      const auto [module, suffix] = split_suffix(rest);
      const HfName* name = find_name(kHfExpertNames, module);
      if (!name || suffix != ".weight") refuse(tensor, "is not known");
      if (*expert >= config_.experts)
        refuse(tensor, fmt::format("is of none of {} experts", config_.experts));
      return place_one_of(tensor, fmt::format("{}{}.weight", block, name->gguf), *expert, config_.experts);
    }
    place_all_experts(tensor, block, rest);
  }

  // All experts of a layer in one tensor, gate and up in one: halves, or, in gpt-oss, alternating rows.
  void place_all_experts(const SafetensorsTensor& tensor, const std::string& block, std::string_view rest) {
    const bool gpt_oss = config_.family->model_type == "gpt_oss";
    const bool transposed = gpt_oss || has_transposed_experts(tensor);
    const bool both = take_prefix(rest, "gate_up_proj"), up = !both && take_prefix(rest, "up_proj");
    if (!both && !up && !take_prefix(rest, "down_proj")) refuse(tensor, "is not known");
    const bool bias = rest == "_bias";
    const bool packed = rest == "_blocks";
    if (!bias && !packed && rest != ".weight" && !rest.empty()) refuse(tensor, "is not known");
    const auto add_part = [&](const char* name, HfRows rows) {
      HfTensor& made = add(fmt::format("{}{}{}", block, name, bias ? ".bias" : ".weight"));
      made.parts = {part(tensor)};
      made.rows = rows;
      made.transposed = transposed && !bias && !packed;
      if (packed) made.entry.dtype = DType::mxfp4;
    };
    if (!both) return add_part(up ? "ffn_up_exps" : "ffn_down_exps", HfRows::plain);
    add_part("ffn_gate_exps", gpt_oss ? HfRows::even : HfRows::first_half);
    add_part("ffn_up_exps", gpt_oss ? HfRows::odd : HfRows::second_half);
  }

  // Whether the experts of a layer have a column for each result: Qwen's with images were published so, and Transformers may save
  // them the other way round. The shape of the down projection tells.
  bool has_transposed_experts(const SafetensorsTensor& tensor) const {
    if (config_.family->model_type == "llama4_text") return true;
    if (config_.family->model_type != "qwen3_vl_moe_text") return false;
    const std::string folder = tensor.name.substr(0, tensor.name.rfind('.') + 1);
    const SafetensorsTensor* down = files_.find(folder + "down_proj");
    if (!down || down->shape.size() != 3 || config_.embedding == config_.expert_width) return true;
    return down->shape[1] == config_.expert_width;
  }

  HfPart part(const SafetensorsTensor& tensor) const {
    HfPart part{&tensor, nullptr, nullptr};
    if (const auto packed = packed_.matrices.find(tensor.name);
        packed != packed_.matrices.end() && &packed_.tensors.at(tensor.name) == &tensor) {
      part.packed = packed->second.get();
      return part;
    }
    if (tensor.name.ends_with("_blocks")) {
      part.scale = files_.find(tensor.name.substr(0, tensor.name.size() - 7) + "_scales");
      if (!part.scale) refuse(tensor, "has no \"_scales\" beside it");
      return part;
    }
    if (!is_hf_fp8(tensor)) return part;
    for (const char* suffix : {"_scale_inv", "_scale"})
      if (!part.scale) part.scale = files_.find(tensor.name + suffix);
    if (const auto [module, suffix] = split_suffix(tensor.name); !part.scale && suffix == ".weight")
      part.scale = files_.find(std::string(module) + ".scale");
    if (!part.scale) refuse(tensor, "is FP8 and has no scale beside it");
    return part;
  }

  // Of NVFP4, one for each expert.
  static HfTensor common_scales(const HfTensor& tensor) {
    HfTensor made;
    for (const HfPart& part : tensor.parts) made.computed.push_back(part.packed->common_scale);
    made.entry.name = scales_name_of(tensor);
    made.entry.shape = {made.computed.size()};
    made.entry.bytes = made.computed.size() * sizeof(float);
    return made;
  }

  const SafetensorsFolder& files_;
  const HfPackedTensors& packed_;
  const HfConfig& config_;
  const std::string& folder_;
  std::map<std::string, HfTensor> made_;
};

}  // namespace

std::vector<HfTensor> plan_hf_tensors(const SafetensorsFolder& files, const HfPackedTensors& packed,
                                      const HfConfig& config, const std::string& folder) {
  return Planner(files, packed, config, folder).plan();
}

}  // namespace quire
