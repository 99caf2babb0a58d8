#include "chat/call_matcher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

constexpr size_t kMostAnyBytes = 96, kMostNameBytes = 256, kMostKeyBytes = 1024, kMostArguments = 1000;

std::string with_key(std::string literal, std::string_view key) {
  for (size_t at; (at = literal.find(kSameKey)) != std::string::npos;) literal.replace(at, 1, key);
  return literal;
}

// Reads one call from its beginning on.
class CallReader {
 public:
  CallReader(const CallForm& form, std::string_view text, const ArgumentTypes& types,
             std::vector<ParsedCall>& calls)
      : form_(form), text_(text), types_(types), calls_(calls) {}

  Match read(bool after_section_open) {
    if (!after_section_open && !form_.section_open.empty()) {
      if (const Match match = literal(form_.section_open); match != Match::yes) return match;
    }
    skip_space();
    if (const Match match = literal(form_.open); match != Match::yes) return match;
    if (const Match match = body(); match != Match::yes) return match;
    if (form_.body != CallForm::Body::tags) {  // its end is what ends the arguments
      if (!form_.close.empty()) skip_space();
      if (const Match match = literal(form_.close); match != Match::yes) return match;
    }
    return at_ == text_.size() ? Match::yes : Match::no;
  }

 private:
  Match body() {
    switch (form_.body) {
      case CallForm::Body::json:
        return json_calls();
      case CallForm::Body::named_json:
        return named_json();
      case CallForm::Body::tags:
        return tags();
      case CallForm::Body::loose:
        return loose();
      case CallForm::Body::python:
        return python();
    }
    return Match::no;
  }

  void skip_space() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }

  // Whether `wanted` stands at `at`, which then is behind it. White space in it stands for any, or none.
  Match literal_at(std::string_view wanted, size_t& at) const {
    size_t here = at;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (is_blank(wanted[i])) {
        while (here < text_.size() && is_blank(text_[here])) ++here;
        continue;
      }
      if (wanted[i] == kAnyText) {
        const std::string_view rest = wanted.substr(i + 1);
        const size_t last = std::min(text_.size(), here + kMostAnyBytes);
        Match best = Match::no;
        for (size_t from = here; from <= last; ++from) {
          size_t end = from;
          const Match match = literal_at(rest, end);
          if (match == Match::yes) {
            at = end;
            return match;
          }
          if (match == Match::more) best = match;
        }
        return best;
      }
      if (here == text_.size()) return Match::more;
      if (text_[here] != wanted[i]) return Match::no;
      ++here;
    }
    at = here;
    return Match::yes;
  }
  Match literal(std::string_view wanted) { return literal_at(wanted, at_); }

  // What stands before the first of `ends`, or before what may become one; stays in front of it.
  Match until(const std::vector<std::string>& ends, size_t most, std::string& found) const {
    for (size_t end = at_; end <= text_.size() && end - at_ <= most; ++end) {
      bool more = false;
      for (const std::string& wanted : ends) {
        size_t behind = end;
        const Match match = literal_at(wanted, behind);
        if (match == Match::yes) {
          found = text_.substr(at_, end - at_);
          return match;
        }
        more = more || match == Match::more;
      }
      if (more || end == text_.size()) {
        found = text_.substr(at_, end - at_);
        return Match::more;
      }
    }
    return Match::no;
  }

  Match name(const std::vector<std::string>& ends, std::string& found) {
    const Match match = until(ends, kMostNameBytes, found);
    if (match == Match::no || found.find_first_of(" \n\t\r{}[]()<>\"'") != std::string::npos)
      return Match::no;
    if (match == Match::more) return match;
    at_ += found.size();
    if (found.starts_with("functions.")) found.erase(0, 10);
    return found.empty() ? Match::no : match;
  }

  // A JSON value, strictly.
  Match json(OrderedJson& value, bool list_too) {
    skip_space();
    if (at_ == text_.size()) return Match::more;
    if (text_[at_] != '{' && !(list_too && text_[at_] == '[')) return Match::no;
    size_t end = at_;
    if (const Match match = json_extent(text_, at_, end); match != Match::yes) return match;
    try {
      value = parse_ordered_json(text_.substr(at_, end - at_), "a call");
    } catch (const Error&) {
      return Match::no;
    }
    at_ = end;
    return Match::yes;
  }

  void add(std::string name, OrderedJson arguments) {
    calls_.push_back({std::move(name), std::move(arguments)});
  }

  // Clients and models write a missing object in many ways.
  static std::optional<OrderedJson> object_of(const OrderedJson& said) {
    if (said.is_object()) return said;
    if (said.is_null()) return OrderedJson::object();
    if (!said.is_string()) return std::nullopt;
    try {
      OrderedJson inner = parse_ordered_json(said.get_ref<const std::string&>(), "a call's arguments");
      if (inner.is_object()) return inner;
    } catch (const Error&) {
    }
    return std::nullopt;
  }

  bool add_json(const OrderedJson& said) {
    if (!said.is_object()) return false;
    if (form_.name_key.empty()) {
      if (said.size() != 1) return false;
      const auto arguments = object_of(said.begin().value());
      if (!arguments) return false;
      add(said.begin().key(), *arguments);
      return true;
    }
    if (const auto inner = said.find("function"); inner != said.end() && inner->is_object())
      return add_json(*inner);
    const auto find = [&](std::initializer_list<std::string_view> keys) {
      for (const std::string_view key : keys) {
        if (const auto found = said.find(std::string(key)); found != said.end()) return found;
      }
      return said.end();
    };
    const auto name = find({form_.name_key, "name"});
    const auto arguments = find({form_.arguments_key, "arguments", "parameters"});
    if (name == said.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) return false;
    if (arguments == said.end()) {
      if (form_.is_bare()) return false;  // any object with a name would be a call
      add(name->get<std::string>(), OrderedJson::object());
      return true;
    }
    const auto object = object_of(*arguments);
    if (!object) return false;
    add(name->get<std::string>(), *object);
    return true;
  }

  // An answer that is JSON must not wait for its end to be told from calls: the first key tells.
  Match plausible() const {
    size_t at = at_;
    const auto step = [&](char wanted) {
      while (at < text_.size() && is_blank(text_[at])) ++at;
      if (at == text_.size()) return Match::more;
      return text_[at] == wanted ? (++at, Match::yes) : Match::no;
    };
    if (const Match list = step('['); list == Match::more) return list;
    if (const Match object = step('{'); object != Match::yes) return object;
    if (const Match quote = step('"'); quote != Match::yes) return quote;
    const size_t end = text_.find('"', at);
    const std::string_view key = text_.substr(at, end == std::string_view::npos ? end : end - at);
    for (const std::string_view known :
         {std::string_view(form_.name_key), std::string_view(form_.arguments_key), std::string_view("name"),
          std::string_view("type"), std::string_view("id"), std::string_view("function"),
          std::string_view("arguments"), std::string_view("parameters")}) {
      if (end != std::string_view::npos ? key == known : known.starts_with(key))
        return end != std::string_view::npos ? Match::yes : Match::more;
    }
    return Match::no;
  }

  Match json_calls() {
    if (form_.is_bare() && !form_.name_key.empty()) {
      if (const Match match = plausible(); match != Match::yes) return match;
    }
    OrderedJson value;
    if (const Match match = json(value, true); match != Match::yes) return match;
    if (value.is_object()) return add_json(value) ? Match::yes : Match::no;
    for (const OrderedJson& one : value) {
      if (!add_json(one)) return Match::no;
    }
    return value.empty() ? Match::no : Match::yes;
  }

  Match named_json() {
    std::string called;
    if (const Match match = name({form_.name_end + "{"}, called); match != Match::yes) return match;
    literal(form_.name_end);
    OrderedJson arguments;
    const Match match = json(arguments, false);
    if (match == Match::yes) add(std::move(called), std::move(arguments));
    return match;
  }

  Match loose() {
    std::string called;
    if (const Match match = name({form_.name_end + "{"}, called); match != Match::yes) return match;
    literal(form_.name_end);
    skip_space();
    LooseReader reader(text_, at_, form_.quote);
    OrderedJson arguments;
    const Match match = reader.value(arguments);
    if (match != Match::yes) return match;
    at_ = reader.at();
    types_.fit(called, arguments);
    add(std::move(called), std::move(arguments));
    return match;
  }

  Match python_call() {
    std::string called;
    if (const Match match = name({"("}, called); match != Match::yes) return match;
    LooseReader reader(text_, at_);
    OrderedJson arguments;
    const Match match = reader.arguments(arguments);
    if (match != Match::yes) return match;
    at_ = reader.at();
    types_.fit(called, arguments);
    add(std::move(called), std::move(arguments));
    return match;
  }

  Match python() {
    skip_space();
    if (at_ == text_.size()) return Match::more;
    if (text_[at_] != '[') return python_call();
    ++at_;
    while (true) {
      skip_space();
      if (at_ == text_.size()) return Match::more;
      if (const Match match = python_call(); match != Match::yes) return match;
      skip_space();
      if (at_ == text_.size()) return Match::more;
      const char c = text_[at_++];
      if (c == ']') return Match::yes;
      if (c != ',') return Match::no;
    }
  }

  Match tags() {
    std::string called;
    // White space between two parts is nobody's.
    if (const Match match =
            name({form_.name_end + '\n' + form_.key_open, form_.name_end + '\n' + form_.close}, called);
        match != Match::yes)
      return match;
    literal(form_.name_end);
    OrderedJson arguments = OrderedJson::object();
    while (true) {
      skip_space();
      const Match end = literal(form_.close);
      if (end == Match::yes) break;
      const Match begin = literal(form_.key_open);
      if (begin != Match::yes) return end == Match::more ? end : begin;
      std::string key, value;
      if (const Match match = until({form_.key_end}, kMostKeyBytes, key); match != Match::yes) return match;
      at_ += key.size();
      if (key.empty() || arguments.size() >= kMostArguments) return Match::no;
      literal_end(form_.key_end);
      if (const Match match = tag_value(with_key(form_.value_end, key), value); match != Match::yes)
        return match;
      constexpr std::string_view kVerbatim = "<![CDATA[", kVerbatimEnd = "]]>";
      const bool verbatim = value.starts_with(kVerbatim) && value.ends_with(kVerbatimEnd);
      if (verbatim) value = value.substr(9, value.size() - 12);
      arguments[key] = types_.value(called, key, value);
    }
    add(std::move(called), std::move(arguments));
    return Match::yes;
  }

  // A literal before a value: white space behind it is the value's.
  void literal_end(std::string_view wanted) {
    literal(wanted);
    if (form_.value_on_lines && at_ < text_.size() && text_[at_] == '\n') ++at_;
  }

  // A value may hold what ends values; it ends where the next key or the end of all follows.
  Match tag_value(const std::string& end, std::string& value) {
    const size_t begin = at_;
    for (size_t from = begin;; ++from) {
      from = text_.find(end[0], from);
      if (from == std::string_view::npos) return Match::more;
      size_t behind = from;
      const Match match = literal_at(end, behind);
      if (match == Match::more) return match;
      if (match == Match::no) continue;
      size_t close = behind, next = behind;
      const Match closes = literal_at('\n' + form_.close, close),
                  continues = literal_at('\n' + form_.key_open, next);
      if (closes != Match::yes && continues != Match::yes) {
        if (closes == Match::more || continues == Match::more) return Match::more;
        continue;
      }
      value = text_.substr(begin, from - begin);
      if (form_.value_on_lines && value.ends_with('\n')) value.pop_back();
      at_ = behind;
      return Match::yes;
    }
  }

  const CallForm& form_;
  std::string_view text_;
  const ArgumentTypes& types_;
  std::vector<ParsedCall>& calls_;
  size_t at_ = 0;
};

std::string_view last_word(std::string_view literal) {
  size_t begin = literal.size();
  while (begin > 0 && !is_blank(literal[begin - 1]) && literal[begin - 1] != kAnyText) --begin;
  return literal.substr(begin);
}

}  // namespace

Match match_call(const CallForm& form, CallText text, const ArgumentTypes& types,
                 std::vector<ParsedCall>& calls) {
  calls.clear();
  const Match match = CallReader(form, text.text, types, calls).read(text.after_section_open);
  const bool foreign =
      form.is_bare() && !types.empty() &&
      std::ranges::any_of(calls, [&](const ParsedCall& call) { return !types.knows(call.name); });
  return match == Match::yes && foreign ? Match::no : match;
}

std::string call_trigger(const CallForm& form, bool after_section_open) {
  const std::string& first = form.section_open.empty() || after_section_open ? form.open : form.section_open;
  const size_t end =
      std::ranges::find_if(first, [](char c) { return is_blank(c) || c == kAnyText; }) - first.begin();
  return first.substr(0, end);
}

CallEnd::CallEnd(const CallForm& form)
    : last_word_(last_word(form.close)), single_quotes_(form.body == CallForm::Body::python) {}

void CallEnd::push(char c) {
  closed_ = false;
  if (std::exchange(escaped_, false)) return;
  if (quote_ != '\0') {
    if (c == '\\') escaped_ = true;
    if (c == quote_) quote_ = '\0';
    return;
  }
  if (c == '"' || (single_quotes_ && c == '\'')) quote_ = c;
  if (c == '{' || c == '[' || c == '(') ++depth_;
  if ((c == '}' || c == ']' || c == ')') && depth_ > 0) closed_ = --depth_ == 0;
}

bool CallEnd::may_be_here(std::string_view text) const {
  return last_word_.empty() ? closed_ : text.ends_with(last_word_);
}

}  // namespace quire
