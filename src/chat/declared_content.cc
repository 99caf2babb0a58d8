#include "chat/declared_content.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace quire {
namespace {

constexpr uint32_t kMostContentDepth = 4, kMostTransformDepth = 16;
constexpr size_t kMostDelims = 8, kMostContentEntries = 1000, kMostWord = 256;

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1C' && c <= '\x1F');
}

const OrderedJson& member(const OrderedJson& object, const char* name) {
  static const OrderedJson kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

bool flag(const OrderedJson& args, const char* name, bool usual) {
  const OrderedJson& said = member(args, name);
  if (said.is_null()) return usual;
  if (!said.is_boolean()) throw Error("'{}' must be true or false", name);
  return said.get<bool>();
}

std::string word_of(const OrderedJson& said, const char* name) {
  if (!said.is_string() || said.get_ref<const std::string&>().empty() ||
      said.get_ref<const std::string&>().size() > kMostWord)
    throw Error("'{}' must be a text of 1 to {} bytes", name, kMostWord);
  return said.get<std::string>();
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  }
  return result;
}

bool is_name_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
         (static_cast<unsigned char>(c) & 0x80) != 0;
}

// Where a run of what names consist of ends, if ':' follows it; else npos.
size_t key_end(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_name_char(text[end])) ++end;
  return end > at && end < text.size() && text[end] == ':' ? end : std::string_view::npos;
}

// A dialect of JSON as JSON: keys get quotes, and strings between quotes of their own usual ones.
std::string plain_json(const DeclaredContent& content, std::string_view text) {
  std::string plain;
  const auto string_at = [&](size_t at) -> std::optional<size_t> {
    for (const auto& [open, close] : content.string_delims) {
      if (!text.substr(at).starts_with(open)) continue;
      const size_t begin = at + open.size(), end = text.find(close, begin);
      if (end == std::string_view::npos) continue;
      plain += OrderedJson(std::string(text.substr(begin, end - begin)))
                   .dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
      return end + close.size();
    }
    return std::nullopt;
  };
  for (size_t at = 0; at < text.size();) {
    if (const auto end = string_at(at)) {
      at = *end;
      continue;
    }
    const char c = text[at];
    plain += c;
    ++at;
    if (c == '"') {
      while (at < text.size()) {
        const char inside = text[at++];
        plain += inside;
        if (inside == '"') break;
        if (inside == '\\' && at < text.size()) plain += text[at++];
      }
    } else if (content.unquoted_keys && (c == '{' || c == ',')) {
      while (at < text.size() && is_space(text[at])) plain += text[at++];
      const size_t end = key_end(text, at);
      if (end == std::string_view::npos) continue;
      plain += '"';
      plain += text.substr(at, end - at);
      plain += '"';
      at = end;
    }
  }
  return plain;
}

OrderedJson json_value(const DeclaredContent& content, std::string_view text) {
  const bool usual = content.string_delims.empty() && !content.unquoted_keys;
  try {
    return parse_ordered_json(usual ? std::string(text) : plain_json(content, text), "a field of the answer");
  } catch (const Error&) {
    if (!content.allow_non_json) throw;
  }
  return std::string(stripped(text));
}

OrderedJson inner_value(const DeclaredContent& content, std::string_view text) {
  return content.value ? content_value(*content.value, text) : OrderedJson(std::string(text));
}

OrderedJson xml_value(const DeclaredContent& content, std::string_view text) {
  OrderedJson object = OrderedJson::object();
  Pattern::Found found;
  Pattern::Patience patience = Pattern::patience_for(text);
  for (size_t at = 0; at <= text.size() && content.tag->find(text, at, found, patience);) {
    at = found.end > found.begin ? found.end : found.end + 1;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
    std::string key, raw;
    for (const auto& [name, words] : found.groups) {
      if (name == "key") key = words;
      if (name == "value") raw = words;
    }
    if (object.size() >= kMostContentEntries) throw Error("a field of the answer has too many tags");
    OrderedJson value = inner_value(content, raw);
    if (!content.merge_duplicates || !object.contains(key)) {
      object[key] = std::move(value);
      continue;
    }
    OrderedJson& known = object[key];
    if (!known.is_array()) known = OrderedJson::array({known});
    known.push_back(std::move(value));
  }
  return object;
}

OrderedJson lines_value(const DeclaredContent& content, std::string_view text) {
  OrderedJson object = OrderedJson::object();
  const auto bare = [&](std::string_view words) { return content.strip ? stripped(words) : words; };
  while (true) {
    const size_t end = text.find(content.line_sep);
    const std::string_view line = bare(text.substr(0, end));
    const size_t colon = line.find(content.kv_sep);
    if (!line.empty() && colon != std::string_view::npos) {
      if (object.size() >= kMostContentEntries) throw Error("a field of the answer has too many lines");
      object[std::string(bare(line.substr(0, colon)))] =
          inner_value(content, bare(line.substr(colon + content.kv_sep.size())));
    }
    if (end == std::string_view::npos) return object;
    text.remove_prefix(end + content.line_sep.size());
  }
}

OrderedJson number_value(std::string_view text, bool whole) {
  const std::string_view bare = stripped(text);
  const char* end = bare.data() + bare.size();
  int64_t integer = 0;
  double real = 0;
  if (whole) {
    const auto [at, problem] = std::from_chars(bare.data(), end, integer);
    if (problem == std::errc() && at == end) return integer;
  } else {
    const auto [at, problem] = std::from_chars(bare.data(), end, real);
    if (problem == std::errc() && at == end && std::isfinite(real)) return real;
  }
  throw Error("a field of the answer is no number");
}

// What stands between the braces of a text that is nothing but a placeholder; empty if it is none.
std::string_view placeholder(std::string_view text) {
  if (text.size() < 3 || text.front() != '{' || text.back() != '}') return {};
  const std::string_view path = text.substr(1, text.size() - 2);
  const bool is_path = std::ranges::all_of(path, [](char c) { return is_name_char(c) || c == '.'; }) &&
                       path.front() != '.' && path.back() != '.' && path.find("..") == std::string_view::npos;
  return is_path ? path : std::string_view();
}

void check_transform_at(const OrderedJson& transform, uint32_t depth) {
  if (depth > kMostTransformDepth) throw Error("its 'transform' is nested too deeply");
  if (transform.is_structured()) {
    for (const OrderedJson& one : transform) check_transform_at(one, depth + 1);
    return;
  }
  if (!transform.is_string()) return;
  const std::string_view text = transform.get_ref<const std::string&>();
  if (!placeholder(text).empty()) return;
  for (size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
    const size_t end = text.find('}', at);
    if (end != std::string_view::npos && !placeholder(text.substr(at, end + 1 - at)).empty())
      throw Error("its 'transform' has '{}', which mixes a placeholder with words", text);
  }
}

}  // namespace

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

DeclaredContent read_declared_content(const OrderedJson& name, const OrderedJson& args, uint32_t depth) {
  using Kind = DeclaredContent::Kind;
  if (depth > kMostContentDepth) throw Error("its 'value_parser' is nested too deeply");
  if (!args.is_null() && !args.is_object()) throw Error("its 'content_args' must be an object");
  const OrderedJson nothing = OrderedJson::object();
  const OrderedJson& said = args.is_null() ? nothing : args;
  DeclaredContent content;
  const std::string kind = name.is_null() ? "text" : word_of(name, "content");
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"text", Kind::text},        {"int", Kind::integer}, {"float", Kind::real},
      {"bool", Kind::boolean},     {"json", Kind::json},   {"xml-inline", Kind::xml_inline},
      {"kv-lines", Kind::kv_lines}};
  const auto* known = std::ranges::find(kKinds, kind, &std::pair<std::string_view, Kind>::first);
  if (known == std::end(kKinds)) throw Error("its content '{}' is not known", kind);
  content.kind = known->second;
  content.strip = flag(said, "strip", true);
  content.unquoted_keys = flag(said, "unquoted_keys", false);
  content.allow_non_json = flag(said, "allow_non_json", false);
  content.merge_duplicates = flag(said, "merge_duplicates", false);
  if (const OrderedJson& delims = member(said, "string_delims"); !delims.is_null()) {
    if (!delims.is_array() || delims.size() > kMostDelims)
      throw Error("its 'string_delims' must be a list of at most {}", kMostDelims);
    for (const OrderedJson& pair : delims) {
      if (!pair.is_array() || pair.size() != 2) throw Error("its 'string_delims' must hold pairs of texts");
      content.string_delims.emplace_back(word_of(pair[0], "string_delims"),
                                         word_of(pair[1], "string_delims"));
    }
  }
  if (const OrderedJson& separator = member(said, "line_sep"); !separator.is_null())
    content.line_sep = word_of(separator, "line_sep");
  if (const OrderedJson& separator = member(said, "kv_sep"); !separator.is_null())
    content.kv_sep = word_of(separator, "kv_sep");
  if (content.kind == Kind::xml_inline) {
    const OrderedJson& tag = member(said, "tag_pattern");
    if (!tag.is_string()) throw Error("its content 'xml-inline' has no 'tag_pattern'");
    content.tag = std::make_shared<const Pattern>(tag.get<std::string>());
    if (std::ranges::find(content.tag->group_names(), "key") == content.tag->group_names().end())
      throw Error("its 'tag_pattern' has no group named 'key'");
  }
  if (const OrderedJson& value = member(said, "value_parser"); !value.is_null()) {
    if (!value.is_object()) throw Error("its 'value_parser' must be an object");
    content.value = std::make_shared<const DeclaredContent>(
        read_declared_content(member(value, "name"), member(value, "args"), depth + 1));
  }
  return content;
}

OrderedJson content_value(const DeclaredContent& content, std::string_view text) {
  using Kind = DeclaredContent::Kind;
  const std::string_view bare = content.strip ? stripped(text) : text;
  switch (content.kind) {
    case Kind::text:
      return std::string(bare);
    case Kind::integer:
    case Kind::real:
      return number_value(text, content.kind == Kind::integer);
    case Kind::boolean:
      return lower(bare) == "true" || bare == "1";
    case Kind::json:
      return json_value(content, text);
    case Kind::xml_inline:
      return xml_value(content, text);
    case Kind::kv_lines:
      return lines_value(content, text);
  }
  return {};
}

void check_transform(const OrderedJson& transform) {
  check_transform_at(transform, 0);
}

OrderedJson transformed(const OrderedJson& transform, const OrderedJson& scope) {
  if (transform.is_structured()) {
    OrderedJson result = transform;
    for (OrderedJson& one : result) one = transformed(OrderedJson(one), scope);
    return result;
  }
  if (!transform.is_string()) return transform;
  std::string_view path = placeholder(transform.get_ref<const std::string&>());
  if (path.empty()) return transform;
  const OrderedJson* value = &scope;
  while (!path.empty()) {
    const size_t end = path.find('.');
    const std::string key(path.substr(0, end));
    if (!value->is_object() || !value->contains(key)) throw Error("the answer has no '{}'", key);
    value = &value->at(key);
    path.remove_prefix(end == std::string_view::npos ? path.size() : end + 1);
  }
  return *value;
}

}  // namespace quire
