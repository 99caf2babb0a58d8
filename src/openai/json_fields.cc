#include "openai/json_fields.h"

#include <cmath>

#include "openai/api_error.h"

namespace quire {
namespace {

[[noreturn]] void wrong_type(const std::string& field, const char* wanted, const OrderedJson& value) {
  throw ApiError(400, field, "invalid_type",
                 fmt::format("'{}' must be {}, not {}", field, wanted, value.type_name()));
}

}  // namespace

const OrderedJson& JsonFields::get(const char* field) const {
  static const OrderedJson nothing;
  const auto found = object_.find(field);
  return found == object_.end() ? nothing : *found;
}

std::optional<bool> JsonFields::boolean(const char* field) const {
  const OrderedJson& value = get(field);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) wrong_type(name(field), "true or false", value);
  return value.get<bool>();
}

std::optional<int64_t> JsonFields::integer(const char* field, int64_t least, int64_t most) const {
  const OrderedJson& value = get(field);
  if (value.is_null()) return std::nullopt;
  // Some clients write whole numbers as 3.0.
  const bool whole = value.is_number_float() && std::abs(value.get<double>()) < 9e15 &&
                     value.get<double>() == std::floor(value.get<double>());
  if (!value.is_number_integer() && !whole) wrong_type(name(field), "a whole number", value);
  const bool too_large = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX);
  const int64_t number = too_large ? INT64_MAX : whole ? int64_t(value.get<double>()) : value.get<int64_t>();
  if (too_large || number < least || number > most)
    bad_field(name(field), "'{}' is {}, but must be from {} to {}", name(field), value.dump(), least, most);
  return number;
}

std::optional<double> JsonFields::number(const char* field, double least, double most) const {
  const OrderedJson& value = get(field);
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) wrong_type(name(field), "a number", value);
  const double number = value.get<double>();
  if (!(number >= least && number <= most))
    bad_field(name(field), "'{}' is {}, but must be from {} to {}", name(field), number, least, most);
  return number;
}

std::optional<std::string> JsonFields::text(const char* field) const {
  const OrderedJson& value = get(field);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) wrong_type(name(field), "a text", value);
  return value.get<std::string>();
}

std::vector<std::string> JsonFields::texts(const char* field, size_t most) const {
  const OrderedJson& value = get(field);
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) wrong_type(name(field), "a text or a list of texts", value);
  if (value.size() > most)
    bad_field(name(field), "'{}' has {} texts; at most {} are allowed", name(field), value.size(), most);
  std::vector<std::string> texts;
  for (const OrderedJson& entry : value) {
    if (!entry.is_string()) wrong_type(name(field), "a text or a list of texts", entry);
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

std::vector<uint32_t> JsonFields::tokens(const char* field, uint32_t vocab, size_t most) const {
  const OrderedJson& value = get(field);
  if (value.is_array() && value.size() > most)
    bad_field(name(field), "'{}' has {} tokens; at most {} are allowed", name(field), value.size(), most);
  return value.is_null() ? std::vector<uint32_t>() : token_list(value, name(field), vocab);
}

std::vector<uint32_t> token_list(const OrderedJson& list, const std::string& name, uint32_t vocab) {
  if (!list.is_array()) wrong_type(name, "a list of token ids", list);
  std::vector<uint32_t> tokens;
  tokens.reserve(list.size());
  for (const OrderedJson& entry : list) {
    if (!entry.is_number_integer()) wrong_type(name, "a list of token ids", entry);
    const bool negative = !entry.is_number_unsigned() && entry.get<int64_t>() < 0;
    if (negative || entry.get<uint64_t>() >= vocab)
      bad_field(name, "'{}' has the token {}, but the model knows {} tokens", name, entry.dump(), vocab);
    tokens.push_back(entry.get<uint32_t>());
  }
  return tokens;
}

std::optional<JsonFields> JsonFields::object(const char* field) const {
  const OrderedJson& value = get(field);
  if (value.is_null()) return std::nullopt;
  if (!value.is_object()) wrong_type(name(field), "an object", value);
  return JsonFields(value, name(field) + ".");
}

}  // namespace quire
