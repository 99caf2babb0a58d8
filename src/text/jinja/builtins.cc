#include "text/jinja/builtins.h"

#include <algorithm>

namespace quire::jinja {
namespace {

const Builtin* find(std::span<const Builtin> table, std::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Builtin& each) { return each.name == name; });
  return found == table.end() ? nullptr : &*found;
}

// "value width? *" -> {value, width?, *}
std::vector<std::string_view> split_parameters(std::string_view parameters) {
  std::vector<std::string_view> names;
  while (!parameters.empty()) {
    const size_t end = std::min(parameters.find(' '), parameters.size());
    names.push_back(parameters.substr(0, end));
    parameters.remove_prefix(std::min(end + 1, parameters.size()));
  }
  return names;
}

}  // namespace

int64_t Call::integer(size_t slot, int64_t otherwise) const {
  return has(slot) ? as_integer(slots[slot], "an argument") : otherwise;
}

Value invoke(Interpreter& interpreter, const Builtin& builtin, Arguments arguments) {
  Call call{interpreter, interpreter.heap(), {}, {}, {}, {}};
  bool any_positional = false;
  bool any_named = false;
  size_t next = 0;
  for (std::string_view name : split_parameters(builtin.parameters)) {
    if (name == "*" || name == "**") {
      (name == "*" ? any_positional : any_named) = true;
      continue;
    }
    const bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (next < arguments.positional.size()) {
      call.slots.push_back(std::move(arguments.positional[next++]));
      call.given.push_back(true);
    } else if (named != arguments.named.end()) {
      call.slots.push_back(std::move(named->second));
      call.given.push_back(true);
      arguments.named.erase(named);
    } else if (optional) {
      call.slots.emplace_back();
      call.given.push_back(false);
    } else {
      throw Failure("{}() misses its argument '{}'", builtin.name, name);
    }
  }
  if (next < arguments.positional.size() && !any_positional) {
    throw Failure("{}() has too many arguments", builtin.name);
  }
  for (; next < arguments.positional.size(); ++next)
    call.rest.push_back(std::move(arguments.positional[next]));
  if (!arguments.named.empty() && !any_named) {
    throw Failure("{}() has no argument '{}'", builtin.name, arguments.named[0].first);
  }
  call.named_rest = std::move(arguments.named);
  return builtin.function(call);
}

const Builtin* find_filter(std::string_view name) {
  const Builtin* builtin = find(text_filters(), name);
  return builtin ? builtin : find(list_filters(), name);
}

const Builtin* find_test(std::string_view name) {
  return find(tests(), name);
}

const Builtin* find_global(std::string_view name) {
  return find(globals(), name);
}

const Builtin* find_method(const Value& self, std::string_view name) {
  if (self.is_string()) return find(string_methods(), name);
  if (self.is<DictRef>()) return find(dict_methods(), name);
  if (const auto* sequence = self.get_if<SequenceRef>();
      sequence && (*sequence)->kind <= SequenceKind::range) {
    return find(sequence_methods(), name);
  }
  return nullptr;
}

bool is_forbidden_method(const Value& self, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                        "pop",    "remove", "reverse", "sort"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (self.is<DictRef>()) return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  if (const auto* sequence = self.get_if<SequenceRef>();
      sequence && (*sequence)->kind == SequenceKind::list) {
    return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  }
  return false;
}

}  // namespace quire::jinja
