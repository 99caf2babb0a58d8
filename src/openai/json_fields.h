#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace quire {

// Reads the fields of a request: what is missing or null is nothing, what has the wrong type or is out of range is an
// ApiError that names the field. The object must outlive it.
class JsonFields {
 public:
  // `where` is put before the names of fields: "stream_options."
  explicit JsonFields(const OrderedJson& object, std::string where = "")
      : object_(object), where_(std::move(where)) {}

  // Null if it is missing.
  const OrderedJson& get(const char* field) const;
  bool has(const char* field) const { return !get(field).is_null(); }

  std::optional<bool> boolean(const char* field) const;
  std::optional<int64_t> integer(const char* field, int64_t least, int64_t most) const;
  std::optional<double> number(const char* field, double least, double most) const;
  std::optional<std::string> text(const char* field) const;
  // One text or a list of at most `most`, none of them empty.
  std::vector<std::string> texts(const char* field, size_t most) const;
  // A list of at most `most` token ids below `vocab`.
  std::vector<uint32_t> tokens(const char* field, uint32_t vocab, size_t most) const;
  // A member that must be an object, with its own fields.
  std::optional<JsonFields> object(const char* field) const;

  std::string name(const char* field) const { return where_ + field; }

 private:
  const OrderedJson& object_;
  std::string where_;
};

// A list of token ids, of the field `name`.
std::vector<uint32_t> token_list(const OrderedJson& list, const std::string& name, uint32_t vocab);

}  // namespace quire
