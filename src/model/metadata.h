#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace quire {

// One value of a model file's metadata: a number, a truth value, a text, or an array of one of these.
using MetadataValue =
    std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<uint64_t>, std::vector<int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string>>;

// What a model file says about its model: key -> value, in GGUF's keys whatever the file. Getters convert
// between number types where nothing is lost and throw Error, naming key and file, if the key is missing or
// of a wrong type; the `maybe_` ones return nothing if it is missing, and throw too if it is of a wrong type.
class Metadata {
 public:
  explicit Metadata(std::string file_name = {}) : file_name_(std::move(file_name)) {}

  void set(std::string key, MetadataValue value);
  void erase(std::string_view key);
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  const MetadataValue* find(std::string_view key) const;

  uint64_t number(std::string_view key) const;
  double real(std::string_view key) const;
  bool flag(std::string_view key) const;
  const std::string& text(std::string_view key) const;

  std::optional<uint64_t> maybe_number(std::string_view key) const;
  std::optional<double> maybe_real(std::string_view key) const;
  std::optional<bool> maybe_flag(std::string_view key) const;
  std::optional<std::string> maybe_text(std::string_view key) const;

  // Arrays; empty if the key is missing. A lone value is of a wrong type.
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<double> reals(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<bool> flags(std::string_view key) const;

  // What a file may say once or per layer: `count` values, from an array of that length or a lone number
  // that holds for all; empty if the key is missing.
  std::vector<uint64_t> maybe_numbers(std::string_view key, size_t count) const;

  const std::map<std::string, MetadataValue, std::less<>>& all() const { return values_; }
  const std::string& file_name() const { return file_name_; }

 private:
  std::string file_name_;
  std::map<std::string, MetadataValue, std::less<>> values_;
};

}  // namespace quire
