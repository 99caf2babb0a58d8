#include "cli/kv_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace quire::cli {
namespace {

constexpr const char* kUsualFormats[] = {"f16", "int8", "fp8", "q4", "k=int8,v=q4"};
constexpr uint32_t kWindow = 4096;
constexpr uint32_t kNarrowWindow = 1024;
constexpr uint32_t kFullEvery = 6;  // where most layers have a narrow window, one of six sees everything

// Of a model with full heads: as many as grouped models usually have, if they divide the query heads evenly.
uint32_t grouped_heads(const ModelSpec& spec) {
  const GqaSpec& gqa = spec.layers.front().gqa();  // planned shapes have layers that are all alike
  if (gqa.kv_heads > 1 && gqa.kv_heads < gqa.heads) return gqa.kv_heads;
  for (uint32_t heads = std::min(8u, gqa.heads - 1); heads > 1; --heads) {
    if (gqa.heads % heads == 0) return heads;
  }
  return 0;
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
  const GqaSpec own = spec.layers.front().gqa();
  std::vector<KvPlanRow> rows;
  const auto add = [&](std::string name, bool chosen) {
    rows.push_back({std::move(name), kv_room(spec, formats, context, bytes), chosen});
  };
  if (windows) {
    add("as it is, with its windows", true);
    for (LayerSpec& layer : spec.layers) layer.gqa().window = 0;
  }
  const auto add_heads = [&](const char* what, uint32_t heads) {
    for (LayerSpec& layer : spec.layers) layer.gqa().kv_heads = heads;
    add(fmt::format("{}: {} for {}", what, counted(heads, "KV head"), own.heads),
        !windows && heads == own.kv_heads);
  };
  add_heads("full heads", own.heads);
  if (const uint32_t grouped = grouped_heads(spec)) add_heads("grouped", grouped);
  if (own.heads > 1) add_heads("one KV head", 1);
  for (LayerSpec& layer : spec.layers) {
    layer.gqa().kv_heads = own.kv_heads;
    layer.gqa().window = kWindow;
  }
  add(fmt::format("window of {} in every layer", kWindow), false);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaSpec& gqa = spec.layers[i].gqa();
    gqa.window = i % kFullEvery == kFullEvery - 1 ? 0 : kNarrowWindow;
    if (gqa.shares_with) gqa.window = spec.layers[*gqa.shares_with].gqa().window;  // whose rows it reads
  }
  add(fmt::format("window of {} in {} of {} layers", kNarrowWindow, kFullEvery - 1, kFullEvery), false);
  return rows;
}

std::string kv_table(const std::string& what, const std::vector<KvPlanRow>& rows, uint32_t context) {
  size_t width = what.size();
  for (const KvPlanRow& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format("  {:{}}  {:>15}  {:>17}  {:>9}  {:>10}\n", what, width, "bytes per token",
                                 fmt::format("at {} tokens", context), "sequences", "tokens");
  for (const KvPlanRow& row : rows) {
    text += fmt::format("  {:{}}  {:>15}  {:>17}  {:>9.1f}  {:>10}{}\n", row.name, width,
                        row.room.bytes_per_token, binary_bytes(row.room.sequence_bytes), row.room.sequences,
                        row.room.tokens, row.chosen ? "  *" : "");
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
