#include <array>
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/objects.h"

namespace quire::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

Value make_range(Call& call) {
  if (call.rest.empty() || call.rest.size() > 3) throw Failure("range() takes 1 to 3 arguments");
  const auto number = [&](size_t i) { return as_integer(call.rest[i], "range()'s argument"); };
  const int64_t begin = call.rest.size() > 1 ? number(0) : 0;
  const int64_t end = call.rest.size() > 1 ? number(1) : number(0);
  const int64_t step = call.rest.size() > 2 ? number(2) : 1;
  if (step == 0) throw Failure("range() arg 3 must not be zero");
  const __int128 distance = step > 0 ? __int128(end) - begin : __int128(begin) - end;
  const __int128 stride = step > 0 ? __int128(step) : -__int128(step);
  const __int128 count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (count > kMaxRange)
    throw Failure("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  call.heap.step(uint64_t(count));
  call.heap.check_room(size_t(count) * sizeof(Value));
  std::vector<Value> items;
  items.reserve(size_t(count));
  for (int64_t i = 0; i < int64_t(count); ++i) items.push_back(int64_t(begin + __int128(i) * step));
  return call.list(std::move(items), SequenceKind::range);
}

// The entries of dict(...) and namespace(...): of a mapping or of pairs, then the named ones.
std::vector<std::pair<Value, Value>> entries_of(Call& call) {
  std::vector<std::pair<Value, Value>> entries;
  if (call.given[0]) {
    if (const auto* dict = call[0].get_if<DictRef>()) {
      entries = (*dict)->entries;
    } else {
      const SequenceRef source = iterate(call.heap, call[0]);
      for (const Value& pair : source->items) {
        const SequenceRef parts = iterate(call.heap, pair);
        if (parts->items.size() != 2) throw Failure("a dict is made of pairs");
        entries.emplace_back(parts->items[0], parts->items[1]);
      }
    }
  }
  for (auto& [name, value] : call.named_rest)
    entries.emplace_back(make_string(&call.heap, name), std::move(value));
  return entries;
}

Value make_namespace(Call& call) {
  Variables attributes;
  const DictRef dict = make_dict(&call.heap, entries_of(call));
  for (const auto& [name, value] : dict->entries) {
    const std::string_view key = as_string(name, "an attribute's name");
    if (key.starts_with('_')) {
      throw Failure(
          "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{}'. Please "
          "rename the attribute.",
          key);
    }
    attributes.emplace_back(key, value);
  }
  return call.interpreter.make_namespace(std::move(attributes));
}

Value raise_exception(Call& call) {
  throw Raised(call.text(0)->bytes);
}

Value strftime_now(Call& call) {
  const std::string format(as_string(call[0], "strftime_now()'s format"));
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[1024];
  const size_t length = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  if (length == 0 && !format.empty())
    throw Failure("strftime_now() cannot write '{}'", format.substr(0, 100));
  return call.string(std::string(buffer, length), call[0].has_plain());
}

Value make_cycler(Call& call) {
  if (call.rest.empty()) throw Failure("at least one item has to be provided");
  return ObjectRef(std::make_shared<Cycler>(make_sequence(&call.heap, std::move(call.rest))));
}

Value make_joiner(Call& call) {
  return ObjectRef(std::make_shared<Joiner>(call.given[0] ? call[0] : make_string(&call.heap, ", ")));
}

constexpr std::array kGlobals = {
    Builtin{"range", "*", make_range},
    Builtin{"dict", "(mapping)? **",
            [](Call& call) -> Value { return make_dict(&call.heap, entries_of(call)); }},
    Builtin{"namespace", "(mapping)? **", make_namespace},
    Builtin{"raise_exception", "message", raise_exception},
    Builtin{"strftime_now", "format", strftime_now},
    Builtin{"cycler", "*", make_cycler},
    Builtin{"joiner", "sep?", make_joiner},
};

}  // namespace

std::span<const Builtin> globals() {
  return kGlobals;
}

}  // namespace quire::jinja
