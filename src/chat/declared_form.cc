#include "chat/declared_form.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMostDeclaredBytes = size_t(256) << 10, kMostMarkBytes = 4096, kMostLiterals = 32,
                 kMostFields = 16, kMostTail = size_t(64) << 10;

const OrderedJson& entry(const OrderedJson& object, const char* name) {
  static const OrderedJson kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

void check_keys(const OrderedJson& object, std::initializer_list<std::string_view> known,
                std::string_view where) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) == known.end())
      throw Error("{} has '{}', which is not known", where, key);
  }
}

bool said_true(const OrderedJson& field, const char* name) {
  const OrderedJson& said = entry(field, name);
  if (!said.is_null() && !said.is_boolean()) throw Error("its '{}' must be true or false", name);
  return said.is_boolean() && said.get<bool>();
}

// One of `open` and `open_pattern`, if it is there.
std::optional<DeclaredMark> read_mark(const OrderedJson& object, const std::string& name) {
  const OrderedJson &literal = entry(object, name.c_str()),
                    &pattern = entry(object, (name + "_pattern").c_str());
  if (!literal.is_null() && !pattern.is_null())
    throw Error("it cannot have both '{}' and '{}_pattern'", name, name);
  DeclaredMark mark;
  if (!pattern.is_null()) {
    if (!pattern.is_string()) throw Error("its '{}_pattern' must be a text", name);
    mark.pattern.emplace(pattern.get<std::string>());
    if (mark.pattern->looks_back() > 32) throw Error("its '{}_pattern' looks back too far", name);
    return mark;
  }
  if (literal.is_null()) return std::nullopt;
  const auto add = [&](const OrderedJson& one) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty() ||
        one.get_ref<const std::string&>().size() > kMostMarkBytes)
      throw Error("its '{}' must be a text of 1 to {} bytes, or a list of such", name, kMostMarkBytes);
    mark.literals.push_back(one.get<std::string>());
  };
  if (!literal.is_array()) {
    add(literal);
  } else {
    if (literal.empty() || literal.size() > kMostLiterals)
      throw Error("its '{}' must have 1 to {} texts", name, kMostLiterals);
    for (const OrderedJson& one : literal) add(one);
  }
  std::ranges::stable_sort(mark.literals, std::ranges::greater(), &std::string::size);
  return mark;
}

// A pattern without what makes it one: special tokens in it are spelled as they are.
void add_spelled(const OrderedJson& object, std::vector<std::string>& spelled) {
  for (const char* name : {"open", "close", "start_anchor"}) {
    const OrderedJson& literal = entry(object, name);
    if (literal.is_string()) spelled.push_back(literal.get<std::string>());
    if (literal.is_array()) {
      for (const OrderedJson& one : literal) spelled.push_back(one.get<std::string>());
    }
    const OrderedJson& pattern = entry(object, (std::string(name) + "_pattern").c_str());
    if (!pattern.is_string()) continue;
    std::string bare;
    const std::string& source = pattern.get_ref<const std::string&>();
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\\' && i + 1 < source.size()) ++i;
      bare += source[i];
    }
    spelled.push_back(std::move(bare));
  }
}

DeclaredField read_field(const std::string& name, const OrderedJson& said) {
  using Kind = DeclaredField::Kind;
  if (!said.is_object()) throw Error("it must be an object");
  check_keys(said,
             {"open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join",
              "optional", "transform", "transform_each"},
             "it");
  DeclaredField field;
  if (name == "content") {
    field.kind = Kind::content;
  } else if (name == "reasoning_content" || name == "reasoning" || name == "thinking") {
    field.kind = Kind::reasoning;
  } else if (name == "tool_calls") {
    field.kind = Kind::calls;
  } else {
    throw Error("answers have no place for it");
  }
  field.open = read_mark(said, "open");
  field.close = read_mark(said, "close");
  if (field.open && field.open->pattern && field.open->pattern->may_be_empty())
    throw Error("its 'open_pattern' matches nothing at all");
  field.content = read_declared_content(entry(said, "content"), entry(said, "content_args"));
  const bool repeats = said_true(said, "repeats");
  said_true(said, "optional");
  if (const OrderedJson& join = entry(said, "join"); !join.is_null()) {
    if (!join.is_string() || !repeats) throw Error("its 'join' must be a text, and needs 'repeats'");
    field.join = join.get<std::string>();
  }
  field.transform = entry(said, "transform");
  field.transform_each = said_true(said, "transform_each");
  check_transform(field.transform);
  if (field.kind == Kind::calls) {
    if (!field.open) throw Error("it has no 'open'");
    return field;
  }
  if (field.content.kind != DeclaredContent::Kind::text || !field.transform.is_null())
    throw Error("it must be a text, and has another content or a transform");
  return field;
}

}  // namespace

Match DeclaredMark::at(std::string_view text, size_t at, bool last, Pattern::Found& found,
                       bool& too_much) const {
  if (pattern) {
    const bool cut = text.size() - at > kMostMarkBytes;
    size_t end = cut ? at + kMostMarkBytes : text.size();
    while (cut && end > at && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    switch (pattern->match_at(text.substr(0, end), at, last, found)) {
      case Pattern::Match::yes:
        return Match::yes;
      case Pattern::Match::more:
        return cut ? Match::no : Match::more;
      case Pattern::Match::too_much:
        too_much = true;
        return Match::no;
      case Pattern::Match::no:
        return Match::no;
    }
  }
  const std::string_view rest = text.substr(at);
  for (const std::string& literal : literals) {
    if (rest.starts_with(literal)) {
      found = {.begin = at, .end = at + literal.size(), .groups = {}};
      return Match::yes;
    }
    if (!last && rest.size() < literal.size() && std::string_view(literal).starts_with(rest))
      return Match::more;
  }
  return Match::no;
}

bool DeclaredMark::may_begin_with(char byte) const {
  if (pattern) return pattern->may_begin_with(byte);
  return std::ranges::any_of(literals, [&](const std::string& literal) { return literal[0] == byte; });
}

std::vector<std::string> DeclaredForm::call_ends() const {
  std::vector<std::string> ends;
  for (const DeclaredField& field : fields) {
    if (field.kind == DeclaredField::Kind::calls && field.close)
      ends.insert(ends.end(), field.close->literals.begin(), field.close->literals.end());
  }
  return ends;
}

std::string DeclaredForm::begun(std::string_view tail) const {
  if (tail.size() > kMostTail) tail.remove_prefix(tail.size() - kMostTail);
  while (!tail.empty() && (static_cast<unsigned char>(tail[0]) & 0xC0) == 0x80) tail.remove_prefix(1);
  std::optional<size_t> behind;
  for (size_t at = 0; at < tail.size();) {
    Pattern::Found found;
    bool too_much = false;
    const bool stands = start.at(tail, at, true, found, too_much) == Match::yes;
    if (too_much) break;
    if (stands) behind = found.end;
    at = stands && found.end > at ? found.end : at + utf8_length(tail[at]);
  }
  return behind ? std::string(tail.substr(*behind)) : std::string();
}

DeclaredForm read_declared_form(const std::string& json) {
  if (json.size() > kMostDeclaredBytes)
    throw Error("it has {} bytes; at most {} are allowed", json.size(), kMostDeclaredBytes);
  const OrderedJson said = parse_ordered_json(json, "it");
  if (!said.is_object()) throw Error("it must be an object");
  check_keys(said, {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}, "it");
  if (const OrderedJson& version = entry(said, "version"); !version.is_null() && version != 1)
    throw Error("it is of version {}, and 1 is known", version.dump());
  const OrderedJson &defaults = entry(said, "defaults"), &fields = entry(said, "fields");
  if (!defaults.is_null() && !defaults.is_object()) throw Error("its 'defaults' must be an object");
  if (!fields.is_object() || fields.empty() || fields.size() > kMostFields)
    throw Error("its 'fields' must be an object of 1 to {} fields", kMostFields);
  DeclaredForm form;
  auto start = read_mark(said, "start_anchor");
  if (!start) throw Error("it has neither 'start_anchor' nor 'start_anchor_pattern'");
  form.start = std::move(*start);
  add_spelled(said, form.spelled);
  std::vector<std::string> names;
  for (const auto& [name, field] : fields.items()) names.push_back(name);
  std::ranges::sort(names);  // of two that open with the same text the first counts
  for (const std::string& name : names) {
    const OrderedJson& field = fields[name];
    try {
      form.fields.push_back(read_field(name, field));
    } catch (const Error& error) {
      throw Error("of its field '{}': {}", replace_broken_utf8(name), error.what());
    }
    add_spelled(field, form.spelled);
    if (form.fields.back().open) continue;
    if (form.leftover >= 0) throw Error("two of its fields have no 'open'");
    form.leftover = int32_t(form.fields.size() - 1);
  }
  return form;
}

}  // namespace quire
