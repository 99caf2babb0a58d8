#include "text/jinja/builtins.h"
#include "text/jinja/eval.h"
#include "text/jinja/objects.h"

namespace quire::jinja {

Value Interpreter::evaluate(const Expression& expression) {
  const DepthGuard guard(depth_, heap_.limits().depth);
  heap_.step();
  line_ = expression.line;
  return std::visit([&](const auto& node) { return visit(node); }, expression.node);
}

Value Interpreter::visit(const Name& name) {
  heap_.copy_bytes(name.name.size());
  if (const Value* value = scope_->find(heap_, name.name)) return *value;
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

// The list of a namespace, given one element more or less. Lists themselves cannot be changed, as in the sandbox of
// Transformers; but what a namespace holds may be, and some templates keep a queue there.
std::optional<Value> Interpreter::change_list(const Invocation& node) {
  const auto* method = std::get_if<Attribute>(&node.callee->node);
  const auto* place = method ? std::get_if<Attribute>(&method->object->node) : nullptr;
  if (!place || (method->name != "append" && method->name != "pop")) return std::nullopt;
  const Value holder = evaluate(*place->object);
  const auto* object = holder.get_if<ObjectRef>();
  auto* const space = object ? dynamic_cast<Namespace*>(object->get()) : nullptr;
  if (!space) return std::nullopt;
  const Value list = space->attribute(*this, place->name);
  const auto* sequence = list.get_if<SequenceRef>();
  if (!sequence || (*sequence)->kind != SequenceKind::list) return std::nullopt;
  const Arguments arguments = evaluate(node.arguments);
  std::vector<Value> items = (*sequence)->items;
  heap_.step(1 + items.size());
  Value result = None{};
  if (method->name == "append") {
    if (arguments.positional.size() != 1) throw Failure("append takes one element");
    items.push_back(arguments.positional[0]);
  } else {
    int64_t index = arguments.positional.empty() ? -1 : as_integer(arguments.positional[0], "an index");
    if (index < 0) index += int64_t(items.size());
    if (index < 0 || index >= int64_t(items.size())) throw Failure("pop finds no such element");
    result = items[size_t(index)];
    items.erase(items.begin() + index);
  }
  space->set(heap_, place->name, make_sequence(&heap_, std::move(items)));
  return result;
}

Value Interpreter::invoke(const Invocation& node, Variables extra) {
  if (auto changed = change_list(node)) return std::move(*changed);
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
  heap_.copy_bytes(name.size());
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
    if (!key.is<SequenceRef>() && !key.is<DictRef>()) {
      if (const Value* value = (*dict)->find(heap_, key)) return *value;
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
  const std::string type = object.is_none() ? "None" : fmt::format("{} object", object.type_name());
  // Jinja looks for what is undefined as for anything else, and does not find it.
  return make_undefined(
      fmt::format("{} has no element {}", type, key.is_undefined() ? "Undefined" : repr(heap_, key)));
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
