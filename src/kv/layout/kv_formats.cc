#include "kv/layout/kv_formats.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "base/error.h"

namespace quire {
namespace {

KvFormat parse_format(std::string_view text) {
  if (const auto format = kv_format_from_name(text)) return *format;
  std::string known;
  for (const KvFormat format : kKvFormats)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name(format));
  throw Error(
      "'{}' is not a KV format; known are {}, apart k=FORMAT,v=FORMAT, and for some layers LAYERS:FORMAT",
      text, known);
}

// Sets what is not set yet. `text`: FORMAT, k=FORMAT or v=FORMAT.
void parse_item(std::string_view text, std::optional<KvFormat>& key, std::optional<KvFormat>& value) {
  const bool is_key = text.starts_with("k="), is_value = text.starts_with("v=");
  const KvFormat format = parse_format(is_key || is_value ? text.substr(2) : text);
  if ((!is_value && key) || (!is_key && value))
    throw Error("the KV format '{}' comes after another for the same layers", text);
  if (!is_value) key = format;
  if (!is_key) value = format;
}

}  // namespace

uint32_t KvFormats::parse_layer(std::string_view text) {
  if (text == "last") return kLast;
  uint32_t layer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (error != std::errc() || end != text.data() + text.size() || layer == kLast)
    throw Error("'{}' is no layer: KV formats are for a layer like 3, layers like 0-3, or 'last'", text);
  return layer;
}

KvFormats::Part KvFormats::parse_layers(std::string_view text) {
  const size_t dash = text.find('-');
  Part part;
  part.first = parse_layer(text.substr(0, dash));
  part.last = dash == std::string_view::npos ? part.first : parse_layer(text.substr(dash + 1));
  if (part.first > part.last) throw Error("'{}' are no layers: the first comes after the last", text);
  return part;
}

KvFormats KvFormats::parse(std::string_view text) {
  KvFormats formats;
  std::optional<KvFormat> key, value;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view item = text.substr(begin, end - begin);
    if (item.empty()) throw Error("'{}' has an empty part where a KV format should be", text);
    const size_t colon = item.find(':');
    const bool goes_on = item.starts_with("k=") || item.starts_with("v=");
    if (colon != std::string_view::npos) {
      formats.parts_.push_back(parse_layers(item.substr(0, colon)));
      item.remove_prefix(colon + 1);
    } else if (!goes_on && !formats.parts_.empty()) {
      throw Error("'{}' in '{}' is for no layers: what is for all others comes first", item, text);
    }
    if (formats.parts_.empty()) {
      parse_item(item, key, value);
    } else {
      parse_item(item, formats.parts_.back().key, formats.parts_.back().value);
    }
    begin = end + 1;
  }
  if (key.has_value() != value.has_value())
    throw Error("'{}' says the format of keys or of values, but not of both", text);
  if (key) formats.rest_ = {*key, *value};
  return formats;
}

std::vector<KvFormatPair> KvFormats::of_layers(size_t layers) const {
  std::vector<KvFormatPair> of(layers, rest_);
  std::vector<bool> named(layers);
  const auto index = [&](uint32_t layer) {
    if (layer == kLast && layers > 0) return layers - 1;
    if (layer >= layers)
      throw Error("a KV format is for layer {}, but the model has {} layers, the first of which is 0", layer,
                  layers);
    return size_t(layer);
  };
  for (const Part& part : parts_) {
    const size_t first = index(part.first), last = index(part.last);
    for (size_t l = first; l <= last; ++l) {
      if (named[l]) throw Error("layer {} is given a KV format twice", l);
      named[l] = true;
      of[l] = {part.key.value_or(rest_.key), part.value.value_or(rest_.value)};
    }
  }
  return of;
}

std::optional<KvFormat> KvFormats::only() const {
  if (!parts_.empty() || rest_.key != rest_.value) return std::nullopt;
  return rest_.key;
}

std::string name(const KvFormatPair& formats) {
  return formats.key == formats.value ? std::string(name(formats.key))
                                      : fmt::format("k={},v={}", name(formats.key), name(formats.value));
}

std::string describe_formats(const std::vector<KvFormatPair>& layers) {
  // What most layers have comes first.
  std::map<std::string, size_t> counts;
  for (const KvFormatPair& pair : layers) ++counts[name(pair)];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  if (most == counts.end()) return "";
  std::string text = most->first;
  for (size_t first = 0; first < layers.size();) {
    size_t end = first + 1;
    while (end < layers.size() && layers[end] == layers[first]) ++end;
    if (const std::string own = name(layers[first]); own != most->first) {
      text += end == first + 1 ? fmt::format(",{}:{}", first, own)
                               : fmt::format(",{}-{}:{}", first, end - 1, own);
    }
    first = end;
  }
  return text;
}

}  // namespace quire
