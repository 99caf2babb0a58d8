#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/heap.h"
#include "text/jinja/value.h"
#include "text/marked_text.h"

namespace quire::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// The names that a part of a template has set. Names belong to the template or to the variables given to it.
struct Scope : std::enable_shared_from_this<Scope> {
  explicit Scope(Scope* parent) : parent(parent) {}

  const Value* find(Heap& heap, std::string_view name) const;  // here or further out; null if there is none
  void set(Heap& heap, std::string_view name, Value value);    // here

  Scope* const parent;
  bool pinned = false;
  std::vector<std::pair<std::string_view, Value>> variables;
};

// Counts how deep an evaluation has nested, and stops it at the limit.
class DepthGuard {
 public:
  DepthGuard(uint32_t& depth, uint32_t limit) : depth_(depth) {
    if (depth_ >= limit) throw Failure("it nests deeper than {} levels when it runs", limit);
    ++depth_;
  }
  ~DepthGuard() { --depth_; }

 private:
  uint32_t& depth_;
};

// Evaluates one template once, on one thread. Throws Failure or Raised.
class Interpreter {
 public:
  Interpreter(const Limits& limits, const Variables& variables);
  ~Interpreter();

  MarkedText render(const Block& block);
  uint32_t line() const { return line_; }  // being evaluated

  Heap& heap() { return heap_; }
  Value call(const Value& callee, Arguments arguments);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  Value filter(std::string_view name, Arguments arguments);     // the value is the first argument
  bool test(std::string_view name, Arguments arguments);

  Value make_namespace(Variables attributes);
  Value run_macro(const MacroDefinition& macro, Scope& scope, Arguments arguments);
  // The body of a recursive loop once more, over other items.
  Value run_recursive(const For& loop, Scope& scope, const Value& items, uint32_t depth);

 private:
  enum class Flow { normal, leave_loop, next_iteration };

  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow run(const Data& data);
  Flow run(const Print& print);
  Flow run(const If& branch);
  Flow run(const For& loop);
  Flow run(const Set& set);
  Flow run(const SetBlock& set);
  Flow run(const FilterBlock& filter);
  Flow run(const With& with);
  Flow run(const DefineMacro& define);
  Flow run(const CallBlock& call);
  Flow run(const Scoped& scoped);
  Flow run(const Break&) { return Flow::leave_loop; }
  Flow run(const Continue&) { return Flow::next_iteration; }

  void run_loop(const For& loop, const Value& iterable, uint32_t depth);
  SequenceRef select_items(const For& loop, const SequenceRef& items);
  void assign(const Target& target, const Value& value);
  TextRef capture(const Block& block);
  void bind_parameters(const MacroDefinition& macro, Arguments& arguments);
  Value define_macro(std::shared_ptr<const MacroDefinition> macro);
  void pin(Scope& scope);

  Value evaluate(const Expression& expression);
  Value visit(const Constant& constant) { return constant.value; }
  Value visit(const Name& name);
  Value visit(const ListLiteral& list);
  Value visit(const DictLiteral& dict);
  Value visit(const Attribute& attribute);
  Value visit(const Item& item);
  Value visit(const Slice& slice);
  Value visit(const Invocation& invocation);
  Value visit(const FilterUse& filter);
  Value visit(const TestUse& test);
  Value visit(const Unary& unary);
  Value visit(const Binary& binary);
  Value visit(const Logic& logic);
  Value visit(const Concatenation& concatenation);
  Value visit(const Comparison& comparison);
  Value visit(const Conditional& conditional);
  bool holds(CompareOp op, const Value& left, const Value& right);
  Arguments evaluate(const CallArguments& arguments, std::vector<Value> first = {});
  std::optional<Value> change_list(const Invocation& invocation);
  Value invoke(const Invocation& invocation, Variables extra);
  // `filter` over a rendered body.
  Value apply_filters(const Expression& filter, const TextRef& body);

  Heap heap_;  // first: what the others hold counts against it
  TextRef filtered_body_;
  std::vector<std::shared_ptr<Scope>> pinned_;       // a macro may still look into them
  std::vector<std::shared_ptr<Object>> namespaces_;  // kept, and emptied at the end: they may hold each other
  std::shared_ptr<Scope> root_;
  Scope* scope_;
  TextBuilder* out_ = nullptr;
  uint32_t depth_ = 0;
  uint32_t line_ = 0;
};

// The operators.
Value add(Heap& heap, const Value& left, const Value& right);
Value binary(Interpreter& interpreter, BinaryOp op, const Value& left, const Value& right);
Value negate(const Value& operand);
Value slice(Heap& heap, const Value& object, const Value& begin, const Value& end, const Value& step);

}  // namespace quire::jinja
