#pragma once

#include <functional>
#include <string>
#include <vector>

#include "grammar/rules.h"
#include "grammar/schema_values.h"

namespace quire::grammar {

// How values are written: as JSON, or nearly so.
struct ValueSyntax {
  TextForm texts = TextForm::json;
  std::string quote = "\"";  // around a text; may be a special token
  // What no text holds, because whoever reads it would take it for something else.
  std::vector<std::string> never = {};
  bool bare_names = false;    // of members: no quotes around those that can do without
  bool python_words = false;  // True, False and None as well
  bool usual() const { return texts == TextForm::json && never.empty() && !bare_names && !python_words; }
};

// Whether a name can stand without quotes wherever calls are written.
bool is_bare_name(std::string_view name);

// How an object's members are written, where that is not as values are.
struct ObjectSyntax {
  ExprId open = ExprPool::kEmpty, close = ExprPool::kEmpty, comma = ExprPool::kEmpty;
  ExprId close_after_member = ExprPool::kEmpty;
  ExprId name_open = ExprPool::kEmpty, name_close = ExprPool::kEmpty;
  bool bare_names = true;
  bool may_quote = false;  // names that cannot be bare
  bool others = true;      // members that no keyword names may be there
  // By a member's name; an empty one stands for any other.
  std::function<Symbol(const Goal&, const std::string&)> value;
  std::function<ExprId(const std::string&)> value_close;
};

}  // namespace quire::grammar
