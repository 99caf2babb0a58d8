#pragma once

#include "grammar/schema.h"
#include "grammar/schema_values.h"

namespace quire::grammar {

// Whether a value does what a schema says: of all keywords, exactly. It decides which values of an enumeration are left.
class SchemaValidator {
 public:
  explicit SchemaValidator(SchemaValues& values) : values_(values) {}

  // Throws Error if the schema refers to itself without end.
  bool holds(const Schema* schema, const OrderedJson& value);

 private:
  bool holds_for_array(const Schema& schema, const OrderedJson& value);
  bool holds_for_object(const Schema& schema, const OrderedJson& value);
  bool holds_with_others(const Schema& schema, const OrderedJson& value);

  SchemaValues& values_;
  int depth_ = 0;
};

}  // namespace quire::grammar
