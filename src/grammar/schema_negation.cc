#include <algorithm>

#include "base/error.h"
#include "grammar/schema_choices.h"
#include "grammar/string_formats.h"

// What must hold where a schema does not.

namespace quire::grammar {
namespace {

constexpr int kMostNegated = 50;  // schemas inside each other

[[noreturn]] void refuse_not(const char* keyword) {
  throw Error("the schema's keyword 'not' (or oneOf, or if) cannot be used over '{}'", keyword);
}

}  // namespace

const Goal& SchemaChoices::negation(const Schema* schema) {
  const auto found = negations_.find(schema);
  if (found != negations_.end()) return found->second;
  if (++depth_ > kMostNegated) {
    depth_ = 0;
    throw Error(
        "the schema's keyword 'not' (or oneOf, or if) cannot be used over a schema that contains itself");
  }
  Goal made = schema == nullptr ? Goal{} : make_negation(*schema);
  --depth_;
  return negations_.emplace(schema, std::move(made)).first->second;
}

Goal SchemaChoices::make_negation(const Schema& schema) {
  Goal found;
  if (schema.never) return {store_.make()};
  if (schema.types != kAnyType) {
    Schema* other = store_.make();
    other->types = kAnyType & ~schema.types;
    found.push_back(other);
  }
  if (schema.allowed) {
    Schema* other = store_.make();
    other->excluded = *schema.allowed;
    found.push_back(other);
  }
  if (!schema.excluded.empty()) {
    Schema* other = store_.make();
    other->allowed = schema.excluded;
    found.push_back(other);
  }
  negate_strings_and_numbers(schema, found);
  negate_arrays(schema, found);
  negate_objects(schema, found);
  negate_others(schema, found);
  return found;
}

void SchemaChoices::negate_strings_and_numbers(const Schema& schema, Goal& found) {
  const auto add = [&](JsonTypes types) {
    Schema* made = store_.make();
    made->types = types;
    found.push_back(made);
    return made;
  };
  for (const NumberBound& bound : schema.bounds)
    add(kNumber)->bounds = {{bound.value, !bound.is_lower, !bound.exclusive}};
  for (const Decimal& number : schema.multiple_of) add(kNumber)->not_multiple_of = {number};
  for (const Decimal& number : schema.not_multiple_of) add(kNumber)->multiple_of = {number};
  if (schema.least_length > 0) add(kString)->most_length = schema.least_length - 1;
  if (schema.most_length != Schema::kNoMost) add(kString)->least_length = schema.most_length + 1;
  for (const std::string& pattern : schema.patterns) add(kString)->not_patterns = {pattern};
  for (const std::string& pattern : schema.not_patterns) add(kString)->patterns = {pattern};
  for (const std::string& format : schema.formats) {
    if (format_pattern(format)) refuse_not("format");
  }
}

void SchemaChoices::negate_arrays(const Schema& schema, Goal& found) {
  const auto add = [&] {
    Schema* made = store_.make();
    made->types = kArray;
    found.push_back(made);
    return made;
  };
  if (schema.unique_items) refuse_not("uniqueItems");
  for (size_t i = 0; i < schema.prefix.size(); ++i) {
    Schema* made = add();
    made->least_items = i + 1;
    made->prefix.resize(i, nullptr);
    made->prefix.push_back(none_of({schema.prefix[i]}));
  }
  if (schema.items != nullptr) {
    if (schema.items->never) {
      add()->least_items = schema.prefix.size() + 1;
    } else if (schema.prefix.empty()) {
      add()->contains = {{none_of({schema.items}), 1}};
    } else {
      refuse_not("items beside prefixItems");
    }
  }
  if (schema.least_items > 0) add()->most_items = schema.least_items - 1;
  if (schema.most_items != Schema::kNoMost) add()->least_items = schema.most_items + 1;
  for (const auto& [one, least] : schema.contains) {
    if (least > 1) refuse_not("minContains");
    add()->items = none_of({one});
  }
}

void SchemaChoices::negate_objects(const Schema& schema, Goal& found) {
  const auto add = [&] {
    Schema* made = store_.make();
    made->types = kObject;
    found.push_back(made);
    return made;
  };
  const auto forbid = [&](const std::string& name) {
    Schema* never = store_.make();
    never->never = true;
    Schema* made = add();
    made->properties = {{name, never}};
    return made;
  };
  for (const auto& [name, one] : schema.properties) {
    Schema* made = add();
    made->required = {name};
    made->properties = {{name, none_of({one})}};
  }
  if (!schema.pattern_properties.empty()) refuse_not("patternProperties");
  if (schema.additional != nullptr) refuse_not("additionalProperties");
  if (schema.names != nullptr) refuse_not("propertyNames");
  for (const std::string& name : schema.required) forbid(name);
  for (const auto& [name, needed] : schema.dependent_required) {
    for (const std::string& other : needed) {
      if (other != name) forbid(other)->required = {name};
    }
  }
  if (schema.least_properties > 0) add()->most_properties = schema.least_properties - 1;
  if (schema.most_properties != Schema::kNoMost) add()->least_properties = schema.most_properties + 1;
}

void SchemaChoices::negate_others(const Schema& schema, Goal& found) {
  for (const Schema* one : schema.all) {
    const Goal& parts = negation(one);
    found.insert(found.end(), parts.begin(), parts.end());
  }
  for (const auto& list : schema.any) found.push_back(none_of(list));
  for (const auto& list : schema.one) {
    found.push_back(none_of(list));
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        Schema* both = store_.make();
        both->all = {list[i], list[j]};
        found.push_back(both);
      }
    }
  }
  found.insert(found.end(), schema.none.begin(), schema.none.end());
  if (schema.condition != nullptr) {
    Schema* yes = store_.make();
    yes->all = {schema.condition, none_of({schema.then_holds})};
    Schema* no = store_.make();
    no->all = {none_of({schema.condition}), none_of({schema.else_holds})};
    found.push_back(yes);
    found.push_back(no);
  }
  for (const auto& [name, one] : schema.dependent_schemas) {
    Schema* made = store_.make();
    made->types = kObject;
    made->required = {name};
    made->all = {none_of({one})};
    found.push_back(made);
  }
}

}  // namespace quire::grammar
