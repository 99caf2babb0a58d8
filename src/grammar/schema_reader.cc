#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "grammar/schema.h"
#include "grammar/schema_places.h"

namespace quire::grammar {
namespace {

constexpr size_t kMostSchemas = 100'000;

// Keywords that say nothing about which values are valid, though a draft knows them.
bool says_nothing(const std::string& keyword) {
  static const std::set<std::string> kSilent = {
      "$schema",      "$id",         "id",        "$anchor",     "$dynamicAnchor",  "$comment",
      "$defs",        "definitions", "title",     "description", "default",         "examples",
      "deprecated",   "readOnly",    "writeOnly", "$vocabulary", "contentEncoding", "contentMediaType",
      "contentSchema"};
  return kSilent.contains(keyword);
}

// Keywords of some draft that constrain values and are not supported.
bool is_refused(const std::string& keyword) {
  static const std::set<std::string> kRefused = {"$dynamicRef", "$recursiveRef", "$recursiveAnchor",
                                                 "disallow",    "divisibleBy",   "extends"};
  return kRefused.contains(keyword);
}

class SchemaReader {
 public:
  SchemaReader(const OrderedJson& document, SchemaStore& store) : places_(document), store_(store) {}

  const Schema* read(const OrderedJson& document) {
    const Schema* root = schema_at(document);
    while (!to_read_.empty()) {
      const auto [json, schema] = to_read_.back();
      to_read_.pop_back();
      read_into(*json, *schema);
    }
    return root;
  }

 private:
  [[noreturn]] static void refuse(std::string_view keyword, std::string_view why) {
    throw Error("the schema's keyword '{}' cannot be used here: {}", keyword, why);
  }

  const Schema* schema_at(const OrderedJson& json) {
    const auto found = known_.find(&json);
    if (found != known_.end()) return found->second;
    if (store_.size() > kMostSchemas)
      throw Error("the schema is too large: it has more than {} parts", kMostSchemas);
    Schema* schema = store_.make();
    known_.emplace(&json, schema);
    to_read_.emplace_back(&json, schema);
    return schema;
  }

  std::vector<const Schema*> list_at(const OrderedJson& list, const char* keyword) {
    if (!list.is_array() || list.empty()) refuse(keyword, "it must be a list of schemas");
    std::vector<const Schema*> schemas;
    for (const OrderedJson& one : list) schemas.push_back(schema_at(one));
    return schemas;
  }

  Schema::Named named_at(const OrderedJson& object, const char* keyword) {
    if (!object.is_object()) refuse(keyword, "it must be an object of schemas");
    Schema::Named named;
    for (const auto& [name, schema] : object.items()) named.emplace_back(name, schema_at(schema));
    return named;
  }

  static uint64_t count(const OrderedJson& value, const char* keyword) {
    if (value.is_number_float() && value.get<double>() >= 0 && value.get<double>() < 1e15 &&
        std::floor(value.get<double>()) == value.get<double>())
      return uint64_t(value.get<double>());
    if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0))
      refuse(keyword, "it must be a whole number, 0 or more");
    return std::min(value.get<uint64_t>(), uint64_t(1) << 60);
  }

  static Decimal number(const OrderedJson& value, const char* keyword) {
    if (!value.is_number() || (value.is_number_float() && !std::isfinite(value.get<double>())))
      refuse(keyword, "it must be a number");
    return decimal_of(value);
  }

  static std::string text(const OrderedJson& value, const char* keyword) {
    if (!value.is_string()) refuse(keyword, "it must be a text");
    return value.get<std::string>();
  }

  static std::vector<std::string> names(const OrderedJson& list, const char* keyword) {
    if (!list.is_array()) refuse(keyword, "it must be a list of names");
    std::vector<std::string> result;
    for (const OrderedJson& one : list) result.push_back(text(one, keyword));
    return result;
  }

  static JsonTypes types(const OrderedJson& value) {
    if (value.is_array()) {
      JsonTypes all = 0;
      for (const OrderedJson& one : value) {
        if (one.is_array()) refuse("type", "it must be a name or a list of names");
        all |= types(one);
      }
      return all;
    }
    static const std::map<std::string, JsonTypes> kTypes = {
        {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
        {"string", kString}, {"array", kArray},     {"object", kObject},   {"any", kAnyType}};
    const auto found = value.is_string() ? kTypes.find(value.get<std::string>()) : kTypes.end();
    if (found == kTypes.end()) refuse("type", fmt::format("{} is no type", value.dump()));
    return found->second;
  }

  void read_into(const OrderedJson& json, Schema& schema) {
    if (json.is_boolean()) {
      schema.never = !json.get<bool>();
      return;
    }
    if (!json.is_object())
      throw Error("a part of the schema is neither an object nor true or false: {}",
                  json.dump().substr(0, 60));
    if (const auto ref = json.find("$ref"); ref != json.end()) {
      if (!ref->is_string()) refuse("$ref", "it must be a text");
      const OrderedJson* target = places_.find(ref->get<std::string>(), json);
      if (target == nullptr)
        refuse("$ref",
               fmt::format("'{}' is not in the schema itself", ref->get<std::string>().substr(0, 200)));
      schema.all.push_back(schema_at(*target));
      if (places_.is_old()) return;  // what stands beside it says nothing, up to draft 7
    }
    for (const auto& [keyword, value] : json.items()) read_keyword(keyword, value, json, schema);
    read_together(json, schema);
  }

  void read_keyword(const std::string& keyword, const OrderedJson& value, const OrderedJson& json,
                    Schema& schema) {
    const char* k = keyword.c_str();
    if (keyword == "type") {
      schema.types = types(value);
    } else if (keyword == "enum") {
      if (!value.is_array()) refuse(k, "it must be a list of values");
      allow(schema, std::vector<OrderedJson>(value.begin(), value.end()));
    } else if (keyword == "const") {
      allow(schema, {value});
    } else if (keyword == "minimum" || keyword == "maximum") {
      const bool is_lower = keyword == "minimum";
      const auto strict = json.find(is_lower ? "exclusiveMinimum" : "exclusiveMaximum");
      const bool exclusive = strict != json.end() && *strict == true;  // as draft 4 has it
      schema.bounds.push_back({number(value, k), is_lower, exclusive});
    } else if (keyword == "exclusiveMinimum" || keyword == "exclusiveMaximum") {
      if (!value.is_boolean())
        schema.bounds.push_back({number(value, k), keyword == "exclusiveMinimum", true});
    } else if (keyword == "multipleOf") {
      schema.multiple_of.push_back(number(value, k));
      if (schema.multiple_of.back().is_zero() || schema.multiple_of.back().negative)
        refuse(k, "it must be above 0");
    } else if (keyword == "minLength") {
      schema.least_length = count(value, k);
    } else if (keyword == "maxLength") {
      schema.most_length = count(value, k);
    } else if (keyword == "pattern") {
      schema.patterns.push_back(text(value, k));
    } else if (keyword == "format") {
      schema.formats.push_back(text(value, k));
    } else if (keyword == "prefixItems") {
      if (!places_.is_old()) schema.prefix = list_at(value, k);
    } else if (keyword == "items") {
      if (!value.is_array()) {
        schema.items = schema_at(value);
      } else if (!value.empty()) {
        schema.prefix = list_at(value, k);
      }
    } else if (keyword == "additionalItems") {
      if (const auto items = json.find("items"); items != json.end() && items->is_array())
        schema.items = schema_at(value);
    } else if (keyword == "minItems") {
      schema.least_items = count(value, k);
    } else if (keyword == "maxItems") {
      schema.most_items = count(value, k);
    } else if (keyword == "uniqueItems") {
      schema.unique_items = value == true;
    } else if (keyword == "contains") {
      const auto least = json.find("minContains");
      const uint64_t times = least == json.end() || places_.is_old() ? 1 : count(*least, "minContains");
      if (times > 0) schema.contains.emplace_back(schema_at(value), times);
    } else if (keyword == "maxContains") {
      if (json.contains("contains") && !places_.is_old()) refuse(k, "it is not supported");
    } else if (keyword == "properties") {
      schema.properties = named_at(value, k);
    } else if (keyword == "patternProperties") {
      schema.pattern_properties = named_at(value, k);
    } else if (keyword == "additionalProperties") {
      schema.additional = schema_at(value);
    } else if (keyword == "propertyNames") {
      schema.names = schema_at(value);
    } else if (keyword == "required") {
      if (value.is_array()) schema.required = names(value, k);
    } else if (keyword == "minProperties") {
      schema.least_properties = count(value, k);
    } else if (keyword == "maxProperties") {
      schema.most_properties = count(value, k);
    } else if (keyword == "dependentRequired" || keyword == "dependentSchemas" || keyword == "dependencies") {
      read_dependencies(value, k, schema);
    } else if (keyword == "allOf") {
      for (const Schema* one : list_at(value, k)) schema.all.push_back(one);
    } else if (keyword == "anyOf") {
      schema.any.push_back(list_at(value, k));
    } else if (keyword == "oneOf") {
      schema.one.push_back(list_at(value, k));
    } else if (keyword == "not") {
      schema.none.push_back(schema_at(value));
    } else if (keyword == "if") {
      schema.condition = schema_at(value);
    } else if (keyword == "then") {
      schema.then_holds = schema_at(value);
    } else if (keyword == "else") {
      schema.else_holds = schema_at(value);
    } else if (keyword == "unevaluatedProperties" || keyword == "unevaluatedItems") {
      read_unevaluated(keyword, value, json, schema);
    } else if (is_refused(keyword) || (places_.is_old() && keyword.starts_with("content"))) {
      refuse(k, "it is not supported");
    } else if (!says_nothing(keyword)) {
      return;  // no draft knows it: then it is a remark
    }
  }

  void read_dependencies(const OrderedJson& value, const char* keyword, Schema& schema) {
    if (!value.is_object()) refuse(keyword, "it must be an object");
    for (const auto& [name, needed] : value.items()) {
      if (needed.is_array()) {
        schema.dependent_required.emplace_back(name, names(needed, keyword));
      } else if (needed.is_string()) {
        schema.dependent_required.emplace_back(name, std::vector{needed.get<std::string>()});
      } else {
        schema.dependent_schemas.emplace_back(name, schema_at(needed));
      }
    }
  }

  // Where nothing else could evaluate anything, they are additionalProperties and items.
  void read_unevaluated(const std::string& keyword, const OrderedJson& value, const OrderedJson& json,
                        Schema& schema) {
    if (value == true || (value.is_object() && value.empty())) return;
    for (const char* other :
         {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas"}) {
      if (json.contains(other)) refuse(keyword, fmt::format("beside '{}' it is not supported", other));
    }
    if (keyword == "unevaluatedProperties") {
      if (!json.contains("additionalProperties")) schema.additional = schema_at(value);
      return;
    }
    if (json.contains("contains")) refuse(keyword, "beside 'contains' it is not supported");
    // A list evaluates no more than it has, as drafts up to 2019-09 write it.
    const auto items = json.find("items");
    const bool goes_on = items != json.end() && items->is_array() && !json.contains("additionalItems");
    if (items == json.end() || goes_on) schema.items = schema_at(value);
  }

  static void allow(Schema& schema, std::vector<OrderedJson> values) {
    if (schema.allowed)
      std::erase_if(values, [&](const OrderedJson& one) {
        return std::ranges::none_of(*schema.allowed,
                                    [&](const OrderedJson& other) { return is_same_value(one, other); });
      });
    schema.allowed = std::move(values);
  }

  void read_together(const OrderedJson& json, Schema& schema) {
    if (schema.then_holds == nullptr && schema.else_holds == nullptr) schema.condition = nullptr;
    if (json.contains("prefixItems") && json.contains("items") && json["items"].is_array() &&
        !places_.is_old())
      refuse("items", "beside 'prefixItems' it must be a schema");
  }

  SchemaPlaces places_;
  SchemaStore& store_;
  std::map<const OrderedJson*, Schema*> known_;
  std::vector<std::pair<const OrderedJson*, Schema*>> to_read_;
};

}  // namespace

JsonTypes type_of(const OrderedJson& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_string()) return kString;
  if (value.is_array()) return kArray;
  if (value.is_object()) return kObject;
  return decimal_of(value).fraction.empty() ? kInteger : kFraction;
}

bool is_same_value(const OrderedJson& a, const OrderedJson& b) {
  if (a.is_number() && b.is_number()) return decimal_of(a).text() == decimal_of(b).text();
  if (a.type() != b.type()) return false;
  if (a.is_array()) return std::ranges::equal(a, b, is_same_value);
  if (!a.is_object()) return a == b;
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    const auto other = b.find(key);
    if (other == b.end() || !is_same_value(value, *other)) return false;
  }
  return true;
}

const Schema* Schema::property(const std::string& name) const {
  const auto found = std::ranges::find(properties, name, [](const auto& entry) { return entry.first; });
  return found == properties.end() ? nullptr : found->second;
}

const Schema* read_schema(const OrderedJson& document, SchemaStore& store) {
  return SchemaReader(document, store).read(document);
}

}  // namespace quire::grammar
