#include "chat/derive_calls.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "chat/loose_value.h"
#include "chat/response_parser.h"

namespace quire {
namespace {

using View = std::string_view;
using S = Sentinels;

View trimmed(View text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

size_t common_prefix(View a, View b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

size_t common_suffix(View a, View b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}

// Where two renderings differ, anything may stand.
std::string generalized(View a, View b) {
  if (a == b) return std::string(a);
  const size_t front = common_prefix(a, b);
  const size_t back = std::min(common_suffix(a, b), std::min(a.size(), b.size()) - front);
  return std::string(a.substr(0, front)) + kAnyText + std::string(a.substr(a.size() - back));
}

// What stands in a text where its general form has anything.
std::string any_of(View text, View general) {
  const size_t front = general.find(kAnyText);
  if (front == View::npos || text.size() + 1 < general.size()) return {};
  return std::string(text.substr(front, text.size() + 1 - general.size()));
}

void replace_all_of(std::string& text, View what, View with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
}

// Whether a marker may begin at `at`.
bool is_boundary(View text, size_t at) {
  if (at == 0) return true;
  const char c = text[at], before = text[at - 1];
  return c == '<' || c == '[' || c == '{' || is_blank(before);
}

// What closes the turn, as models write it; behind it nothing is the answer's.
constexpr View kTurnEnds[] = {"<|im_end|>",
                              "<|eot_id|>",
                              "<|eom_id|>",
                              "</s>",
                              "<|END_OF_TURN_TOKEN|>",
                              "<turn|>",
                              "<end_of_turn>",
                              "<|end|>",
                              "<|message_sep|>",
                              "[e~[",
                              "<｜end▁of▁sentence｜>",
                              "<|tool_response>",
                              "<|end_of_text|>",
                              "<|eot|>",
                              "<|eom|>",
                              "<|endoftext|>",
                              "<end_of_sentence>",
                              "<seed:eos>",
                              "</assistant>",
                              "<|user|>",
                              "<|observation|>",
                              "<|START_OF_TURN_TOKEN|>",
                              "<|im_start|>"};

View cut_turn_end(View text, View end, const std::vector<std::string>& silent) {
  size_t cut = text.size();
  const auto cut_at = [&](View marker) {
    if (!marker.empty()) cut = std::min(cut, text.find(marker));
  };
  View mark = trimmed(end);
  for (bool again = true; again;) {
    again = false;
    for (const std::string& literal : silent) {
      if (!mark.starts_with(literal)) continue;
      mark = trimmed(mark.substr(literal.size()));
      again = true;
    }
  }
  const size_t close = mark.find_first_of(">]");
  cut_at(close == View::npos ? mark : mark.substr(0, close + 1));
  for (const View known : kTurnEnds) cut_at(known);
  for (const std::string& literal : silent) cut_at(literal);
  return text.substr(0, cut);
}

// What stands around calls: before the first, between the two, behind the last.
struct Around {
  std::string before, between, behind;
  bool two = false;
};

void split(const Around& around, CallForm& form) {
  const View before = around.before, between = around.between, behind = around.behind;
  if (!around.two) {
    form.open = trimmed(before);
    form.close = trimmed(behind);
    return;
  }
  const View close = trimmed(behind), open = trimmed(before);
  const View inside = trimmed(between);
  if (inside.size() >= close.size() + open.size() && inside.starts_with(close) && inside.ends_with(open) &&
      trimmed(inside.substr(close.size(), inside.size() - close.size() - open.size())).size() <= 1) {
    form.open = open;
    form.close = close;
    return;
  }
  size_t begin = between.size() - common_suffix(before, between);
  while (begin < between.size() && !is_boundary(between, begin)) ++begin;
  const View own_open = between.substr(begin);
  const View rest = between.substr(0, begin);
  size_t shared = common_prefix(rest, behind);
  const View section_close = behind.substr(shared);
  form.open = trimmed(own_open);
  form.close = trimmed(rest.substr(0, shared));
  form.section_open = trimmed(before.substr(0, before.size() - own_open.size()));
  form.section_close = trimmed(section_close);
}

struct Extent {
  size_t begin = 0, end = 0;
  OrderedJson value;
};

// The first JSON value from `from` on of which `wanted` is true.
template <class Wanted>
std::optional<Extent> find_json(View text, size_t from, Wanted wanted) {
  for (size_t at = text.find_first_of("{[", from); at != View::npos; at = text.find_first_of("{[", at + 1)) {
    size_t end = 0;
    if (json_extent(text, at, end) != Match::yes) continue;
    try {
      OrderedJson value = parse_ordered_json(text.substr(at, end - at), "a rendering");
      if (wanted(value)) return Extent{at, end, std::move(value)};
    } catch (const Error&) {
    }
  }
  return std::nullopt;
}

bool holds_arguments(const OrderedJson& value) {
  return value.is_object() && value.contains(S::kKeyA) && value[std::string(S::kKeyA)] == S::kValueA;
}

// Whether it is a call, and under which keys.
bool is_call(const OrderedJson& value, CallForm& form) {
  if (!value.is_object()) return false;
  if (value.contains("function")) return is_call(value["function"], form);
  if (value.size() == 1 && value.begin().key() == S::kName && holds_arguments(value.begin().value())) {
    form.name_key = form.arguments_key = "";
    return true;
  }
  std::string name_key, arguments_key;
  for (const auto& [key, member] : value.items()) {
    if (member == S::kName) name_key = key;
    if (holds_arguments(member)) arguments_key = key;
  }
  if (name_key.empty() || arguments_key.empty()) return false;
  form.name_key = name_key;
  form.arguments_key = arguments_key;
  return true;
}

std::optional<CallForm> json_form_of(View text) {
  CallForm form{.body = CallForm::Body::json};
  const auto wanted = [&](const OrderedJson& value) {
    return is_call(value.is_array() && !value.empty() ? value.front() : value, form);
  };
  const auto first = find_json(text, 0, wanted);
  if (!first) return std::nullopt;
  form.list = first->value.is_array();
  Around around{std::string(text.substr(0, first->begin)), {}, std::string(text.substr(first->end))};
  const auto second = first->value.is_array() ? std::nullopt : find_json(text, first->end, wanted);
  if (second) {
    around.two = true;
    around.between = text.substr(first->end, second->begin - first->end);
    around.behind = text.substr(second->end);
  }
  if (trimmed(around.before).empty()) {  // what stands between is ; or , or nothing
    form.close = trimmed(around.behind);
    return form;
  }
  split(around, form);
  return form;
}

// The parts of one call that are not JSON as a whole.
struct Slots {
  size_t name = 0, key_a = 0, value_a = 0, key_b = 0, value_b = 0;
};

std::optional<Slots> find_slots(View text, size_t from) {
  Slots slots;
  size_t at = from;
  const auto find = [&](View word, size_t& place) {
    place = at = text.find(word, at);
    if (place == View::npos) return false;
    at += word.size();
    return true;
  };
  if (!find(S::kName, slots.name) || !find(S::kKeyA, slots.key_a) || !find(S::kValueA, slots.value_a))
    return {};
  if (!find(S::kKeyB, slots.key_b)) return {};
  // A closing tag may name the first key once more.
  if (!find(S::kValueB, slots.value_b)) return {};
  return slots;
}

View after_name(View text, const Slots& slots) {
  const size_t begin = slots.name + S::kName.size();
  return text.substr(begin, slots.key_a - begin);
}

std::optional<CallForm> named_json_form_of(View text, const Slots& first) {
  const auto arguments = find_json(text, first.name, holds_arguments);
  if (!arguments || arguments->begin > first.key_a) return std::nullopt;
  CallForm form{.body = CallForm::Body::named_json};
  form.name_end = text.substr(first.name + S::kName.size(), arguments->begin - first.name - S::kName.size());
  Around around{std::string(text.substr(0, first.name)), {}, std::string(text.substr(arguments->end))};
  if (const auto second = find_slots(text, arguments->end)) {
    const auto others = find_json(text, second->name, holds_arguments);
    if (!others) return std::nullopt;
    around.two = true;
    around.between = text.substr(arguments->end, second->name - arguments->end);
    around.behind = text.substr(others->end);
    form.name_end = generalized(form.name_end, text.substr(second->name + S::kName.size(),
                                                           others->begin - second->name - S::kName.size()));
  }
  split(around, form);
  if (form.open.empty()) return std::nullopt;
  return form;
}

std::optional<CallForm> bracketed_form_of(View text, const Slots& first) {
  const View gap = trimmed(after_name(text, first));
  const size_t key_end = first.key_a + S::kKeyA.size();
  CallForm form;
  Around around{std::string(text.substr(0, first.name)), {}, {}};
  const auto second = find_slots(text, first.value_b);
  const auto behind = [&](const Slots& slots, char bracket) {
    const size_t close = text.find(bracket, slots.value_b);
    return close == View::npos ? text.size() : close + 1;
  };
  if (gap.ends_with('(')) {
    form.body = CallForm::Body::python;
    const View before = trimmed(around.before);
    const bool list = before.ends_with('[');
    const size_t end = behind(second ? *second : first, list ? ']' : ')');
    form.open = trimmed(list ? before.substr(0, before.size() - 1) : before);
    form.close = trimmed(text.substr(end));
    return form;
  }
  if (!gap.ends_with('{') || text.substr(key_end, 1) != ":") return std::nullopt;
  form.body = CallForm::Body::loose;
  form.quote = text.substr(key_end + 1, first.value_a - key_end - 1);
  form.name_end = gap.substr(0, gap.size() - 1);
  if (second) {
    const size_t end = behind(first, '}');
    around.two = true;
    around.between = text.substr(end, second->name - end);
    around.behind = text.substr(behind(*second, '}'));
  } else {
    around.behind = text.substr(behind(first, '}'));
  }
  split(around, form);
  if (form.open.empty()) return std::nullopt;
  return form;
}

std::string with_same_key(View text, View key) {
  std::string literal(text);
  replace_all_of(literal, key, View(&kSameKey, 1));
  return literal;
}

std::optional<CallForm> tags_form_of(View text, const Slots& first) {
  CallForm form{.body = CallForm::Body::tags};
  const auto between = [&](size_t begin, View word, size_t end) {
    return text.substr(begin + word.size(), end - begin - word.size());
  };
  const View opens = after_name(text, first);
  const std::string turns = with_same_key(between(first.value_a, S::kValueA, first.key_b), S::kKeyA);
  const size_t shared = common_suffix(opens, turns);
  if (shared == 0 || shared == turns.size()) return std::nullopt;
  form.name_end = opens.substr(0, opens.size() - shared);
  form.key_open = opens.substr(opens.size() - shared);
  form.value_end = turns.substr(0, turns.size() - shared);
  const View end_a = between(first.key_a, S::kKeyA, first.value_a),
             end_b = between(first.key_b, S::kKeyB, first.value_b);
  form.key_end = generalized(end_a, end_b);
  form.any_text = any_of(end_a, form.key_end);
  form.any_json = any_of(end_b, form.key_end);
  form.value_on_lines = form.key_end.ends_with('\n') && form.value_end.starts_with('\n');
  if (form.value_on_lines) {
    form.key_end.pop_back();
    form.value_end.erase(0, 1);
  }
  // Behind the last value stands what ends it, too.
  const auto behind = [&](const Slots& slots, size_t end) -> std::optional<std::string> {
    std::string rest = with_same_key(between(slots.value_b, S::kValueB, end), S::kKeyB);
    if (form.value_on_lines && rest.starts_with('\n')) rest.erase(0, 1);
    if (!rest.starts_with(form.value_end)) return std::nullopt;
    return rest.substr(form.value_end.size());
  };
  Around around{std::string(text.substr(0, first.name)), {}, {}};
  const auto second = find_slots(text, first.value_b);
  const auto last = behind(second ? *second : first, text.size());
  if (!last) return std::nullopt;
  around.behind = *last;
  if (second) {
    const auto middle = behind(first, second->name);
    if (!middle) return std::nullopt;
    around.two = true;
    around.between = *middle;
    form.name_end = generalized(form.name_end, [&] {
      const View others = after_name(text, *second);
      return others.substr(0, others.size() - std::min(others.size(), form.key_open.size()));
    }());
  }
  split(around, form);
  if (form.open.empty() || form.close.empty()) return std::nullopt;
  return form;
}

// Whether the form reads what it was made of.
bool reads_back(const CallForm& form, View text, size_t calls) {
  ResponseTemplate alone;
  alone.calls = {form};
  ResponseOptions options;
  options.types = ArgumentTypes(S::tools());
  const WholeOutput output = parse_response(alone, options, text);
  if (output.calls.size() != calls) return false;
  return std::ranges::all_of(output.calls, [](const ToolCall& call) {
    return call.name == S::kName && parse_ordered_json(call.arguments, "a call") == S::arguments();
  });
}

size_t count(View text, View word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != View::npos; at = text.find(word, at + word.size())) ++found;
  return found;
}

}  // namespace

std::optional<CallForm> derive_call_form(View said, View end, const std::vector<std::string>& silent) {
  // Behind the last value the turn ends sooner or later.
  const auto cut = [&](std::string& rendered) {
    const size_t last = rendered.rfind(S::kValueB);
    if (last == std::string::npos) return false;
    const size_t after = last + S::kValueB.size();
    rendered.resize(after + cut_turn_end(View(rendered).substr(after), end, silent).size());
    return true;
  };
  std::string text(said);
  if (!cut(text)) return std::nullopt;
  const size_t calls = count(text, S::kValueA);
  const auto checked = [&](std::optional<CallForm> form) {
    if (form && !reads_back(*form, trimmed(text), calls)) form.reset();
    return form;
  };
  if (auto form = checked(json_form_of(text))) return form;
  for (uint32_t call : {0u, 1u}) replace_all_of(text, S::id(call), View(&kAnyText, 1));
  const auto slots = find_slots(text, 0);
  if (!slots) return std::nullopt;
  if (auto form = checked(named_json_form_of(text, *slots))) return form;
  if (auto form = checked(bracketed_form_of(text, *slots))) return form;
  return checked(tags_form_of(text, *slots));
}

}  // namespace quire
