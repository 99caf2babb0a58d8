#include "cli/kv_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "model/layer_blocks.h"

namespace quire::cli {
namespace {

constexpr const char* kUsualFormats[] = {"f16", "int8", "fp8", "q4", "k=int8,v=q4"};
constexpr uint32_t kWindow = 4096;
constexpr uint32_t kNarrowWindow = 1024;
constexpr uint32_t kFullEvery = 6;  // where most layers have a narrow window, one of six sees everything

// Of a model with full heads: as many as grouped models usually have, if they divide the query heads evenly.
uint32_t grouped_heads(const GqaSpec& gqa) {
  if (gqa.kv_heads > 1 && gqa.kv_heads < gqa.heads) return gqa.kv_heads;
  for (uint32_t heads = std::min(8u, gqa.heads - 1); heads > 1; --heads) {
    if (gqa.heads % heads == 0) return heads;
  }
  return 0;
}

// The heads of a layer, whatever they read.
GqaSpec heads_of(const LayerSpec& layer) {
  if (const auto* rows = std::get_if<CompressedSpec>(&layer.mixer))
    return {.heads = rows->heads,
            .kv_heads = 1,
            .key_dim = rows->head_dim,
            .value_dim = rows->head_dim,
            .scale = rows->scale};
  return layer.gqa();
}

// The same heads with keys and values as such heads have them, and without a window.
GqaSpec full_heads(const LayerSpec& layer) {
  GqaSpec gqa = heads_of(layer);
  if (const auto* latent = std::get_if<LatentSpec>(&layer.mixer)) {
    gqa.key_dim += latent->plain_dim;
    gqa.value_dim = latent->value_dim;
  }
  gqa.window = 0;
  return gqa;
}

// As DeepSeek's layers have it: the latent is as wide as four heads, and half a head is rotated.
LatentSpec latent_of(const GqaSpec& gqa) {
  LatentSpec latent{.attention = gqa, .plain_dim = gqa.key_dim, .value_dim = gqa.value_dim};
  latent.attention.kv_heads = 1;
  latent.attention.key_dim = gqa.key_dim / 4 * 2;
  latent.attention.value_dim = 4 * gqa.value_dim;
  return latent;
}

double attention_ops(const ModelSpec& spec, const KvFormats& formats, uint32_t context) {
  const KvLayout layout = make_kv_layout(kv_shapes(spec, formats));
  double ops = 0;
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    std::vector<const KvLayerLayout*> streams;
    for (const KvLayout::Place& place : layout.places[l]) streams.push_back(&layout.at(place));
    const StepShape shape{.sequences = 1, .tokens = 1, .depth = context - 1};
    ops += block_of(spec.layers[l].mixer, spec.dim)->cost(shape, streams).f32_ops;
  }
  return ops;
}

}  // namespace

std::vector<KvPlanRow> kv_by_format(const ModelSpec& spec, const std::string& chosen, uint32_t context,
                                    size_t bytes) {
  std::vector<std::string> names(std::begin(kUsualFormats), std::end(kUsualFormats));
  if (std::find(names.begin(), names.end(), chosen) == names.end()) names.push_back(chosen);
  std::vector<KvPlanRow> rows;
  for (const std::string& name : names) {
    const KvFormats formats = parse_kv_formats(name);
    try {
      rows.push_back({name, kv_room(spec, formats, context, bytes), name == chosen});
    } catch (const Error&) {
      if (name == chosen) throw;
    }
  }
  return rows;
}

std::vector<KvPlanRow> kv_by_attention(ModelSpec spec, const KvFormats& formats, uint32_t context,
                                       size_t bytes) {
  const bool windows = std::ranges::any_of(spec.layers, [](const LayerSpec& l) { return l.window() > 0; });
  const bool is_latent = std::holds_alternative<LatentSpec>(spec.layers.front().mixer);
  const bool is_compressed = std::holds_alternative<CompressedSpec>(spec.layers.front().mixer);
  const GqaSpec own = heads_of(spec.layers.front());
  std::vector<GqaSpec> heads;
  for (const LayerSpec& layer : spec.layers) heads.push_back(full_heads(layer));
  std::vector<KvPlanRow> rows;
  const auto add = [&](std::string name, bool chosen) {
    rows.push_back({std::move(name), kv_room(spec, formats, context, bytes), chosen,
                    attention_ops(spec, formats, context)});
  };
  const auto add_latent = [&](bool chosen) {
    const GqaSpec& row = spec.layers.front().gqa();
    add(fmt::format("latent rows: {} values and {} rotated", row.value_dim, row.key_dim), chosen);
  };
  // `shape`: what becomes of a layer's heads.
  const auto set_layers = [&](const auto& shape) {
    for (size_t l = 0; l < spec.layers.size(); ++l) spec.layers[l].mixer = shape(l, heads[l]);
  };
  const auto share = [&](uint32_t kv_heads) {
    set_layers([&](size_t, GqaSpec gqa) -> MixerSpec {
      gqa.kv_heads = kv_heads;
      return gqa;
    });
  };
  if (is_latent) add_latent(true);
  if (is_compressed) add("rows of several tokens beside a window", true);
  if (windows) add("as it is, with its windows", true);
  const auto add_heads = [&](const char* what, uint32_t kv_heads) {
    share(kv_heads);
    add(fmt::format("{}: {} for {}", what, counted(kv_heads, "KV head"), own.heads),
        !windows && !is_latent && !is_compressed && kv_heads == own.kv_heads);
  };
  add_heads("full heads", own.heads);
  const uint32_t grouped = grouped_heads(is_latent || is_compressed ? heads.front() : own);
  if (grouped > 0) add_heads("grouped", grouped);
  if (own.heads > 1) add_heads("one KV head", 1);
  if (!is_latent && !is_compressed) {
    set_layers([](size_t, const GqaSpec& gqa) -> MixerSpec { return latent_of(gqa); });
    add_latent(false);
  }
  const uint32_t usual_heads = !is_latent && !is_compressed ? own.kv_heads : std::max(grouped, 1u);
  const auto see = [&](const auto& window) {
    set_layers([&](size_t layer, GqaSpec gqa) -> MixerSpec {
      gqa.kv_heads = usual_heads;
      gqa.window = window(layer);
      return gqa;
    });
  };
  see([](size_t) { return kWindow; });
  add(fmt::format("window of {} in every layer", kWindow), false);
  see([&](size_t layer) {
    if (heads[layer].shares_with) layer = *heads[layer].shares_with;  // whose rows it reads
    return layer % kFullEvery == kFullEvery - 1 ? 0 : kNarrowWindow;
  });
  add(fmt::format("window of {} in {} of {} layers", kNarrowWindow, kFullEvery - 1, kFullEvery), false);
  return rows;
}

std::string kv_table(const std::string& what, const std::vector<KvPlanRow>& rows, uint32_t context) {
  size_t width = what.size();
  for (const KvPlanRow& row : rows) width = std::max(width, row.name.size());
  const bool ops = std::ranges::any_of(rows, [](const KvPlanRow& row) { return row.ops > 0; });
  std::string text = fmt::format("  {:{}}  {:>15}  {:>17}  {:>9}  {:>10}{}\n", what, width, "bytes per token",
                                 fmt::format("at {} tokens", context), "sequences", "tokens",
                                 ops ? "  GFLOP for the last" : "");
  for (const KvPlanRow& row : rows) {
    text += fmt::format("  {:{}}  {:>15}  {:>17}  {:>9.1f}  {:>10}{}{}\n", row.name, width,
                        row.room.bytes_per_token, binary_bytes(row.room.sequence_bytes), row.room.sequences,
                        row.room.tokens, ops ? fmt::format("  {:>18.2f}", row.ops / 1e9) : "",
                        row.chosen ? "  *" : "");
  }
  return text + "  * as it is\n";
}

OrderedJson kv_json(const std::vector<KvPlanRow>& rows) {
  OrderedJson list = OrderedJson::array();
  for (const KvPlanRow& row : rows) {
    list.push_back({{"name", row.name},
                    {"bytes_per_token", row.room.bytes_per_token},
                    {"bytes_at_context", row.room.sequence_bytes},
                    {"sequences", row.room.sequences},
                    {"tokens", row.room.tokens},
                    {"chosen", row.chosen}});
    if (row.ops > 0) list.back()["flops_of_last_token"] = row.ops;
  }
  return list;
}

std::string binary_bytes(size_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.3f} {}", value, kUnits[unit]);
}

}  // namespace quire::cli
