#include "text/jinja_eval.h"

#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_objects.h"

namespace quire::jinja {
namespace {

// Restores a variable when the block ends, also by an exception.
template <class T>
class Restore {
 public:
  Restore(T& variable, T value) : variable_(variable), old_(std::exchange(variable, std::move(value))) {}
  ~Restore() { variable_ = std::move(old_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  T old_;
};

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

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const Limits& limits, const Variables& variables)
    : heap_(limits), root_(std::make_shared<Scope>(nullptr)), scope_(root_.get()) {
  for (const auto& [name, value] : variables) root_->set(name, value);
}

Interpreter::~Interpreter() {
  root_->variables.clear();
  for (const auto& scope : pinned_) scope->variables.clear();
  for (const auto& object : namespaces_) static_cast<Namespace&>(*object).clear();
}

MarkedText Interpreter::render(const Block& block) {
  TextBuilder out(&heap_);
  const Restore restore(out_, &out);
  execute(block);
  return out.finish_marked();
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const Statement& statement : block) {
    const Flow flow = execute(statement);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  const DepthGuard guard(depth_, heap_.limits().depth);
  heap_.step();
  line_ = statement.line;
  return std::visit([&](const auto& node) { return run(node); }, statement.node);
}

Interpreter::Flow Interpreter::run(const Data& data) {
  out_->append(*data.text);
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const Print& print) {
  out_->append(*to_text(heap_, evaluate(*print.value)));
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const If& branch) {
  for (const auto& [condition, body] : branch.branches) {
    if (evaluate(*condition).truthy()) return execute(body);
  }
  return execute(branch.otherwise);
}

Interpreter::Flow Interpreter::run(const For& loop) {
  run_loop(loop, evaluate(*loop.iterable), 1);
  return Flow::normal;
}

void Interpreter::run_loop(const For& loop, const Value& iterable, uint32_t depth) {
  const SequenceRef items = select_items(loop, iterate(heap_, iterable));
  if (items->items.empty()) {
    const auto scope = std::make_shared<Scope>(scope_);
    const Restore restore(scope_, scope.get());
    execute(loop.otherwise);
    return;
  }
  if (loop.recursive) pin(*scope_);
  const auto state = std::make_shared<Loop>(loop, items, *scope_, depth);
  for (const Value& item : items->items) {
    heap_.step();
    const auto scope = std::make_shared<Scope>(scope_);
    const Restore restore(scope_, scope.get());
    scope->set("loop", ObjectRef(state));
    assign(loop.target, item);
    if (execute(loop.body) == Flow::leave_loop) break;
    state->advance();
  }
}

SequenceRef Interpreter::select_items(const For& loop, const SequenceRef& items) {
  if (!loop.condition) return items;
  std::vector<Value> selected;
  for (const Value& item : items->items) {
    const auto scope = std::make_shared<Scope>(scope_);
    const Restore restore(scope_, scope.get());
    assign(loop.target, item);
    if (evaluate(*loop.condition).truthy()) selected.push_back(item);
  }
  return make_sequence(&heap_, std::move(selected));
}

Value Interpreter::run_recursive(const For& loop, Scope& scope, const Value& items, uint32_t depth) {
  const DepthGuard guard(depth_, heap_.limits().depth);
  TextBuilder out(&heap_);
  const Restore restore_out(out_, &out);
  const Restore restore_scope(scope_, &scope);
  run_loop(loop, items, depth);
  return out.finish();
}

Interpreter::Flow Interpreter::run(const Set& set) {
  assign(set.target, evaluate(*set.value));
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const SetBlock& set) {
  const TextRef body = capture(set.body);
  assign(set.target, set.filter ? apply_filters(*set.filter, body) : body);
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const FilterBlock& filter) {
  const TextRef body = capture(filter.body);
  out_->append(*to_text(heap_, apply_filters(*filter.filter, body)));
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const With& with) {
  // The values belong to the scope outside, as in Jinja.
  std::vector<Value> values;
  for (const auto& binding : with.bindings) values.push_back(evaluate(*binding.second));
  const auto scope = std::make_shared<Scope>(scope_);
  const Restore restore(scope_, scope.get());
  for (size_t i = 0; i < values.size(); ++i) assign(with.bindings[i].first, values[i]);
  return execute(with.body);
}

Interpreter::Flow Interpreter::run(const DefineMacro& define) {
  scope_->set(define.macro->name, define_macro(define.macro));
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const CallBlock& call) {
  Variables extra;
  extra.emplace_back("caller", define_macro(call.caller));
  out_->append(*to_text(heap_, invoke(std::get<Invocation>(call.call->node), std::move(extra))));
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const Scoped& scoped) {
  const auto scope = std::make_shared<Scope>(scope_);
  const Restore restore(scope_, scope.get());
  return execute(scoped.body);
}

void Interpreter::assign(const Target& target, const Value& value) {
  heap_.step();
  if (!target.parts.empty()) {
    const SequenceRef items = iterate(heap_, value);
    if (items->items.size() != target.parts.size()) {
      throw Failure("{} values to unpack (expected {})",
                    items->items.size() > target.parts.size() ? "too many" : "not enough",
                    target.parts.size());
    }
    for (size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items->items[i]);
    return;
  }
  if (target.attribute.empty()) {
    scope_->set(target.name, value);
    return;
  }
  const Value* object = scope_->find(target.name);
  const auto* reference = object ? object->get_if<ObjectRef>() : nullptr;
  auto* space = reference ? dynamic_cast<Namespace*>(reference->get()) : nullptr;
  if (!space) throw Failure("cannot assign attribute on non-namespace object");
  space->set(heap_, target.attribute, value);
}

TextRef Interpreter::capture(const Block& block) {
  TextBuilder out(&heap_);
  const Restore restore_out(out_, &out);
  const auto scope = std::make_shared<Scope>(scope_);
  const Restore restore_scope(scope_, scope.get());
  execute(block);
  return out.finish();
}

Value Interpreter::apply_filters(const Expression& filter, const TextRef& body) {
  const Restore restore(filtered_body_, body);
  return evaluate(filter);
}

Value Interpreter::define_macro(std::shared_ptr<const MacroDefinition> macro) {
  pin(*scope_);
  return ObjectRef(std::make_shared<Macro>(std::move(macro), *scope_));
}

void Interpreter::pin(Scope& scope) {
  for (Scope* each = &scope; each && each != root_.get() && !each->pinned; each = each->parent) {
    heap_.take(sizeof(Scope) + each->variables.size() * sizeof(each->variables[0]));
    each->pinned = true;
    pinned_.push_back(each->shared_from_this());
  }
}

Value Interpreter::run_macro(const MacroDefinition& macro, Scope& scope, Arguments arguments) {
  const DepthGuard guard(depth_, heap_.limits().depth);
  const auto inner = std::make_shared<Scope>(&scope);
  const Restore restore_scope(scope_, inner.get());
  bind_parameters(macro, arguments);
  TextBuilder out(&heap_);
  const Restore restore_out(out_, &out);
  execute(macro.body);
  return out.finish();
}

void Interpreter::bind_parameters(const MacroDefinition& macro, Arguments& arguments) {
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& named) { return named.first == name; });
    if (found == arguments.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments.named.erase(found);
    return value;
  };
  if (auto caller = take_named("caller")) {
    scope_->set("caller", *std::move(caller));
  } else if (macro.uses_caller) {
    scope_->set("caller", make_undefined("No caller defined"));
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, default_value] = macro.parameters[i];
    if (i < arguments.positional.size()) {
      scope_->set(name, arguments.positional[i]);
    } else if (auto named = take_named(name)) {
      scope_->set(name, *std::move(named));
    } else if (default_value) {
      scope_->set(name, evaluate(*default_value));
    } else {
      scope_->set(name, make_undefined(fmt::format("parameter '{}' was not provided", name)));
    }
  }
  std::vector<Value> varargs;
  if (arguments.positional.size() > macro.parameters.size()) {
    if (!macro.uses_varargs) {
      throw Failure("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size());
    }
    varargs.assign(arguments.positional.begin() + ptrdiff_t(macro.parameters.size()),
                   arguments.positional.end());
  }
  if (macro.uses_varargs)
    scope_->set("varargs", make_sequence(&heap_, std::move(varargs), SequenceKind::tuple));
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : arguments.named)
      entries.emplace_back(make_string(&heap_, name), std::move(value));
    scope_->set("kwargs", make_dict(&heap_, std::move(entries)));
  } else if (!arguments.named.empty()) {
    throw Failure("macro '{}' takes no keyword argument '{}'", macro.name, arguments.named[0].first);
  }
}

Value Interpreter::make_namespace(Variables attributes) {
  heap_.take(sizeof(Namespace) + attributes.size() * sizeof(attributes[0]));
  namespaces_.push_back(std::make_shared<Namespace>(std::move(attributes)));
  return namespaces_.back();
}

// --- expressions

Value Interpreter::evaluate(const Expression& expression) {
  const DepthGuard guard(depth_, heap_.limits().depth);
  heap_.step();
  line_ = expression.line;
  return std::visit([&](const auto& node) { return visit(node); }, expression.node);
}

Value Interpreter::visit(const Name& name) {
  if (const Value* value = scope_->find(name.name)) return *value;
  if (const Builtin* builtin = find_global(name.name)) {
    return ObjectRef(std::make_shared<BoundBuiltin>(*builtin));
  }
  return make_undefined(fmt::format("'{}' is undefined", name.name));
}

Value Interpreter::visit(const ListLiteral& list) {
  std::vector<Value> items;
  for (const auto& item : list.items) items.push_back(evaluate(*item));
  return make_sequence(&heap_, std::move(items), list.kind);
}

Value Interpreter::visit(const DictLiteral& dict) {
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, value] : dict.entries) {
    Value evaluated = evaluate(*key);
    entries.emplace_back(std::move(evaluated), evaluate(*value));
  }
  return make_dict(&heap_, std::move(entries));
}

Value Interpreter::visit(const Attribute& node) {
  return attribute(evaluate(*node.object), node.name);
}

Value Interpreter::visit(const Item& node) {
  const Value object = evaluate(*node.object);
  return item(object, evaluate(*node.key));
}

Value Interpreter::visit(const Slice& node) {
  const auto part = [&](const ExpressionRef& expression) -> Value {
    if (!expression) return None{};
    return evaluate(*expression);
  };
  const Value object = evaluate(*node.object);
  const Value begin = part(node.begin);
  const Value end = part(node.end);
  return slice(heap_, object, begin, end, part(node.step));
}

Value Interpreter::visit(const Invocation& node) {
  return invoke(node, {});
}

Value Interpreter::invoke(const Invocation& node, Variables extra) {
  const Value callee = evaluate(*node.callee);
  Arguments arguments = evaluate(node.arguments);
  for (auto& each : extra) arguments.named.push_back(std::move(each));
  return call(callee, std::move(arguments));
}

Arguments Interpreter::evaluate(const CallArguments& node, std::vector<Value> first) {
  constexpr size_t kMaxUnpacked = 1000;
  Arguments arguments{std::move(first), {}};
  for (const auto& expression : node.positional) arguments.positional.push_back(evaluate(*expression));
  for (const auto& [name, expression] : node.named) arguments.named.emplace_back(name, evaluate(*expression));
  if (node.rest) {
    const SequenceRef rest = iterate(heap_, evaluate(*node.rest));
    if (rest->items.size() > kMaxUnpacked)
      throw Failure("a call unpacks more than {} arguments", kMaxUnpacked);
    arguments.positional.insert(arguments.positional.end(), rest->items.begin(), rest->items.end());
  }
  if (node.named_rest) {
    const Value rest = evaluate(*node.named_rest);
    const auto* dict = rest.get_if<DictRef>();
    if (!dict) throw Failure("argument after ** must be a mapping, not {}", rest.type_name());
    if ((*dict)->entries.size() > kMaxUnpacked)
      throw Failure("a call unpacks more than {} arguments", kMaxUnpacked);
    for (const auto& [name, value] : (*dict)->entries) {
      arguments.named.emplace_back(as_string(name, "a keyword"), value);
    }
  }
  return arguments;
}

Value Interpreter::visit(const FilterUse& node) {
  std::vector<Value> first;
  first.push_back(node.value ? evaluate(*node.value) : Value(filtered_body_));
  return filter(node.name, evaluate(node.arguments, std::move(first)));
}

Value Interpreter::visit(const TestUse& node) {
  std::vector<Value> first;
  first.push_back(evaluate(*node.value));
  return test(node.name, evaluate(node.arguments, std::move(first)));
}

Value Interpreter::visit(const Unary& node) {
  const Value operand = evaluate(*node.operand);
  if (node.op == UnaryOp::logical_not) return !operand.truthy();
  const Value negated = negate(operand);
  return node.op == UnaryOp::negative ? negated : negate(negated);
}

Value Interpreter::visit(const Binary& node) {
  const Value left = evaluate(*node.left);
  return binary(*this, node.op, left, evaluate(*node.right));
}

Value Interpreter::visit(const Logic& node) {
  Value value;
  for (const auto& operand : node.operands) {
    value = evaluate(*operand);
    if (value.truthy() == (node.op == LogicOp::logical_or)) break;
  }
  return value;
}

Value Interpreter::visit(const Concatenation& node) {
  TextBuilder builder(&heap_);
  for (const auto& part : node.parts) builder.append(*to_text(heap_, evaluate(*part)));
  return builder.finish();
}

Value Interpreter::visit(const Comparison& node) {
  Value left = evaluate(*node.first);
  for (const auto& [op, expression] : node.rest) {
    Value right = evaluate(*expression);
    if (!holds(op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

bool Interpreter::holds(CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOp::equal:
      return equal(heap_, left, right);
    case CompareOp::not_equal:
      return !equal(heap_, left, right);
    case CompareOp::less:
      return compare(heap_, left, right, "<") < 0;
    case CompareOp::less_equal:
      return compare(heap_, left, right, "<=") <= 0;
    case CompareOp::greater:
      return compare(heap_, left, right, ">") > 0;
    case CompareOp::greater_equal:
      return compare(heap_, left, right, ">=") >= 0;
    case CompareOp::in:
      return contains(heap_, right, left);
    case CompareOp::not_in:
      return !contains(heap_, right, left);
  }
  return false;
}

Value Interpreter::visit(const Conditional& node) {
  if (evaluate(*node.condition).truthy()) return evaluate(*node.then);
  if (node.otherwise) return evaluate(*node.otherwise);
  return make_undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.", line_));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  const DepthGuard guard(depth_, heap_.limits().depth);
  require_defined(callee);
  const auto* object = callee.get_if<ObjectRef>();
  if (!object) throw Failure("'{}' object is not callable", callee.type_name());
  const ObjectRef keep = *object;
  return keep->call(*this, std::move(arguments));
}

namespace {

Value missing_attribute(const Value& object, std::string_view name) {
  const std::string type = object.is_none() ? "None" : fmt::format("{} object", object.type_name());
  return make_undefined(fmt::format("'{}' has no attribute '{}'", type, name));
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  require_defined(object);
  if (const auto* reference = object.get_if<ObjectRef>()) {
    Value value = (*reference)->attribute(*this, name);
    return value.is_undefined() && !value.get<Undefined>().reason ? missing_attribute(object, name) : value;
  }
  if (const Builtin* method = find_method(object, name)) {
    return ObjectRef(std::make_shared<BoundBuiltin>(*method, object));
  }
  if (is_forbidden_method(object, name)) {
    return make_undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, object.type_name()));
  }
  if (const auto* dict = object.get_if<DictRef>()) {
    if (const Value* value = (*dict)->find(name)) return *value;
  }
  return missing_attribute(object, name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  require_defined(object);
  if (const auto* dict = object.get_if<DictRef>()) {
    if (key.is_string()) heap_.copy_bytes(key.bytes().size());
    if (!key.is<SequenceRef>() && !key.is<DictRef>()) {
      if (const Value* value = (*dict)->find(key)) return *value;
    }
  } else if (key.is<int64_t>() || key.is<bool>()) {
    int64_t index = as_integer(key, "an index");
    if (const auto* sequence = object.get_if<SequenceRef>();
        sequence && (*sequence)->kind <= SequenceKind::range) {
      const auto size = int64_t((*sequence)->items.size());
      if (index < 0) index += size;
      if (index >= 0 && index < size) return (*sequence)->items[size_t(index)];
    } else if (const auto* text = object.get_if<TextRef>()) {
      const std::string& bytes = (*text)->bytes;
      heap_.copy_bytes(bytes.size());
      if (index < 0) index += int64_t(count_chars(bytes));
      const size_t begin = index < 0 ? bytes.size() : char_position(bytes, size_t(index));
      if (begin < bytes.size()) return slice_text(&heap_, *text, begin, begin + char_bytes(bytes, begin));
    }
  }
  if (key.is_string()) return attribute(object, key.bytes());
  require_defined(key);
  const std::string type = object.is_none() ? "None" : fmt::format("{} object", object.type_name());
  return make_undefined(fmt::format("{} has no element {}", type, repr(heap_, key)));
}

Value Interpreter::filter(std::string_view name, Arguments arguments) {
  const Builtin* builtin = find_filter(name);
  if (!builtin) throw Failure("No filter named '{}'.", name);
  return jinja::invoke(*this, *builtin, std::move(arguments));
}

bool Interpreter::test(std::string_view name, Arguments arguments) {
  const Builtin* builtin = find_test(name);
  if (!builtin) throw Failure("No test named '{}'.", name);
  return jinja::invoke(*this, *builtin, std::move(arguments)).truthy();
}

}  // namespace quire::jinja
