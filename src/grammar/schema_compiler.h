#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grammar/rules.h"
#include "grammar/schema.h"
#include "grammar/schema_choices.h"
#include "grammar/schema_validator.h"
#include "grammar/schema_values.h"
#include "grammar/value_syntax.h"

namespace quire::grammar {

// Rules for the JSON texts that schemas hold for. Members come in the order in which `properties` names them, others after them;
// between two words there is nothing, a space, or a new line with its indentation. What it cannot decide it refuses; what it
// allows is always valid, though not everything that is valid is allowed.
class SchemaCompiler {
 public:
  SchemaCompiler(Rules& rules, SchemaStore& store, ValueSyntax syntax = {});

  // The rule for values that all of these hold for. Its alternatives are there after finish().
  Symbol value(Goal goal);
  void finish();
  // The rule for objects that all of these hold for, written in another way. Its values are there after finish().
  Symbol object_as(const Goal& goal, const ObjectSyntax& syntax);
  // The strings that all of these hold for, as they are, without quotes.
  ExprId plain_texts(const Goal& goal);
  // Objects as values are written, whose members' values are made by `value`.
  ObjectSyntax usual_object(std::function<Symbol(const Goal&, const std::string&)> value);
  // All but what may not stand in a text.
  ExprId without(const std::vector<std::string>& never);
  // White space between two words.
  ExprId space() const { return space_; }

 private:
  struct ArrayState;
  struct ObjectPlan;
  struct ObjectState;

  void emit(const Goal& goal, Symbol symbol);
  void emit_types(const Goal& leaves, Symbol symbol);
  // The values that are left of an enumeration, if there is one.
  std::optional<std::vector<OrderedJson>> listed(const Goal& goal);
  ExprId literal(const OrderedJson& value);
  ExprId literals(const std::vector<OrderedJson>& values);
  // What stands between two values or members, and what ends them.
  ExprId comma() { return join({space_, pool_.literal(","), space_}); }
  ExprId join(std::initializer_list<ExprId> parts) {
    return pool_.concat(std::span(parts.begin(), parts.size()));
  }

  Symbol array(const Goal& leaves);
  Symbol array_of_distinct(const Goal& leaves, uint64_t least, uint64_t most);
  ExprId word(const char* json, const char* python);
  ExprId text_of(const std::string& text);
  ExprId name_of(const std::string& name);
  ExprId bare_names();
  void refuse_excluded(const Goal& leaves, JsonTypes types);
  Symbol object(const Goal& leaves, const ObjectSyntax& syntax);
  ObjectPlan plan_object(const Goal& leaves);
  void plan_other_members(const Goal& leaves, ObjectPlan& plan);
  // What a member's name may be, between its quotes.
  ExprId names_of(const Schema* names, int depth);
  Goal goal_of_member(const Goal& leaves, const std::string& name);

  Rules& rules_;
  ExprPool& pool_;
  const ValueSyntax syntax_;
  SchemaValues values_, plain_values_;
  SchemaValidator validator_;
  SchemaChoices choices_;
  ExprId space_, allowed_;  // what may stand between words; what a text may be
  std::map<Goal, Symbol> known_;
  std::vector<std::pair<Goal, Symbol>> to_emit_;
};

// The texts of a schema, whole.
Rules read_json_schema(const OrderedJson& document);

}  // namespace quire::grammar
