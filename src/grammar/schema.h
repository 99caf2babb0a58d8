#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/decimal.h"

namespace quire::grammar {

// The kinds of JSON values, as bits. Integers are numbers whose fraction is 0, however they are written.
using JsonTypes = uint8_t;
inline constexpr JsonTypes kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16, kArray = 32,
                           kObject = 64;
inline constexpr JsonTypes kNumber = kInteger | kFraction, kAnyType = 127;
JsonTypes type_of(const OrderedJson& value);
// As JSON Schema has it: 1 is 1.0, and members have no order.
bool is_same_value(const OrderedJson& a, const OrderedJson& b);

// A JSON Schema, understood: all keywords must hold. A null schema holds for everything.
struct Schema {
  static constexpr uint64_t kNoMost = ~uint64_t(0);
  using Named = std::vector<std::pair<std::string, const Schema*>>;

  bool never = false;  // the schema `false`
  JsonTypes types = kAnyType;
  std::optional<std::vector<OrderedJson>> allowed;  // enum and const
  std::vector<OrderedJson> excluded;                // these not

  std::vector<NumberBound> bounds;
  std::vector<Decimal> multiple_of, not_multiple_of;

  uint64_t least_length = 0, most_length = kNoMost;
  std::vector<std::string> patterns, not_patterns, formats;

  std::vector<const Schema*> prefix;  // of the first items
  const Schema* items = nullptr;      // of the others
  uint64_t least_items = 0, most_items = kNoMost;
  std::vector<std::pair<const Schema*, uint64_t>> contains;  // how many items at least
  bool unique_items = false;

  Named properties, pattern_properties;
  const Schema* additional = nullptr;  // of properties that neither names
  const Schema* names = nullptr;
  std::vector<std::string> required;
  std::vector<std::pair<std::string, std::vector<std::string>>> dependent_required;
  uint64_t least_properties = 0, most_properties = kNoMost;

  std::vector<const Schema*> all;               // these too
  std::vector<std::vector<const Schema*>> any;  // of each list one at least
  std::vector<std::vector<const Schema*>> one;  // of each list exactly one
  std::vector<const Schema*> none;              // none of these
  const Schema* condition = nullptr;            // if it holds, the second must, else the third
  const Schema* then_holds = nullptr;
  const Schema* else_holds = nullptr;
  Named dependent_schemas;

  const Schema* property(const std::string& name) const;
};

// All schemas of one document, which own each other.
class SchemaStore {
 public:
  Schema* make() { return &schemas_.emplace_back(); }
  size_t size() const { return schemas_.size(); }

 private:
  std::deque<Schema> schemas_;
};

// Reads a JSON Schema (2020-12, and what 2019-09, 7 and 4 write otherwise). Keywords that constrain and are not supported are
// refused by name with an Error; those that no draft knows say nothing, as the drafts have it.
const Schema* read_schema(const OrderedJson& document, SchemaStore& store);

}  // namespace quire::grammar
