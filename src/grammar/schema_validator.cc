#include "grammar/schema_validator.h"

#include <algorithm>

#include "base/error.h"

namespace quire::grammar {
namespace {

constexpr int kMostValidatorDepth = 600;

struct DepthGuard {
  int& depth;
  explicit DepthGuard(int& depth) : depth(depth) {
    if (++depth > kMostValidatorDepth) {
      --depth;
      throw Error("the schema refers to itself without end, or is nested too deeply");
    }
  }
  ~DepthGuard() { --depth; }
};

}  // namespace

bool SchemaValidator::holds(const Schema* schema, const OrderedJson& value) {
  if (schema == nullptr) return true;
  const DepthGuard guard(depth_);
  const JsonTypes type = type_of(value);
  if (schema->never || (schema->types & type) == 0) return false;
  const auto is_value = [&](const OrderedJson& other) { return is_same_value(value, other); };
  if (schema->allowed && std::ranges::none_of(*schema->allowed, is_value)) return false;
  if (std::ranges::any_of(schema->excluded, is_value)) return false;
  if ((type & (kString | kNumber)) != 0 && !values_.holds(*schema, value)) return false;
  if (type == kArray && !holds_for_array(*schema, value)) return false;
  if (type == kObject && !holds_for_object(*schema, value)) return false;
  return holds_with_others(*schema, value);
}

bool SchemaValidator::holds_for_array(const Schema& schema, const OrderedJson& value) {
  if (value.size() < schema.least_items || value.size() > schema.most_items) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    if (!holds(i < schema.prefix.size() ? schema.prefix[i] : schema.items, value[i])) return false;
  }
  for (const auto& [one, least] : schema.contains) {
    uint64_t found = 0;
    for (const OrderedJson& item : value) found += holds(one, item) ? 1 : 0;
    if (found < least) return false;
  }
  if (!schema.unique_items) return true;
  for (size_t i = 0; i < value.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (is_same_value(value[i], value[j])) return false;
    }
  }
  return true;
}

bool SchemaValidator::holds_for_object(const Schema& schema, const OrderedJson& value) {
  if (value.size() < schema.least_properties || value.size() > schema.most_properties) return false;
  for (const std::string& name : schema.required) {
    if (!value.contains(name)) return false;
  }
  for (const auto& [name, needed] : schema.dependent_required) {
    if (!value.contains(name)) continue;
    if (!std::ranges::all_of(needed, [&](const std::string& other) { return value.contains(other); }))
      return false;
  }
  for (const auto& [name, member] : value.items()) {
    if (schema.names != nullptr && !holds(schema.names, OrderedJson(name))) return false;
    const auto named =
        std::ranges::find(schema.properties, name, [](const auto& entry) { return entry.first; });
    bool is_known = named != schema.properties.end();
    if (is_known && !holds(named->second, member)) return false;
    for (const auto& [pattern, one] : schema.pattern_properties) {
      if (!values_.matches(pattern, name)) continue;
      is_known = true;
      if (!holds(one, member)) return false;
    }
    if (!is_known && !holds(schema.additional, member)) return false;
  }
  return true;
}

bool SchemaValidator::holds_with_others(const Schema& schema, const OrderedJson& value) {
  const auto this_holds = [&](const Schema* one) { return holds(one, value); };
  if (!std::ranges::all_of(schema.all, this_holds) || std::ranges::any_of(schema.none, this_holds))
    return false;
  for (const auto& list : schema.any) {
    if (std::ranges::none_of(list, this_holds)) return false;
  }
  for (const auto& list : schema.one) {
    if (std::ranges::count_if(list, this_holds) != 1) return false;
  }
  if (schema.condition != nullptr) {
    if (!holds(holds(schema.condition, value) ? schema.then_holds : schema.else_holds, value)) return false;
  }
  if (!value.is_object()) return true;
  for (const auto& [name, one] : schema.dependent_schemas) {
    if (value.contains(name) && !holds(one, value)) return false;
  }
  return true;
}

}  // namespace quire::grammar
