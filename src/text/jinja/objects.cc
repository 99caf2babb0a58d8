#include "text/jinja/objects.h"

namespace quire::jinja {

Value Object::call(Interpreter&, Arguments) {
  throw Failure("'{}' object is not callable", type_name());
}

Value Object::attribute(Interpreter&, std::string_view) {
  return {};
}

Value Namespace::attribute(Interpreter& interpreter, std::string_view name) {
  interpreter.heap().step(attributes_.size() / 16);
  for (const auto& [known, value] : attributes_) {
    if (known == name) return value;
  }
  return {};
}

void Namespace::set(Heap& heap, std::string_view name, Value value) {
  if (name.starts_with('_')) {
    throw Failure(
        "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{}'. Please "
        "rename the attribute.",
        name);
  }
  heap.step(attributes_.size() / 16);
  for (auto& [known, old] : attributes_) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  heap.take(sizeof(attributes_[0]) + name.size());
  attributes_.emplace_back(name, std::move(value));
}

Value Macro::call(Interpreter& interpreter, Arguments arguments) {
  const auto keep = definition_;
  return interpreter.run_macro(*keep, scope_, std::move(arguments));
}

Value Macro::attribute(Interpreter& interpreter, std::string_view name) {
  if (name == "name") return make_string(&interpreter.heap(), definition_->name);
  return {};
}

Value Loop::call(Interpreter& interpreter, Arguments arguments) {
  if (!node_.recursive) throw Failure("The loop must have the 'recursive' marker to be called recursively.");
  if (arguments.positional.size() != 1) throw Failure("loop() takes one argument");
  return interpreter.run_recursive(node_, scope_, arguments.positional[0], level_ + 1);
}

namespace {

constexpr Builtin kLoopCycle{"cycle", "self *", [](Call& call) {
                               return static_cast<Loop&>(*call[0].get<ObjectRef>()).cycle(call.rest);
                             }};
constexpr Builtin kLoopChanged{
    "changed", "self *", [](Call& call) -> Value {
      return static_cast<Loop&>(*call[0].get<ObjectRef>()).changed(call.heap, call.rest);
    }};
constexpr Builtin kCyclerNext{
    "next", "self", [](Call& call) { return static_cast<Cycler&>(*call[0].get<ObjectRef>()).next(); }};
constexpr Builtin kCyclerReset{"reset", "self", [](Call& call) -> Value {
                                 static_cast<Cycler&>(*call[0].get<ObjectRef>()).reset();
                                 return None{};
                               }};

}  // namespace

Value Loop::attribute(Interpreter&, std::string_view name) {
  const size_t size = items_->items.size();
  // After a loop has ended its last state stays visible.
  const size_t index = std::min(index_, size - 1);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return level_;
  if (name == "depth0") return level_ - 1;
  if (name == "previtem") {
    return index > 0 ? items_->items[index - 1] : make_undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < size ? items_->items[index + 1] : make_undefined("there is no next item");
  }
  if (name == "cycle") return ObjectRef(std::make_shared<BoundBuiltin>(kLoopCycle, shared_from_this()));
  if (name == "changed") return ObjectRef(std::make_shared<BoundBuiltin>(kLoopChanged, shared_from_this()));
  return {};
}

Value Loop::cycle(const std::vector<Value>& choices) const {
  if (choices.empty()) throw Failure("no items for cycling given");
  return choices[index_ % choices.size()];
}

bool Loop::changed(Heap& heap, const std::vector<Value>& values) {
  std::string seen;
  for (const Value& value : values) {
    append_repr(heap, seen, value);
    seen += ',';
  }
  if (last_ && seen == last_->bytes) return false;
  last_ = make_text(&heap, std::move(seen), Origin::trusted);
  return true;
}

Value Cycler::next() {
  Value value = current();
  position_ = (position_ + 1) % choices_->items.size();
  return value;
}

Value Cycler::attribute(Interpreter&, std::string_view name) {
  if (name == "current") return current();
  if (name == "next") return ObjectRef(std::make_shared<BoundBuiltin>(kCyclerNext, shared_from_this()));
  if (name == "reset") return ObjectRef(std::make_shared<BoundBuiltin>(kCyclerReset, shared_from_this()));
  return {};
}

Value Joiner::call(Interpreter& interpreter, Arguments) {
  if (used_) return separator_;
  used_ = true;
  return make_string(&interpreter.heap(), {});
}

BoundBuiltin::BoundBuiltin(const Builtin& builtin, Value self)
    : builtin_(builtin), self_(std::move(self)), method_(true) {
  depth = deeper(self_.depth());
}

Value BoundBuiltin::call(Interpreter& interpreter, Arguments arguments) {
  if (method_) {
    std::vector<Value> with_self;
    with_self.reserve(arguments.positional.size() + 1);
    with_self.push_back(self_);
    for (Value& argument : arguments.positional) with_self.push_back(std::move(argument));
    arguments.positional = std::move(with_self);
  }
  return invoke(interpreter, builtin_, std::move(arguments));
}

}  // namespace quire::jinja
