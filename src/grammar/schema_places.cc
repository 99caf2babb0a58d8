#include "grammar/schema_places.h"

#include <charconv>
#include <set>

namespace quire::grammar {
namespace {

std::string without_fragment(const std::string& uri) {
  return uri.substr(0, uri.find('#'));
}

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

std::string percent_decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (text[i] == '%' && high >= 0 && low >= 0) {
      result += char(high * 16 + low);
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

SchemaPlaces::SchemaPlaces(const OrderedJson& document) {
  if (document.is_object()) {
    const std::string schema = document.contains("$schema") && document["$schema"].is_string()
                                   ? document["$schema"].get<std::string>()
                                   : "";
    is_old_ = schema.find("draft-0") != std::string::npos;
  }
  by_uri_.emplace("", &document);
  visit(document, "", true);
}

std::string SchemaPlaces::join(const std::string& base, const std::string& reference) {
  if (reference.empty()) return base;
  if (reference[0] == '#') return without_fragment(base) + reference;
  const size_t scheme = reference.find(':');
  if (scheme != std::string::npos && reference.find('/') > scheme) return reference;
  const std::string stem = without_fragment(base);
  const size_t host = stem.find("://");
  if (reference[0] == '/') {
    if (host == std::string::npos) return reference;
    return stem.substr(0, stem.find('/', host + 3)) + reference;
  }
  const size_t slash = stem.rfind('/');
  return slash == std::string::npos ? reference : stem.substr(0, slash + 1) + reference;
}

void SchemaPlaces::visit(const OrderedJson& json, const std::string& outer, bool is_schema) {
  if (json.is_array()) {
    for (const OrderedJson& one : json) visit(one, outer, is_schema);
    return;
  }
  if (!json.is_object()) return;
  std::string base = outer;
  const auto word = [&](const char* keyword) {
    const auto found = json.find(keyword);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (is_schema) {
    std::string id = word("$id");
    if (id.empty() && is_old_) id = word("id");
    if (is_old_ && json.contains("$ref")) id.clear();
    if (!id.empty()) {
      const std::string whole = join(outer, id);
      if (id[0] == '#') {
        by_uri_.emplace(whole, &json);  // an anchor, as draft 7 has it
      } else {
        base = without_fragment(whole);
        by_uri_.emplace(base, &json);
      }
    }
    for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
      const std::string anchor = word(keyword);
      if (!anchor.empty()) by_uri_.emplace(base + "#" + anchor, &json);
    }
  }
  base_of_.emplace(&json, base);
  static const std::set<std::string> kNamed = {"properties",  "patternProperties", "$defs",
                                               "definitions", "dependentSchemas",  "dependencies"};
  static const std::set<std::string> kSchemas = {"items",
                                                 "prefixItems",
                                                 "additionalItems",
                                                 "contains",
                                                 "additionalProperties",
                                                 "propertyNames",
                                                 "allOf",
                                                 "anyOf",
                                                 "oneOf",
                                                 "not",
                                                 "if",
                                                 "then",
                                                 "else",
                                                 "unevaluatedItems",
                                                 "unevaluatedProperties"};
  for (const auto& [key, value] : json.items()) {
    if (!is_schema || kSchemas.contains(key)) {
      visit(value, base, true);
    } else if (kNamed.contains(key)) {
      visit(value, base, false);
    }
  }
}

const OrderedJson* SchemaPlaces::follow(const OrderedJson& from, std::string_view pointer) {
  const OrderedJson* at = &from;
  while (!pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    pointer.remove_prefix(1);
    std::string_view part = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(part.size());
    std::string name;
    for (size_t i = 0; i < part.size(); ++i) {
      if (part[i] != '~') {
        name += part[i];
      } else if (++i < part.size()) {
        name += part[i] == '1' ? '/' : '~';
      }
    }
    if (at->is_object()) {
      const auto found = at->find(name);
      if (found == at->end()) return nullptr;
      at = &*found;
    } else if (at->is_array()) {
      size_t index = 0;
      const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), index);
      if (problem != std::errc() || end != name.data() + name.size() || index >= at->size()) return nullptr;
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return at;
}

const OrderedJson* SchemaPlaces::find(const std::string& reference, const OrderedJson& from) const {
  const auto base = base_of_.find(&from);
  const std::string whole = join(base == base_of_.end() ? "" : base->second, reference);
  if (const auto found = by_uri_.find(whole); found != by_uri_.end()) return found->second;
  const auto document = by_uri_.find(without_fragment(whole));
  const size_t hash = whole.find('#');
  if (document == by_uri_.end()) return nullptr;
  if (hash == std::string::npos) return document->second;
  const std::string fragment = percent_decoded(std::string_view(whole).substr(hash + 1));
  if (!fragment.empty() && fragment[0] != '/') return nullptr;
  return follow(*document->second, fragment);
}

}  // namespace quire::grammar
