#include "model/hf_json.h"

#include <limits>

#include "base/error.h"
#include "model/model_file.h"

namespace quire {
namespace {

// Transformers 5 writes what JSON cannot say as {"__float__": "Infinity"}.
std::optional<double> as_real(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1 || !value.contains("__float__")) return {};
  const Json& text = value["__float__"];
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return {};
}

}  // namespace

// And those before it as a bare word, which is not JSON.
std::string without_infinities(std::string_view text) {
  constexpr std::string_view kWord = "Infinity";
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    if (!quoted && text[i] == 'I' && text.substr(i).starts_with(kWord)) {
      const bool negative = !out.empty() && out.back() == '-';
      if (negative) out.pop_back();
      out += negative ? "{\"__float__\":\"-Infinity\"}" : "{\"__float__\":\"Infinity\"}";
      i += kWord.size() - 1;
      continue;
    }
    out += text[i];
  }
  return out;
}

HfObject::HfObject(Json json, std::string where) : json_(std::move(json)), where_(std::move(where)) {
  if (!json_.is_object()) throw Error("{} is not a JSON object", where_);
}

const Json* HfObject::find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void HfObject::wrong(const char* key, const char* expected) const {
  throw Error("{}: \"{}\" is not {}", where_, key, expected);
}

uint64_t HfObject::number(const char* key) const {
  const auto value = maybe_number(key);
  if (!value) throw Error("{} has no \"{}\"", where_, key);
  return *value;
}

std::optional<uint64_t> HfObject::maybe_number(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_number_unsigned()) wrong(key, "a whole number");
  return value->get<uint64_t>();
}

std::optional<double> HfObject::maybe_real(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_number()) wrong(key, "a number");
  return value->get<double>();
}

std::optional<bool> HfObject::maybe_flag(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> HfObject::maybe_text(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_string()) wrong(key, "a text");
  return value->get<std::string>();
}

std::optional<HfObject> HfObject::maybe_object(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  return HfObject(*value, where_ + ": " + key);
}

std::vector<std::string> HfObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items()) keys.push_back(key);
  return keys;
}

std::optional<HfObject> HfObject::maybe_own_object(const std::string& key) const {
  const Json* value = find(key.c_str());
  if (!value || !value->is_object()) return {};
  return HfObject(*value, fmt::format("{}: {}", where_, in_quotes(key)));
}

std::vector<double> HfObject::reals(const char* key) const {
  std::vector<double> values;
  const Json* array = find(key);
  if (!array) return values;
  if (!array->is_array()) wrong(key, "a list of numbers");
  for (const Json& value : *array) {
    const std::optional<double> real = as_real(value);
    if (!real) wrong(key, "a list of numbers");
    values.push_back(*real);
  }
  return values;
}

std::vector<std::string> HfObject::texts(const char* key) const {
  std::vector<std::string> values;
  const Json* array = find(key);
  if (!array) return values;
  if (!array->is_array()) wrong(key, "a list of texts");
  for (const Json& value : *array) {
    if (!value.is_string()) wrong(key, "a list of texts");
    values.push_back(value.get<std::string>());
  }
  return values;
}

std::vector<uint64_t> HfObject::numbers(const char* key) const {
  const Json* array = find(key);
  if (!array) return {};
  if (array->is_number_unsigned()) return {array->get<uint64_t>()};
  std::vector<uint64_t> values;
  if (!array->is_array()) wrong(key, "a list of whole numbers");
  for (const Json& value : *array) {
    if (!value.is_number_unsigned()) wrong(key, "a list of whole numbers");
    values.push_back(value.get<uint64_t>());
  }
  return values;
}

}  // namespace quire
