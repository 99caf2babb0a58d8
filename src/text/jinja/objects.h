#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/eval.h"

namespace quire::jinja {

// namespace(...): the one thing a template can change. Owned by the interpreter, which empties it in the end.
class Namespace : public Object {
 public:
  explicit Namespace(Variables attributes) : attributes_(std::move(attributes)) {}
  std::string_view type_name() const override { return "Namespace"; }
  Value attribute(Interpreter& interpreter, std::string_view name) override;
  void set(Heap& heap, std::string_view name, Value value);
  void clear() { attributes_.clear(); }

 private:
  Variables attributes_;
};

class Macro : public Object {
 public:
  Macro(std::shared_ptr<const MacroDefinition> definition, Scope& scope)
      : definition_(std::move(definition)), scope_(scope) {}
  std::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;
  Value attribute(Interpreter& interpreter, std::string_view name) override;

 private:
  std::shared_ptr<const MacroDefinition> definition_;
  Scope& scope_;  // where it was defined; the interpreter keeps it
};

// The variable `loop`.
class Loop : public Object {
 public:
  Loop(const For& node, SequenceRef items, Scope& scope, uint32_t level)
      : node_(node), items_(std::move(items)), scope_(scope), level_(level) {
    depth = deeper(items_->depth);
  }
  std::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;
  Value attribute(Interpreter& interpreter, std::string_view name) override;
  void advance() { ++index_; }
  Value cycle(const std::vector<Value>& choices) const;
  bool changed(Heap& heap, const std::vector<Value>& values);

 private:
  const For& node_;
  SequenceRef items_;
  Scope& scope_;  // around a recursive loop; the interpreter keeps it
  uint32_t level_;
  size_t index_ = 0;
  TextRef last_;  // what `changed` saw; null at first
};

class Cycler : public Object {
 public:
  explicit Cycler(SequenceRef choices) : choices_(std::move(choices)) { depth = deeper(choices_->depth); }
  std::string_view type_name() const override { return "Cycler"; }
  Value attribute(Interpreter& interpreter, std::string_view name) override;
  Value current() const { return choices_->items[position_]; }
  Value next();
  void reset() { position_ = 0; }

 private:
  SequenceRef choices_;  // not empty
  size_t position_ = 0;
};

// joiner(sep): nothing the first time it is called, then its separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) { depth = deeper(separator_.depth()); }
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;

 private:
  Value separator_;
  bool used_ = false;
};

// A builtin, with the value it belongs to if it is a method.
class BoundBuiltin : public Object {
 public:
  explicit BoundBuiltin(const Builtin& builtin) : builtin_(builtin) {}
  BoundBuiltin(const Builtin& builtin, Value self);
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;

 private:
  const Builtin& builtin_;
  Value self_;
  bool method_ = false;
};

}  // namespace quire::jinja
