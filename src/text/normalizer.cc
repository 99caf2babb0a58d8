#include "text/normalizer.h"

#include <algorithm>
#include <optional>

#include <utf8proc.h>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire {
namespace {

template <class Change>
std::string map_chars(std::string_view text, Change&& change) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    change(out, c.value);
    at += c.bytes;
  }
  return out;
}

// Marks after a letter go by their combining class. Done here because utf8proc's own sort is quadratic.
void order_marks(std::vector<utf8proc_int32_t>& chars) {
  const auto order = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (size_t i = 0; i < chars.size();) {
    size_t end = i;
    while (end < chars.size() && order(chars[end]) != 0) ++end;
    if (end - i > 1) {
      std::stable_sort(chars.begin() + ptrdiff_t(i), chars.begin() + ptrdiff_t(end),
                       [&](auto a, auto b) { return order(a) < order(b); });
    }
    i = end + 1;
  }
}

std::string to_form(std::string text, UnicodeForm::Form form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return text;
  }
  const bool compatible = form == UnicodeForm::Form::nfkc || form == UnicodeForm::Form::nfkd;
  const bool composed = form == UnicodeForm::Form::nfc || form == UnicodeForm::Form::nfkc;
  const auto how =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : UTF8PROC_NULLTERM));
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(utf8proc_int32_t(c.value), parts, 32, how, &boundary);
    if (count < 0 || count > 32) throw Error("U+{:04X} cannot be normalized", uint32_t(c.value));
    chars.insert(chars.end(), parts, parts + count);
    at += c.bytes;
  }
  order_marks(chars);
  if (composed) {
    const auto count =
        utf8proc_normalize_utf32(chars.data(), utf8proc_ssize_t(chars.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (count < 0) throw Error("a text of {} bytes cannot be normalized", text.size());
    chars.resize(size_t(count));
  }
  std::string out;
  out.reserve(text.size());
  for (const auto c : chars) append_utf8(out, char32_t(c));
  return out;
}

std::string strip(std::string_view text, const StripSpaces& sides) {
  size_t begin = 0;
  while (sides.left && begin < text.size()) {
    const CodePoint c = code_point_at(text, begin);
    if (!is_white_space(c.value)) break;
    begin += c.bytes;
  }
  size_t end = begin;  // behind the last character that stays
  for (size_t at = begin; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.bytes;
    if (!is_white_space(c.value)) end = at;
  }
  return std::string(text.substr(begin, (sides.right ? end : text.size()) - begin));
}

void append_nmt(std::string& out, char32_t c) {
  if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
    return;
  const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  append_utf8(out, space ? U' ' : c);
}

std::string clean_for_bert(std::string text, const BertCleanup& how) {
  if (how.clean_text) {
    text = map_chars(text, [](std::string& out, char32_t c) {
      const bool layout = c == '\t' || c == '\n' || c == '\r';
      if (c == 0 || c == 0xFFFD || (!layout && is_other(c))) return;
      append_utf8(out, layout || is_white_space(c) ? U' ' : c);
    });
  }
  if (!how.isolate_han) return text;
  return map_chars(text, [](std::string& out, char32_t c) {
    if (is_han(c)) out += ' ';
    append_utf8(out, c);
    if (is_han(c)) out += ' ';
  });
}

std::string escape_spaces(std::string_view text, const EscapeSpaces& how) {
  std::string out;
  out.reserve(text.size() + text.size() / 4 + kSpaceMark.size());
  if (how.prefix == EscapeSpaces::Prefix::always) out += kSpaceMark;
  bool prefix_due = how.prefix == EscapeSpaces::Prefix::first_word;
  bool in_word = false;
  for (const char c : text) {
    if (c == ' ') {
      in_word = false;
      if (!how.merge) out += kSpaceMark;
      continue;
    }
    if (!in_word && (prefix_due || how.merge)) out += kSpaceMark;
    if (!in_word) prefix_due = false;
    in_word = true;
    out += c;
  }
  return out;
}

}  // namespace

struct Normalizer::Compiled {
  std::optional<Regex> regex;
  std::optional<CompiledCharsmap> charsmap;
};

Normalizer::Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {
  for (const NormalizerStep& step : steps_) {
    auto& compiled = compiled_.emplace_back();
    if (const auto* replace = std::get_if<ReplaceText>(&step)) {
      if (replace->pattern.text.empty()) throw Error("the tokenizer's normalizer replaces an empty pattern");
      if (replace->pattern.is_regex) {
        compiled = std::make_unique<Compiled>(Compiled{Regex(replace->pattern.text), std::nullopt});
      }
    } else if (const auto* map = std::get_if<Charsmap>(&step)) {
      compiled = std::make_unique<Compiled>(Compiled{std::nullopt, CompiledCharsmap(*map)});
    }
  }
}

Normalizer::Normalizer(Normalizer&&) noexcept = default;
Normalizer::~Normalizer() = default;

std::string Normalizer::apply(std::string text) const {
  struct Apply {
    std::string& text;
    const Compiled* compiled;

    std::string operator()(const UnicodeForm& step) { return to_form(std::move(text), step.form); }
    std::string operator()(const ReplaceText& step) {
      return replace_all(text, step.pattern, compiled ? &*compiled->regex : nullptr, step.content);
    }
    std::string operator()(const PrependText& step) { return text.empty() ? text : step.text + text; }
    std::string operator()(const Lowercase&) { return map_chars(text, append_lowercase); }
    std::string operator()(const StripSpaces& step) { return strip(text, step); }
    std::string operator()(const StripAccents& step) {
      const bool all = step.marks == StripAccents::Marks::all;
      return map_chars(text, [&](std::string& out, char32_t c) {
        if (!(all ? is_mark(c) : is_nonspacing_mark(c))) append_utf8(out, c);
      });
    }
    std::string operator()(const NmtCleanup&) { return map_chars(text, append_nmt); }
    std::string operator()(const BertCleanup& step) { return clean_for_bert(std::move(text), step); }
    std::string operator()(const BytesToChars&) {
      std::string out;
      append_bytes_as_chars(out, text);
      return out;
    }
    std::string operator()(const Charsmap&) { return compiled->charsmap->apply(text); }
    std::string operator()(const EscapeSpaces& step) { return escape_spaces(text, step); }
  };
  const size_t bytes = text.size();
  for (size_t i = 0; i < steps_.size(); ++i) {
    text = std::visit(Apply{text, compiled_[i].get()}, steps_[i]);
    if (text.size() > max_grown_bytes(bytes)) {
      throw Error("the tokenizer makes a text of {} bytes far too long", bytes);
    }
  }
  return text;
}

}  // namespace quire
