#pragma once

#include <map>
#include <vector>

#include "grammar/schema.h"
#include "grammar/schema_values.h"

namespace quire::grammar {

// Turns what schemas say about each other (allOf, anyOf, oneOf, not, if, dependentSchemas) into plain alternatives: lists of schemas
// whose own keywords must all hold, and no others.
class SchemaChoices {
 public:
  explicit SchemaChoices(SchemaStore& store) : store_(store) {}

  // Any value that all schemas of the goal hold for is one that all of some alternative's do, and the other way round. Throws Error
  // if they are too many, or if a `not` cannot be turned into what must be.
  std::vector<Goal> alternatives(const Goal& goal);

 private:
  struct Open;
  void expand(Open open, std::vector<Goal>& found);
  // Of what a schema leaves to choose: lists, of each of which one must hold.
  const std::vector<Goal>& choices_of(const Schema* schema);
  std::vector<Goal> make_choices(const Schema& schema);
  // Schemas one of which holds wherever this one does not.
  const Goal& negation(const Schema* schema);
  Goal make_negation(const Schema& schema);
  void negate_strings_and_numbers(const Schema& schema, Goal& found);
  void negate_arrays(const Schema& schema, Goal& found);
  void negate_objects(const Schema& schema, Goal& found);
  void negate_others(const Schema& schema, Goal& found);
  const Schema* none_of(std::vector<const Schema*> schemas);
  bool are_apart(const Schema* a, const Schema* b);
  // Facts that follow from a schema and what it stands on.
  JsonTypes types_of(const Schema* schema, int depth = 0);
  void add_facts(const Schema* schema, Goal& facts, int depth);

  SchemaStore& store_;
  std::map<const Schema*, std::vector<Goal>> choices_;
  std::map<const Schema*, Goal> negations_;
  int depth_ = 0;
  size_t steps_ = 0;
};

}  // namespace quire::grammar
