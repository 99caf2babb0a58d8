#include <algorithm>
#include <iostream>
#include <map>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/kv_plan.h"
#include "cli/model_name.h"
#include "cli/model_options.h"
#include "cli/rank_plan.h"
#include "cli/what_if.h"
#include "kv/kv_cache.h"
#include "model/layer_blocks.h"
#include "model/synth.h"

namespace quire::cli {
namespace {

struct InspectCommand {
  ModelChoice model;
  std::string shape;  // of a model that is not there
  std::string type = "q4_0";
  std::string kv = usual_kv(*open_backend({.device = "cpu"}));
  std::optional<uint32_t> context;
  std::string memory;
  WhatIf what_if;
  RankPlan rank_plan;
  bool tensors = false;
  bool json = false;

  void operator()() const {
    const std::shared_ptr<ModelFile> file =
        shape.empty() ? open_model_file(model.path()) : synth_head(synth_shape(shape), TypeMix(type));
    ModelSpec spec = read_model_spec(*file);
    if (context) spec.context = *context;
    if (rank_plan.ranks > 0) {
      rank_plan.print(*file, spec, kv, json);
      return;
    }
    if (!what_if.changes.empty()) {
      what_if.print(file, spec, kv, all_memory(), json);
      return;
    }
    const KvFormats formats = parse_kv_formats(kv);
    const KvLayout layout = make_kv_layout(kv_shapes(spec, formats));
    if (json) {
      print_json(*file, spec, layout);
    } else {
      print(*file, spec, layout);
    }
  }

  // The model of which only the text is read, or null.
  static OrderedJson text_of(const ModelFile& file) {
    const auto whole = file.metadata().maybe_text("quire.text_of");
    return whole ? OrderedJson(*whole) : OrderedJson();
  }

  struct Totals {
    uint64_t parameters = 0;
    size_t bytes = 0;
    std::map<std::string, size_t> bytes_by_type;
  };

  static Totals totals(const ModelFile& file) {
    Totals totals;
    for (const TensorEntry& tensor : file.tensors()) {
      uint64_t values = 1;
      for (uint64_t size : tensor.shape) values *= size;
      totals.parameters += values;
      totals.bytes += tensor.bytes;
      totals.bytes_by_type[std::string(traits(tensor.dtype).name)] += tensor.bytes;
    }
    return totals;
  }

  static size_t full_context_bytes(const ModelSpec& spec, const KvLayout& layout) {
    return kv_bytes(layout, pages_for(layout, spec.context, std::min(spec.context, 512u), 1));
  }

  // Beside the weights: of the memory that was asked about, or that this machine has.
  size_t all_memory() const { return memory.empty() ? available_memory() : parse_size(memory); }
  size_t left_memory(const Totals& sum) const {
    const size_t all = all_memory();
    return all > sum.bytes ? all - sum.bytes : 0;
  }

  static uint32_t window_layers(const ModelSpec& spec) {
    return uint32_t(
        std::count_if(spec.layers.begin(), spec.layers.end(), [](const auto& l) { return l.window() > 0; }));
  }

  template <class BlockSpec>
  static const BlockSpec* part_of(const ParallelMlpSpec& both) {
    if constexpr (std::is_same_v<BlockSpec, DenseMlpSpec>) {
      return &both.dense;
    } else {
      return &both.experts;
    }
  }
  static uint32_t sharing_layers(const ModelSpec& spec) {
    return uint32_t(std::ranges::count_if(spec.layers, [](const LayerSpec& layer) {
      const auto* gqa = std::get_if<GqaSpec>(&layer.mixer);
      return gqa != nullptr && gqa->shares_with;
    }));
  }

  // One number of every layer that has such a block, in order.
  template <class BlockSpec, class Value>
  static std::vector<uint32_t> of_layers(const ModelSpec& spec, Value BlockSpec::*value) {
    std::vector<uint32_t> values;
    for (const LayerSpec& layer : spec.layers) {
      const BlockSpec* block = nullptr;
      if constexpr (std::is_same_v<BlockSpec, GqaSpec>) {
        block = layer.attention();
      } else if constexpr (std::is_same_v<BlockSpec, LatentSpec>) {
        block = std::get_if<LatentSpec>(&layer.mixer);
      } else if constexpr (std::is_same_v<BlockSpec, CompressedSpec>) {
        block = std::get_if<CompressedSpec>(&layer.mixer);
      } else {
        block = std::get_if<BlockSpec>(&layer.mlp);
        if (const auto* both = std::get_if<ParallelMlpSpec>(&layer.mlp)) block = part_of<BlockSpec>(*both);
      }
      if (block != nullptr) values.push_back(block->*value);
    }
    return values;
  }

  // "3 KV heads", "2 to 4 KV heads".
  static std::string spanned(const std::vector<uint32_t>& values, const std::string& what = {}) {
    if (values.empty()) return "0";
    const auto [least, most] = std::ranges::minmax(values);
    const std::string end = what.empty() ? std::to_string(most) : counted(most, what);
    return least == most ? end : fmt::format("{} to {}", least, end);
  }

  // A number, or one for each layer where they differ.
  static OrderedJson alike(const std::vector<uint32_t>& values) {
    if (values.empty()) return 0;
    if (std::ranges::count(values, values.front()) == ptrdiff_t(values.size())) return values.front();
    return values;
  }

  // Of how many tokens rows are, and how many layers have such.
  static std::map<uint32_t, uint32_t> layers_by_stride(const ModelSpec& spec) {
    std::map<uint32_t, uint32_t> layers;
    for (const uint32_t stride : of_layers(spec, &CompressedSpec::stride)) ++layers[stride];
    return layers;
  }

  static void print_rows(const ModelSpec& spec) {
    std::string text =
        fmt::format("the last {} tokens each; ", spanned(of_layers(spec, &CompressedSpec::window)));
    for (const auto& [stride, layers] : layers_by_stride(spec)) {
      if (stride == 0) {
        text += fmt::format("nothing else in {} of {} layers, ", layers, spec.layers.size());
        continue;
      }
      text += fmt::format("rows of {} tokens in {}, ", stride, layers);
      for (const LayerSpec& layer : spec.layers) {
        const auto* rows = std::get_if<CompressedSpec>(&layer.mixer);
        if (rows == nullptr || rows->stride != stride || !rows->index) continue;
        text += fmt::format("of which an index chooses {}, ", rows->index->most);
        break;
      }
    }
    fmt::print("  rows          {}\n", text.substr(0, text.size() - 2));
    if (spec.hyper)
      fmt::print("  streams       {} in place of one, which each block reads a mix of\n", spec.hyper->count);
  }

  static void print_mlps(const ModelSpec& spec) {
    const std::vector<uint32_t> widths = of_layers(spec, &DenseMlpSpec::width);
    const std::vector<uint32_t> experts = of_layers(spec, &ExpertMlpSpec::count);
    const auto layers = [&](size_t count) {
      return count == spec.layers.size() ? ""
                                         : fmt::format(", in {} of {} layers", count, spec.layers.size());
    };
    if (!experts.empty()) {
      fmt::print("  experts       {} of {} per token, width {}{}\n",
                 spanned(of_layers(spec, &ExpertMlpSpec::used)), spanned(experts),
                 spanned(of_layers(spec, &ExpertMlpSpec::width)), layers(experts.size()));
    }
    std::vector<uint32_t> shared;
    for (const LayerSpec& layer : spec.layers)
      if (layer.shared) shared.push_back(layer.shared->width);
    if (!shared.empty())
      fmt::print("  beside them   {} for every token{}\n", spanned(shared), layers(shared.size()));
    if (!widths.empty()) fmt::print("  feed-forward  {}{}\n", spanned(widths), layers(widths.size()));
  }

  // What each tensor is to its block, by name; several where it holds parts.
  static std::map<std::string, std::string> roles(const ModelFile& file, const ModelSpec& spec) {
    std::map<std::string, std::string> roles;
    for (const Role& role : all_roles(spec)) {
      std::string& names = roles[is_part(role, file) ? role.part.tensor : role.tensor];
      names += (names.empty() ? "" : ", ") + role.name;
    }
    for (const TensorEntry& tensor : file.tensors()) {
      if (const TensorEntry* scale = file.scale_of(tensor); scale != nullptr)
        roles[scale->name] =
            fmt::format("scale{} of {}", scale->shape.front() > 1 ? "s" : "", roles[tensor.name]);
    }
    return roles;
  }

  void print(const ModelFile& file, const ModelSpec& spec, const KvLayout& layout) const {
    const Totals sum = totals(file);
    std::string types;
    for (const auto& [name, bytes] : sum.bytes_by_type) {
      types += fmt::format("{}{} {}", types.empty() ? "" : ", ", name, human_bytes(bytes));
    }
    fmt::print("{}\n", file.path());
    fmt::print("  model         {} ({}), {:.1f} M parameters\n", spec.name, spec.architecture,
               double(sum.parameters) / 1e6);
    if (const auto whole = file.metadata().maybe_text("quire.text_of"))
      fmt::print("  text only     of {}, which also sees images\n", *whole);
    fmt::print("  weights       {} in {} tensors: {}\n", human_bytes(sum.bytes), file.tensors().size(),
               types);
    if (const std::vector<uint32_t> plain = of_layers(spec, &LatentSpec::plain_dim); !plain.empty()) {
      fmt::print("  layers        {}, width {}, {}, which share a latent row of {} values and {} rotated\n",
                 spec.layers.size(), spec.dim, spanned(of_layers(spec, &GqaSpec::heads), "query head"),
                 spanned(of_layers(spec, &GqaSpec::value_dim)), spanned(of_layers(spec, &GqaSpec::key_dim)));
    } else if (const std::vector<uint32_t> heads = of_layers(spec, &CompressedSpec::heads); !heads.empty()) {
      fmt::print("  layers        {}, width {}, {} of {}, which share rows that are key and value at once\n",
                 spec.layers.size(), spec.dim, spanned(heads, "query head"),
                 spanned(of_layers(spec, &CompressedSpec::head_dim)));
      print_rows(spec);
    } else {
      fmt::print("  layers        {}, width {}, {} and {} of {}\n", spec.layers.size(), spec.dim,
                 spanned(of_layers(spec, &GqaSpec::heads), "query head"),
                 spanned(of_layers(spec, &GqaSpec::kv_heads), "KV head"),
                 spanned(of_layers(spec, &GqaSpec::key_dim)));
    }
    print_mlps(spec);
    if (layout.has_states()) {
      fmt::print("  recurrent     {} of {} layers, a state of {} for each sequence\n",
                 std::ranges::count_if(spec.layers, &LayerSpec::is_recurrent), spec.layers.size(),
                 human_bytes(layout.state_bytes()));
    }
    if (const uint32_t windowed = window_layers(spec)) {
      const auto layer =
          std::find_if(spec.layers.begin(), spec.layers.end(), [](const auto& l) { return l.window() > 0; });
      fmt::print("  window        {} of {} layers see {} tokens\n", windowed, spec.layers.size(),
                 layer->window());
    }
    if (const uint32_t sharing = sharing_layers(spec))
      fmt::print("  shared        {} of {} layers read the keys and values of others and store none\n",
                 sharing, spec.layers.size());
    if (const TensorEntry* table = file.find(kLayerTable))
      fmt::print(
          "  inputs        {} values a token for each layer; their table of {} is read by row and stays in "
          "the file\n",
          spec.layer_inputs.width, human_bytes(table->bytes));
    if (const auto more = file.metadata().maybe_number(spec.architecture + ".nextn_predict_layers");
        more && *more > 0)
      fmt::print("  predicts      {} further, for --draft mtp\n", counted(*more, "token"));
    fmt::print("  vocabulary    {}\n", spec.vocab);
    fmt::print("  context       {} tokens\n", spec.context);
    const size_t lasting = lasting_bytes_per_token(layout);
    fmt::print("  KV cache      {} per token in {}, {} at the full context\n", human_bytes(lasting), kv,
               human_bytes(full_context_bytes(spec, layout)));
    if (lasting != layout.bytes_per_token())
      fmt::print("  windows       {} more for each token that a window still sees\n",
                 human_bytes(layout.bytes_per_token() - lasting));
    if (const size_t bytes = 1000 * lasting; bytes > 0)
      fmt::print(
          "  shared store  1,000 tokens are {} there: {:.2g} s at 1 Gbit/s, {:.2g} at 10 (serve "
          "--kv-remote)\n",
          human_bytes(bytes), double(bytes) / 125e6, double(bytes) / 1250e6);
    const size_t left = left_memory(sum);
    if (const size_t all = all_memory()) {
      fmt::print("  {}  {} available, {} left beside the weights: {:.1f} sequences of {} tokens\n",
                 memory.empty() ? "this machine" : "memory      ", human_bytes(all), human_bytes(left),
                 double(left) / double(full_context_bytes(spec, layout)), spec.context);
    }
    fmt::print("\n{}", kv_table("KV format", kv_by_format(spec, kv, spec.context, left), spec.context));
    if (!shape.empty() && !layout.has_states()) {
      const auto rows = kv_by_attention(spec, parse_kv_formats(kv), spec.context, left);
      fmt::print("\n{}", kv_table(fmt::format("attention, in {}", kv), rows, spec.context));
    }
    if (!tensors) return;
    fmt::print("\n");
    std::map<std::string, std::string> role_of = roles(file, spec);
    for (const TensorEntry& tensor : file.tensors()) {
      fmt::print("  {:40} {:8} {:20} {}\n", tensor.name, traits(tensor.dtype).name,
                 fmt::format("[{}]", fmt::join(tensor.shape, ", ")), role_of[tensor.name]);
    }
  }

  void print_json(const ModelFile& file, const ModelSpec& spec, const KvLayout& layout) const {
    const Totals sum = totals(file);
    const size_t left = left_memory(sum);
    std::vector<uint32_t> widths = of_layers(spec, &DenseMlpSpec::width);
    if (widths.empty()) widths = of_layers(spec, &ExpertMlpSpec::width);
    OrderedJson object = {{"path", file.path()},
                          {"name", spec.name},
                          {"architecture", spec.architecture},
                          {"text_of", text_of(file)},
                          {"parameters", sum.parameters},
                          {"weight_bytes", sum.bytes},
                          {"weight_bytes_by_type", sum.bytes_by_type},
                          {"layers", spec.layers.size()},
                          {"window_layers", window_layers(spec)},
                          {"sharing_layers", sharing_layers(spec)},
                          {"width", spec.dim},
                          {"heads", alike(of_layers(spec, &GqaSpec::heads))},
                          {"kv_heads", alike(of_layers(spec, &GqaSpec::kv_heads))},
                          {"head_dim", alike(of_layers(spec, &GqaSpec::key_dim))},
                          {"feed_forward", alike(widths)},
                          {"experts", alike(of_layers(spec, &ExpertMlpSpec::count))},
                          {"experts_used", alike(of_layers(spec, &ExpertMlpSpec::used))},
                          {"vocabulary", spec.vocab},
                          {"context", spec.context},
                          {"kv",
                           {{"format", kv},
                            {"bytes_per_token", lasting_bytes_per_token(layout)},
                            {"bytes_at_full_context", full_context_bytes(spec, layout)}}},
                          {"memory",
                           {{"available_bytes", all_memory()},
                            {"left_beside_weights_bytes", left},
                            {"full_sequences", left / full_context_bytes(spec, layout)}}},
                          {"kv_formats", kv_json(kv_by_format(spec, kv, spec.context, left))}};
    if (const std::vector<uint32_t> plain = of_layers(spec, &LatentSpec::plain_dim); !plain.empty()) {
      object["head_dim"] = plain.front() + spec.layers.front().gqa().key_dim;
      object["latent"] = {{"values", alike(of_layers(spec, &GqaSpec::value_dim))},
                          {"rotated", alike(of_layers(spec, &GqaSpec::key_dim))}};
    }
    if (const std::vector<uint32_t> heads = of_layers(spec, &CompressedSpec::heads); !heads.empty()) {
      object["heads"] = alike(heads);
      object["kv_heads"] = 1;
      object["head_dim"] = alike(of_layers(spec, &CompressedSpec::head_dim));
      object["row_tokens"] = of_layers(spec, &CompressedSpec::stride);
      object["kv"]["window_bytes_per_token"] = layout.bytes_per_token() - lasting_bytes_per_token(layout);
    }
    if (layout.has_states()) {
      object["recurrent_layers"] = std::ranges::count_if(spec.layers, &LayerSpec::is_recurrent);
      object["kv"]["state_bytes"] = layout.state_bytes();
    }
    if (!shape.empty() && !layout.has_states()) {
      object["attention_kinds"] = kv_json(kv_by_attention(spec, parse_kv_formats(kv), spec.context, left));
    }
    if (tensors) {
      object["tensors"] = OrderedJson::array();
      std::map<std::string, std::string> role_of = roles(file, spec);
      for (const TensorEntry& tensor : file.tensors()) {
        object["tensors"].push_back({{"name", tensor.name},
                                     {"type", traits(tensor.dtype).name},
                                     {"shape", tensor.shape},
                                     {"role", role_of[tensor.name]},
                                     {"bytes", tensor.bytes}});
      }
    }
    std::cout << object.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  }
};

}  // namespace

void add_inspect(CLI::App& app) {
  auto command = std::make_shared<InspectCommand>();
  CLI::App* inspect = app.add_subcommand("inspect", "what is in a model file, and what fits in this memory");
  CLI::Option* model =
      inspect->add_option("model,-m,--model", command->model.model, kModelHelp)->capture_default_str();
  ModelChoice::add_offline_to(*inspect, command->model.offline);
  std::vector<std::string> shapes;
  for (const SynthShape& shape : synth_shapes()) shapes.push_back(shape.name);
  CLI::Option* shape =
      inspect->add_option("--shape", command->shape, "plan for the measures of a known model, without a file")
          ->excludes(model)
          ->check(CLI::IsMember(shapes));
  inspect->add_option("--type", command->type, "with --shape: the type of its weights, q4_0, q8_0, f16, ...")
      ->capture_default_str();
  inspect
      ->add_option("--ctx", command->context,
                   "tokens of a sequence to plan for (default: what the model was trained for)")
      ->check(CLI::Range(2u, 1u << 24));
  inspect->add_option("--memory", command->memory,
                      "plan for this much memory instead of this machine's, e.g. 24G");
  inspect->add_option("--kv", command->kv, kKvHelp)->capture_default_str();
  CLI::Option* ranks =
      inspect
          ->add_option("--ranks", command->rank_plan.ranks,
                       "plan for so many processes (mpirun) that divide the model: memory of each, bytes on "
                       "the wire, how fast that can be on which network")
          ->check(CLI::Range(1u, 1024u));
  inspect
      ->add_option("--what-if", command->what_if.changes,
                   "predict TTFT and ITL as they are and after changes: "
                   "bandwidth=2x,flops=2x,kv=int8,ctx=8192,batch=8")
      ->excludes(shape)
      ->excludes(ranks);
  inspect
      ->add_option("--prompt", command->what_if.prompts,
                   "with --what-if: tokens of the prompt (default: 512)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, 1u << 24));
  inspect
      ->add_option("--depth", command->what_if.depths,
                   "with --what-if: tokens before the next (default: 512)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0u, 1u << 24));
  add_device_to(*inspect, command->what_if.device);
  inspect->add_option("--threads", command->what_if.threads, "with --what-if: threads that compute")
      ->check(CLI::Range(1u, 1024u));
  inspect->add_option("--seconds", command->what_if.seconds, "with --what-if: about how long to measure")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 600.0));
  inspect->add_flag("--tensors", command->tensors, "list every tensor");
  inspect->add_flag("--json", command->json, "print one JSON object");
  inspect->callback([command] { (*command)(); });
}

}  // namespace quire::cli
