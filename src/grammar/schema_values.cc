#include "grammar/schema_values.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/regex_reader.h"
#include "grammar/string_formats.h"

namespace quire::grammar {
namespace {

constexpr uint32_t kMostDigits = 30, kWholeDigits = 9, kFractionDigits = 6;
constexpr uint64_t kMostCounted = 1'000'000;  // of a length

}  // namespace

std::string json_content(const std::string& text) {
  const std::string quoted = json_text(text);
  return quoted.substr(1, quoted.size() - 2);
}

std::string SchemaValues::content(const std::string& text) const {
  return form_ == TextForm::plain ? text : json_content(text);
}

ExprId SchemaValues::pattern_content(const std::string& pattern) {
  const auto found = patterns_.find(pattern);
  if (found != patterns_.end()) return found->second;
  const RegexSpelling spelling = form_ == TextForm::plain ? RegexSpelling::utf8 : RegexSpelling::json;
  const ExprId content = read_regex(pool_, pattern, {.whole = RegexWhole::part, .spelling = spelling});
  patterns_.emplace(pattern, content);
  return content;
}

ExprId SchemaValues::format_content(const std::string& format) {
  const auto found = formats_.find(format);
  if (found != formats_.end()) return found->second;
  const auto pattern = format_pattern(format);
  const RegexSpelling spelling = form_ == TextForm::plain ? RegexSpelling::utf8 : RegexSpelling::json;
  const ExprId content = pattern ? read_regex(pool_, *pattern, {.spelling = spelling}) : ExprPool::kAll;
  formats_.emplace(format, content);
  return content;
}

ExprId SchemaValues::character(JsonSpelling spelling) {
  const auto found = characters_.find(spelling);
  if (found != characters_.end()) return found->second;
  return characters_[spelling] =
             form_ == TextForm::plain ? utf8_of(pool_, CodePoints::all()) : json_char(pool_, spelling);
}

bool SchemaValues::matches(const std::string& pattern, const std::string& name) {
  return pool_.matches(pattern_content(pattern), content(name));
}

std::vector<ExprId> SchemaValues::string_limits(const Goal& schemas, JsonSpelling& spelling) {
  std::vector<ExprId> limits;
  uint64_t least = 0, most = Schema::kNoMost;
  bool is_text = false;  // by what is asked of it: then any text need not be asked for
  for (const Schema* schema : schemas) {
    is_text = is_text || !schema->patterns.empty();
    least = std::max(least, schema->least_length);
    most = std::min(most, schema->most_length);
    for (const std::string& pattern : schema->patterns) limits.push_back(pattern_content(pattern));
    for (const std::string& pattern : schema->not_patterns)
      limits.push_back(pool_.complement(pattern_content(pattern)));
    for (const std::string& format : schema->formats) {
      const ExprId content = format_content(format);
      if (content == ExprPool::kAll) continue;
      limits.push_back(content);
      is_text = true;
    }
    std::vector<std::string> excluded;
    for (const OrderedJson& value : schema->excluded) {
      if (value.is_string()) excluded.push_back(content(value.get<std::string>()));
    }
    if (!excluded.empty()) limits.push_back(pool_.complement(pool_.literals(std::move(excluded))));
  }
  if (!limits.empty()) spelling = JsonSpelling::one;
  if (least > most) return {ExprPool::kNothing};
  if (least > kMostCounted)
    throw Error("the schema's keyword 'minLength' cannot be more than {}", kMostCounted);
  const uint32_t counted = most > kMostCounted ? ExprPool::kNoMost : uint32_t(most);
  if (!is_text || least > 0 || counted != ExprPool::kNoMost)
    limits.push_back(pool_.repeat(character(spelling), uint32_t(least), counted));
  return limits;
}

ExprId SchemaValues::string_content(const Goal& schemas) {
  JsonSpelling spelling = free_spelling();
  return pool_.all_of(string_limits(schemas, spelling));
}

ExprId SchemaValues::plain_content(const Goal& schemas) {
  JsonSpelling spelling = JsonSpelling::one;
  return pool_.all_of(string_limits(schemas, spelling));
}

std::vector<ExprId> SchemaValues::number_limits(const Goal& schemas) {
  std::vector<ExprId> limits;
  for (const Schema* schema : schemas) {
    for (const NumberBound& bound : schema->bounds) limits.push_back(within(pool_, bound));
    for (const Decimal& number : schema->multiple_of) limits.push_back(multiples_of(pool_, number));
    for (const Decimal& number : schema->not_multiple_of)
      limits.push_back(pool_.complement(multiples_of(pool_, number)));
    for (const OrderedJson& value : schema->excluded) {
      if (value.is_number()) limits.push_back(pool_.complement(equal_to(pool_, decimal_of(value))));
    }
  }
  return limits;
}

ExprId SchemaValues::number(const Goal& schemas, JsonTypes types) {
  std::vector<ExprId> limits = number_limits(schemas);
  const bool is_free = limits.empty();
  // What is compared must be the same number to whoever reads it as a double: 15 digits in all, unless a bound has more.
  size_t whole = is_free ? kMostDigits : kWholeDigits, fraction = is_free ? kMostDigits : kFractionDigits;
  if ((types & kFraction) == 0 && !is_free) whole += fraction;
  const auto make_room = [&](const Decimal& number) {
    whole = std::max(whole, number.whole.size() + 1);
    fraction = std::max(fraction, number.fraction.size() + 1);
  };
  for (const Schema* schema : schemas) {
    for (const NumberBound& bound : schema->bounds) make_room(bound.value);
    for (const Decimal& one : schema->multiple_of) make_room(one);
  }
  const auto form = [&](NumberForm of) { return numbers(pool_, of, uint32_t(whole), uint32_t(fraction)); };
  if ((types & kInteger) == 0) {
    limits.push_back(pool_.complement(multiples_of(pool_, Decimal{.whole = "1"})));
    limits.push_back(form(NumberForm::decimal));
  } else if ((types & kFraction) == 0) {
    limits.push_back(form(NumberForm::integer));
  } else {
    limits.push_back(form(is_free ? NumberForm::any : NumberForm::decimal));
  }
  return pool_.all_of(std::move(limits));
}

bool SchemaValues::holds(const Schema& schema, const OrderedJson& value) {
  const Goal goal{&schema};
  if (value.is_string()) {
    JsonSpelling spelling = JsonSpelling::one;
    const ExprId texts = pool_.all_of(string_limits(goal, spelling));
    return pool_.matches(texts, content(value.get<std::string>()));
  }
  return pool_.matches(pool_.all_of(number_limits(goal)), decimal_of(value).text());
}

}  // namespace quire::grammar
