#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "kv/layout/kv_formats.h"
#include "kv/tiers/kv_snapshot.h"

// Whose pages a snapshot has, as text, and in what two of them differ.

namespace quire {
namespace {

constexpr size_t kLongestName = 100;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

Json stream_json(const KvLayerLayout& layer) {
  Json json = {{"kv_heads", layer.shape.kv_heads},     {"key_dim", layer.shape.key_dim},
               {"value_dim", layer.shape.value_dim},   {"k", name(layer.shape.key_format)},
               {"v", name(layer.shape.value_format)},  {"offset", layer.offset},
               {"key_row_bytes", layer.key_row_bytes}, {"value_row_bytes", layer.value_row_bytes},
               {"head_bytes", layer.head_bytes}};
  if (layer.shape.state) json["state"] = true;
  if (layer.shape.stride != 1) json["stride"] = layer.shape.stride;
  return json;
}

Json layout_json(const KvLayout& layout) {
  Json groups = Json::array(), places = Json::array();
  for (const KvGroupLayout& group : layout.groups) {
    Json layers = Json::array();
    for (const KvLayerLayout& layer : group.layers) layers.push_back(stream_json(layer));
    groups.push_back({{"page_tokens", group.page_tokens},
                      {"window", group.window},
                      {"page_bytes", group.page_bytes},
                      {"layers", std::move(layers)}});
  }
  for (const auto& streams : layout.places) {
    for (const KvLayout::Place& place : streams) places.push_back({place.group, place.slot});
  }
  return {{"groups", std::move(groups)}, {"places", std::move(places)}};
}

// As --kv wants it.
std::string formats_of(const KvLayout& layout) {
  std::vector<KvFormatPair> layers;
  for (const auto& streams : layout.places) {
    // The others' are the model's, and in its layout.
    const auto chosen = std::ranges::find_if(
        streams, [&](const KvLayout::Place& place) { return !layout.at(place).shape.own_format; });
    if (chosen == streams.end()) continue;
    const KvStream& shape = layout.at(*chosen).shape;
    layers.push_back({shape.key_format, shape.value_format});
  }
  return describe_formats(layers);
}

// What an identity from outside says of something, for a person: whatever it is, in few characters of one line.
std::string said(const Json& identity, const char* field) {
  if (!identity.is_object() || !identity.contains(field)) return "(nothing)";
  const Json& value = identity[field];
  std::string text = text_of(value);
  if (value.is_string() && text.size() >= 2) text = text.substr(1, text.size() - 2);
  return text.size() <= kLongestName ? text : text.substr(0, kLongestName) + "...";
}

}  // namespace

std::string describe(const KvIdentity& identity, const KvLayout& layout) {
  return text_of({{"model_name", identity.model_name.substr(0, kLongestName)},
                  {"model", identity.model},
                  {"positions", identity.positions},
                  {"kernels", identity.kernels},
                  {"numerics", identity.numerics},
                  {"kv", formats_of(layout)},
                  {"page_tokens", layout.node_tokens},
                  {"layout", layout_json(layout)}});
}

std::string difference(const std::string& snapshot, const std::string& run) {
  Json theirs;
  try {
    theirs = parse_json(snapshot, "its identity");
  } catch (const Error& error) {
    return fmt::format("this snapshot does not say what it is of: {}", error.what());
  }
  const Json own = parse_json(run, "this run's identity");
  const auto differs = [&](const char* field) {
    return !theirs.is_object() || !theirs.contains(field) || theirs[field] != own[field];
  };
  const auto sentence = [&](const char* text, const char* field) {
    return fmt::format(fmt::runtime(text), said(theirs, field), said(own, field));
  };
  if (differs("model")) {
    if (!differs("model_name"))
      return fmt::format(
          "this snapshot was made by a model named '{}' as well, but with other weights or metadata",
          said(own, "model_name"));
    return sentence("this snapshot was made by the model '{}', this run has '{}'", "model_name");
  }
  if (differs("kv")) return sentence("this snapshot was made with --kv {}, this run uses {}", "kv");
  if (differs("positions"))
    return "this snapshot was made with another --ctx, on which this model's rotary frequencies depend";
  if (differs("kernels"))
    return sentence("this snapshot was made with the kernels '{}', this run uses '{}'", "kernels");
  if (differs("numerics"))
    return sentence("this snapshot has version {} of the arithmetic, this program computes by version {}",
                    "numerics");
  if (differs("page_tokens"))
    return sentence("this snapshot has pages of {} tokens, this run has pages of {}", "page_tokens");
  return "this snapshot's layers lie otherwise in their pages than this run's";
}

}  // namespace quire
