#include <algorithm>
#include <array>

#include "text/jinja/builtins.h"

// Methods of lists and dicts.

namespace quire::jinja {
namespace {

// Which item a list's index or count is about.
Value sequence_index(Call& call) {
  const auto& items = call[0].get<SequenceRef>()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(call.heap, items[i], call[1])) return i;
  }
  throw Failure("{} is not in list", repr(call.heap, call[1]));
}

Value sequence_count(Call& call) {
  const auto& items = call[0].get<SequenceRef>()->items;
  return std::count_if(items.begin(), items.end(),
                       [&](const Value& item) { return equal(call.heap, item, call[1]); });
}

Value dict_get(Call& call) {
  const Value* found = call[0].get<DictRef>()->find(call.heap, call[1]);
  if (found) return *found;
  if (call.given[2]) return call[2];
  return None{};
}

template <SequenceKind kKind>
Value dict_view(Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call[0].get<DictRef>()->entries) {
    if (kKind == SequenceKind::keys) items.push_back(key);
    if (kKind == SequenceKind::values) items.push_back(value);
    if (kKind == SequenceKind::items) items.push_back(call.list({key, value}, SequenceKind::tuple));
  }
  return call.list(std::move(items), kKind);
}

Value return_self(Call& call) {
  return call[0];
}

constexpr std::array kSequenceMethods = {
    Builtin{"index", "(self) value", sequence_index},
    Builtin{"count", "(self) value", sequence_count},
    Builtin{"copy", "(self)", return_self},
};

constexpr std::array kDictMethods = {
    Builtin{"get", "(self) key default?", dict_get},
    Builtin{"keys", "(self)", dict_view<SequenceKind::keys>},
    Builtin{"values", "(self)", dict_view<SequenceKind::values>},
    Builtin{"items", "(self)", dict_view<SequenceKind::items>},
    Builtin{"copy", "(self)", return_self},
};

}  // namespace

std::span<const Builtin> sequence_methods() {
  return kSequenceMethods;
}

std::span<const Builtin> dict_methods() {
  return kDictMethods;
}

}  // namespace quire::jinja
