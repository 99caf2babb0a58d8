#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr uint64_t kMaxExperts = 1 << 16;
constexpr uint64_t kMaxSharedExperts = 64;

// The experts of a config.json in GGUF's words.
class Experts {
 public:
  Experts(const HfObject& config, HfConfig& out)
      : config_(config), out_(out), arch_(out.family->architecture) {}

  void convert() {
    // Some files hold them, and some that do not speak of them.
    if (arch_ == "glm4moe" || arch_ == "minimax-m2" || arch_ == "hy_v3" || is_hf_latent(*out_.family))
      out_.more_layers = std::min<uint64_t>(
          number({"num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers"}, 0), 64);
    if (arch_.starts_with("qwen35"))
      out_.more_layers = std::min<uint64_t>(number({"mtp_num_hidden_layers"}, 0), 64);
    if (arch_ == "gemma4" && !config_.maybe_flag("enable_moe_block").value_or(false)) return;
    const auto count = same({"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"});
    if (!count) return;
    if (*count == 0 || *count > kMaxExperts) throw Error("{}: {} experts", config_.where(), *count);
    out_.experts = *count;
    set("expert_count", out_.experts);
    const auto used = same({"num_experts_per_tok", "num_experts_per_token", "experts_per_token",
                            "top_k_experts", "moe_k", "moe_topk"});
    if (!used || *used == 0 || *used > *count)
      throw Error("{}: \"num_experts_per_tok\" is {} of {} experts", config_.where(), used.value_or(0),
                  *count);
    set("expert_used_count", *used);
    add_widths();
    add_routing();
    add_dense_layers();
    if (arch_ == "gpt-oss" || arch_ == "minimax-m3") {
      out_.metadata.set("quire.swiglu_limit", positive("swiglu_limit", 7.0));
      out_.metadata.set("quire.swiglu_alpha", positive("swiglu_alpha", 1.702));
    }
  }

 private:
  void set(std::string_view name, MetadataValue value) {
    out_.metadata.set(fmt::format("{}.{}", arch_, name), std::move(value));
  }

  double positive(const char* name, double usual) const {
    const double value = config_.maybe_real(name).value_or(usual);
    if (!(value > 0) || !std::isfinite(value)) throw Error("{}: \"{}\" is {}", config_.where(), name, value);
    return value;
  }

  uint64_t number(std::initializer_list<const char*> names, uint64_t usual) const {
    for (const char* name : names) {
      if (const auto value = config_.maybe_number(name)) return *value;
    }
    return usual;
  }

  // What a config says once or for every layer, where it is the same for all.
  std::optional<uint64_t> same(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (!config_.has(name)) continue;
      const std::vector<uint64_t> values = config_.numbers(name);
      if (values.empty() || std::ranges::count(values, values.front()) != ptrdiff_t(values.size()))
        throw Error("{}: \"{}\" differs between layers, which is not supported", config_.where(), name);
      return values.front();
    }
    return {};
  }

  void add_widths() {
    const bool named = config_.has("moe_intermediate_size") && arch_ != "hunyuan-moe";
    const char* name = named ? "moe_intermediate_size" : "intermediate_size";
    out_.expert_width = hf_count(config_, {name});
    set("expert_feed_forward_length", out_.expert_width);
    uint64_t shared = number({"n_shared_experts", "moe_num_shared_experts", "num_shared_experts"}, 0);
    if (shared > kMaxSharedExperts) throw Error("{}: {} shared experts", config_.where(), shared);
    if (arch_ == "hunyuan-moe" || arch_ == "llama4") shared = 1;
    constexpr const char* kSharedWidths[] = {"shared_expert_intermediate_size", "shared_intermediate_size",
                                             "moe_shared_expert_intermediate_size"};
    const auto* shared_width =
        std::ranges::find_if(kSharedWidths, [&](const char* name) { return config_.has(name); });
    if (shared_width != std::end(kSharedWidths)) {
      const uint64_t width = hf_count(config_, {*shared_width});
      set("expert_shared_feed_forward_length", width);
      if (arch_ == "minimax-m3" && width % out_.expert_width == 0)  // which other readers ask for
        set("expert_shared_count", width / out_.expert_width);
    } else if (shared > 0) {
      set("expert_shared_count", shared);
      set("expert_shared_feed_forward_length", shared * out_.expert_width);
    }
  }

  void add_routing() {
    const HfFamily& family = *out_.family;
    if (family.score != HfScore::usual) set("expert_gating_func", uint64_t(family.score));
    if (arch_ == "cohere2moe")
      set("expert_gating_func",
          uint64_t(config_.maybe_text("expert_selection_fn").value_or("softmax") == "sigmoid" ? 2 : 3));
    // What is said of V2 was never done.
    const bool is_v2 = family.model_type == "deepseek_v2";
    const char* key = config_.has("moe_renormalize") ? "moe_renormalize" : "norm_topk_prob";
    const bool normalized = !is_v2 && config_.maybe_flag(key).value_or(family.normalized);
    set("expert_weights_norm", normalized);
    const char* scale_key = config_.has("router_scaling_factor")       ? "router_scaling_factor"
                            : config_.has("moe_routed_scaling_factor") ? "moe_routed_scaling_factor"
                                                                       : "routed_scaling_factor";
    const double scale = positive(scale_key, 1);
    if (scale != 1) set("expert_weights_scale", scale);
    const uint64_t groups = number({"n_group", "num_expert_group"}, 1);
    const bool grouped = !is_v2 || config_.maybe_text("topk_method").value_or("greedy") != "greedy";
    if (groups <= 1 || !grouped) return;
    set("expert_group_count", groups);
    set("expert_group_used_count", hf_count(config_, {"topk_group"}));
  }

  // One bool per layer: has it a dense MLP, and no experts?
  std::vector<bool> dense_layers() const {
    const uint64_t layers = out_.layers;
    const uint64_t first = number({"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"},
                                  arch_ == "hy_v3" ? 1 : 0);
    const uint64_t step = std::max<uint64_t>(
        number({"decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step"}, 1), 1);
    std::vector<bool> dense(layers);
    if (is_hf_compressed(*out_.family)) return dense;  // its "mlp_layer_types" speak of something else
    for (uint64_t i = 0; i < layers; ++i) dense[i] = i < first || (i + 1) % step != 0;
    for (const uint64_t layer : config_.numbers("mlp_only_layers")) {
      if (layer >= layers)
        throw Error("{}: \"mlp_only_layers\" speaks of layer {} of {}", config_.where(), layer, layers);
      dense[layer] = true;
    }
    if (const auto kinds = config_.texts("mlp_layer_types"); is_hf_latent(*out_.family) && !kinds.empty()) {
      if (kinds.size() != layers)
        throw Error("{}: \"mlp_layer_types\" speaks of {} layers, but there are {}", config_.where(),
                    kinds.size(), layers);
      for (uint64_t i = 0; i < layers; ++i) dense[i] = kinds[i] == "dense";
    }
    if (const auto end = config_.maybe_real("moe_layer_end_index"); end && *end >= 0) {
      for (uint64_t i = 0; i < layers; ++i) dense[i] = dense[i] || double(i) > *end;
    }
    if (const std::vector<std::string> kinds = config_.texts("mlp_layer_types"); !kinds.empty()) {
      if (kinds.size() != layers)
        throw Error("{}: \"mlp_layer_types\" speaks of {} layers, but there are {}", config_.where(),
                    kinds.size(), layers);
      for (uint64_t i = 0; i < layers; ++i) {
        dense[i] = kinds[i] == "dense";
        if (!dense[i] && kinds[i] != "sparse")
          throw Error("{}: \"mlp_layer_types\" has {}; known are dense and sparse", config_.where(),
                      in_quotes(kinds[i]));
      }
    }
    if (const auto each = config_.numbers("moe_layer_freq"); each.size() == layers && layers > 1) {
      for (uint64_t i = 0; i < layers; ++i) dense[i] = each[i] == 0;
    }
    if (config_.has("moe_layers")) {
      dense.assign(layers, true);
      for (const uint64_t layer : config_.numbers("moe_layers")) {
        if (layer >= layers)
          throw Error("{}: \"moe_layers\" speaks of layer {} of {}", config_.where(), layer, layers);
        dense[layer] = false;
      }
    }
    return dense;
  }

  void add_dense_layers() {
    const std::vector<bool> dense = dense_layers();
    const auto last = std::find(dense.begin(), dense.end(), false);
    const bool leading = std::find(last, dense.end(), true) == dense.end();
    if (leading && last != dense.begin()) set("leading_dense_block_count", uint64_t(last - dense.begin()));
    if (!leading) out_.metadata.set("quire.dense_layers", dense);
    if (arch_ == "llama4") set("interleave_moe_layer_step", number({"interleave_moe_layer_step"}, 1));
  }

  const HfObject& config_;
  HfConfig& out_;
  std::string_view arch_;
};

double only_value(const SafetensorsFolder& files, const std::string& name) {
  const SafetensorsTensor* tensor = files.find(name);
  if (tensor == nullptr) throw Error("the tensor {} is missing", in_quotes(name));
  float value = 0;
  if (tensor->type == SafetensorsType::bf16 && tensor->bytes.size() == 2) {
    dequantize_row(DType::bf16, tensor->bytes.data(), {&value, 1});
  } else if (tensor->type == SafetensorsType::f16 && tensor->bytes.size() == 2) {
    dequantize_row(DType::f16, tensor->bytes.data(), {&value, 1});
  } else if (tensor->type == SafetensorsType::f32 && tensor->bytes.size() == 4) {
    dequantize_row(DType::f32, tensor->bytes.data(), {&value, 1});
  } else {
    throw Error("the tensor {} is not one number", in_quotes(name));
  }
  return double(value);
}

}  // namespace

void add_hf_experts(const HfObject& config, HfConfig& out) {
  Experts(config, out).convert();
}

void add_hf_values(const SafetensorsFolder& files, HfConfig& out) {
  if (out.family->architecture != "apertus") return;
  for (const char* name : {"alpha_p", "alpha_n", "beta", "eps"}) {
    std::vector<double> values;
    for (uint64_t layer = 0; layer < out.layers; ++layer)
      values.push_back(only_value(files, fmt::format("model.layers.{}.mlp.act_fn.{}", layer, name)));
    out.metadata.set(fmt::format("xielu.{}", name), values);
  }
}

}  // namespace quire
