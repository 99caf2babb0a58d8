#include "text/jinja/eval.h"

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/objects.h"

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

}  // namespace

const Value* Scope::find(Heap& heap, std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent) {
    heap.step(scope->variables.size() / 16);
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(Heap& heap, std::string_view name, Value value) {
  heap.step(variables.size() / 16);
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
  for (const auto& [name, value] : variables) root_->set(heap_, name, value);
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
    scope->set(heap_, "loop", ObjectRef(state));
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
  scope_->set(heap_, define.macro->name, define_macro(define.macro));
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
    scope_->set(heap_, target.name, value);
    return;
  }
  const Value* object = scope_->find(heap_, target.name);
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
  heap_.step(1 + macro.parameters.size() * (1 + arguments.named.size() / 16));
  if (auto caller = take_named("caller")) {
    scope_->set(heap_, "caller", *std::move(caller));
  } else if (macro.uses_caller) {
    scope_->set(heap_, "caller", make_undefined("No caller defined"));
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, default_value] = macro.parameters[i];
    if (i < arguments.positional.size()) {
      scope_->set(heap_, name, arguments.positional[i]);
    } else if (auto named = take_named(name)) {
      scope_->set(heap_, name, *std::move(named));
    } else if (default_value) {
      scope_->set(heap_, name, evaluate(*default_value));
    } else {
      scope_->set(heap_, name, make_undefined(fmt::format("parameter '{}' was not provided", name)));
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
    scope_->set(heap_, "varargs", make_sequence(&heap_, std::move(varargs), SequenceKind::tuple));
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : arguments.named)
      entries.emplace_back(make_string(&heap_, name), std::move(value));
    scope_->set(heap_, "kwargs", make_dict(&heap_, std::move(entries)));
  } else if (!arguments.named.empty()) {
    throw Failure("macro '{}' takes no keyword argument '{}'", macro.name, arguments.named[0].first);
  }
}

Value Interpreter::make_namespace(Variables attributes) {
  heap_.take(sizeof(Namespace) + attributes.size() * sizeof(attributes[0]));
  namespaces_.push_back(std::make_shared<Namespace>(std::move(attributes)));
  return namespaces_.back();
}

}  // namespace quire::jinja
