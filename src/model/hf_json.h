#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quire {

// The text of a config.json whose infinities are not written as JSON: as Transformers 5 writes them.
std::string without_infinities(std::string_view text);

// An object of a config.json, read by key. A null counts as missing. Throws Error naming file and key where a
// value is of another kind than asked for.
class HfObject {
 public:
  HfObject(Json json, std::string where);

  bool has(const char* key) const { return find(key) != nullptr; }
  bool is_text(const char* key) const { return has(key) && find(key)->is_string(); }
  const std::string& where() const { return where_; }

  uint64_t number(const char* key) const;  // throws Error if it is missing
  std::optional<uint64_t> maybe_number(const char* key) const;
  std::optional<double> maybe_real(const char* key) const;
  std::optional<bool> maybe_flag(const char* key) const;
  std::optional<std::string> maybe_text(const char* key) const;
  std::optional<HfObject> maybe_object(const char* key) const;
  std::vector<std::string> keys() const;
  std::optional<HfObject> maybe_own_object(
      const std::string& key) const;                      // nothing if the value is no object
  std::vector<double> reals(const char* key) const;       // empty if it is missing
  std::vector<std::string> texts(const char* key) const;  // empty if it is missing
  std::vector<uint64_t> numbers(const char* key) const;   // a lone number is a list of one; empty if missing

 private:
  const Json* find(const char* key) const;
  [[noreturn]] void wrong(const char* key, const char* expected) const;

  Json json_;
  std::string where_;  // "path/config.json", or "path/config.json: rope_scaling"
};

}  // namespace quire
