#include "model/metadata.h"

#include <cmath>
#include <type_traits>

#include "base/error.h"

namespace quire {
namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

// Conversions that lose nothing; none where something would be lost.
std::optional<uint64_t> to_number(uint64_t value) {
  return value;
}
std::optional<uint64_t> to_number(int64_t value) {
  if (value < 0) return {};
  return uint64_t(value);
}
std::optional<uint64_t> to_number(double value) {
  if (!(value >= 0) || value >= kTwoTo63 || value != std::floor(value)) return {};
  return uint64_t(value);
}

std::optional<int64_t> to_integer(uint64_t value) {
  if (value > uint64_t(INT64_MAX)) return {};
  return int64_t(value);
}
std::optional<int64_t> to_integer(int64_t value) {
  return value;
}
std::optional<int64_t> to_integer(double value) {
  if (!(std::abs(value) < kTwoTo63) || value != std::floor(value)) return {};
  return int64_t(value);
}

template <class T>
constexpr bool is_numeric =
    std::is_same_v<T, uint64_t> || std::is_same_v<T, int64_t> || std::is_same_v<T, double>;

std::optional<uint64_t> as_number(const MetadataValue& value) {
  return std::visit(
      [](const auto& held) -> std::optional<uint64_t> {
        if constexpr (is_numeric<std::decay_t<decltype(held)>>) return to_number(held);
        return {};
      },
      value);
}

std::optional<double> as_real(const MetadataValue& value) {
  return std::visit(
      [](const auto& held) -> std::optional<double> {
        if constexpr (is_numeric<std::decay_t<decltype(held)>>) return double(held);
        return {};
      },
      value);
}

// An array of numbers, each converted; none if it is no such array or an element does not convert.
template <class To, class Convert>
std::optional<std::vector<To>> as_array(const MetadataValue& value, Convert convert) {
  std::vector<To> out;
  const auto append_all = [&](const auto& held) {
    for (const auto& element : held) {
      const std::optional<To> converted = convert(element);
      if (!converted) return false;
      out.push_back(*converted);
    }
    return true;
  };
  bool whole = false;
  if (const auto* held = std::get_if<std::vector<uint64_t>>(&value)) whole = append_all(*held);
  if (const auto* held = std::get_if<std::vector<int64_t>>(&value)) whole = append_all(*held);
  if (const auto* held = std::get_if<std::vector<double>>(&value)) whole = append_all(*held);
  if (!whole) return {};
  return out;
}

template <class T>
const T& require(const Metadata& metadata, std::string_view key, const std::optional<T>& value) {
  if (!value) throw Error("{}: the metadata has no key {}", metadata.file_name(), key);
  return *value;
}

template <class T>
T require_type(const Metadata& metadata, std::string_view key, std::optional<T> value, const char* expected) {
  if (!value) throw Error("{}: the metadata key {} is not {}", metadata.file_name(), key, expected);
  return *std::move(value);
}

}  // namespace

void Metadata::set(std::string key, MetadataValue value) {
  values_.insert_or_assign(std::move(key), std::move(value));
}

void Metadata::erase(std::string_view key) {
  if (const auto found = values_.find(key); found != values_.end()) values_.erase(found);
}

const MetadataValue* Metadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<uint64_t> Metadata::maybe_number(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  return require_type(*this, key, as_number(*value), "a whole number");
}

std::optional<double> Metadata::maybe_real(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  return require_type(*this, key, as_real(*value), "a number");
}

std::optional<bool> Metadata::maybe_flag(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  const bool* held = std::get_if<bool>(value);
  return require_type(*this, key, held ? std::optional(*held) : std::nullopt, "true or false");
}

std::optional<std::string> Metadata::maybe_text(std::string_view key) const {
  if (!has(key)) return {};
  return text(key);
}

uint64_t Metadata::number(std::string_view key) const {
  return require(*this, key, maybe_number(key));
}

double Metadata::real(std::string_view key) const {
  return require(*this, key, maybe_real(key));
}

bool Metadata::flag(std::string_view key) const {
  return require(*this, key, maybe_flag(key));
}

const std::string& Metadata::text(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) throw Error("{}: the metadata has no key {}", file_name_, key);
  const auto* held = std::get_if<std::string>(value);
  if (!held) throw Error("{}: the metadata key {} is not a text", file_name_, key);
  return *held;
}

std::vector<std::string> Metadata::texts(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  const auto* held = std::get_if<std::vector<std::string>>(value);
  if (!held) throw Error("{}: the metadata key {} is not an array of texts", file_name_, key);
  return *held;
}

std::vector<double> Metadata::reals(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  const auto convert = [](auto element) { return std::optional(double(element)); };
  return require_type(*this, key, as_array<double>(*value, convert), "an array of numbers");
}

std::vector<int64_t> Metadata::integers(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  const auto convert = [](auto element) { return to_integer(element); };
  return require_type(*this, key, as_array<int64_t>(*value, convert), "an array of whole numbers");
}

std::vector<bool> Metadata::flags(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  const auto* held = std::get_if<std::vector<bool>>(value);
  if (!held) throw Error("{}: the metadata key {} is not an array of true and false", file_name_, key);
  return *held;
}

std::vector<uint64_t> Metadata::maybe_numbers(std::string_view key, size_t count) const {
  const MetadataValue* value = find(key);
  if (!value) return {};
  if (const auto lone = as_number(*value)) return std::vector<uint64_t>(count, *lone);
  const auto convert = [](auto element) { return to_number(element); };
  auto numbers =
      require_type(*this, key, as_array<uint64_t>(*value, convert), "a whole number or an array of them");
  if (numbers.size() != count)
    throw Error("{}: the metadata key {} has {} values instead of {}", file_name_, key, numbers.size(),
                count);
  return numbers;
}

}  // namespace quire
