#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace quire::jinja {

struct Expression;
using ExpressionRef = std::unique_ptr<const Expression>;
struct Statement;
using Block = std::vector<Statement>;

struct CallArguments {
  std::vector<ExpressionRef> positional;
  std::vector<std::pair<std::string, ExpressionRef>> named;
  ExpressionRef rest;        // *rest; null if there is none
  ExpressionRef named_rest;  // **named_rest
};

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionRef> items;
  SequenceKind kind;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionRef, ExpressionRef>> entries;
};
struct Attribute {
  ExpressionRef object;
  std::string name;
};
struct Item {
  ExpressionRef object;
  ExpressionRef key;
};
struct Slice {
  ExpressionRef object;
  ExpressionRef begin, end, step;  // null where left out
};
struct Invocation {
  ExpressionRef callee;
  CallArguments arguments;
};
struct FilterUse {
  ExpressionRef value;  // null in a filter block: its rendered body
  std::string name;
  CallArguments arguments;
};
struct TestUse {
  ExpressionRef value;
  std::string name;
  CallArguments arguments;
};
enum class UnaryOp : uint8_t { negative, positive, logical_not };
struct Unary {
  UnaryOp op;
  ExpressionRef operand;
};
enum class BinaryOp : uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };
struct Binary {
  BinaryOp op;
  ExpressionRef left, right;
};
enum class LogicOp : uint8_t { logical_and, logical_or };
struct Logic {
  LogicOp op;
  std::vector<ExpressionRef> operands;  // of a chain of the same operator
};
struct Concatenation {
  std::vector<ExpressionRef> parts;
};
enum class CompareOp : uint8_t { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };
struct Comparison {
  ExpressionRef first;
  std::vector<std::pair<CompareOp, ExpressionRef>> rest;
};
struct Conditional {
  ExpressionRef condition, then, otherwise;  // `otherwise` may be null
};

using ExpressionNode =
    std::variant<Constant, Name, ListLiteral, DictLiteral, Attribute, Item, Slice, Invocation, FilterUse,
                 TestUse, Unary, Binary, Logic, Concatenation, Comparison, Conditional>;

struct Expression {
  uint32_t line;
  uint32_t depth;  // of the tree, this one included
  ExpressionNode node;
};

// The depth of the deepest expression within `node`.
uint32_t depth_below(const ExpressionNode& node);

// What `set` and `for` assign to: a name, an attribute of a namespace, or several targets to unpack into.
struct Target {
  std::string name;
  std::string attribute;  // empty: the name itself
  std::vector<Target> parts;
};

struct Data {
  TextRef text;
};
struct Print {
  ExpressionRef value;
};
struct If {
  std::vector<std::pair<ExpressionRef, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionRef iterable;
  ExpressionRef condition;  // null if there is none
  Block body;
  Block otherwise;
  bool recursive = false;
};
struct Set {
  Target target;
  ExpressionRef value;
};
struct SetBlock {
  Target target;
  ExpressionRef filter;  // a chain of filters over the rendered body; null if there is none
  Block body;
};
struct FilterBlock {
  ExpressionRef filter;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionRef>> bindings;
  Block body;
};
struct MacroDefinition {
  std::string name;
  std::vector<std::pair<std::string, ExpressionRef>> parameters;  // with defaults, where not null
  Block body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};
struct DefineMacro {
  std::shared_ptr<const MacroDefinition> macro;
};
struct CallBlock {
  std::shared_ptr<const MacroDefinition> caller;
  ExpressionRef call;  // an Invocation
};
struct Scoped {  // {% generation %}
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  uint32_t line;
  std::variant<Data, Print, If, For, Set, SetBlock, FilterBlock, With, DefineMacro, CallBlock, Scoped, Break,
               Continue>
      node;
};

}  // namespace quire::jinja
