#include "grammar/decimal.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "base/error.h"

namespace quire::grammar {
namespace {

ExprId digits_between(ExprPool& pool, char first, char last) {
  return first > last ? ExprPool::kNothing : pool.bytes(ByteSet::of(uint8_t(first), uint8_t(last)));
}

ExprId any_digits(ExprPool& pool, uint32_t least, uint32_t most) {
  return pool.repeat(digits_between(pool, '0', '9'), least, most);
}

ExprId sequence(ExprPool& pool, std::initializer_list<ExprId> parts) {
  return pool.concat(std::span(parts.begin(), parts.size()));
}

ExprId any_fraction(ExprPool& pool) {
  return pool.optional(sequence(pool, {pool.literal("."), any_digits(pool, 1, ExprPool::kNoMost)}));
}

enum class Side : uint8_t { above, below };

// After a whole part that is equal: what stands there with its point, beyond `fraction` on this side of it, or equal to it.
ExprId fractions(ExprPool& pool, const std::string& fraction, Side side, bool exclusive) {
  const ExprId any = any_digits(pool, 0, ExprPool::kNoMost);
  const ExprId zeros = pool.repeat(digits_between(pool, '0', '0'), 0, ExprPool::kNoMost);
  const ExprId more = sequence(pool, {any, digits_between(pool, '1', '9'), any});
  std::vector<ExprId> parts;
  for (size_t i = 0; i < fraction.size(); ++i) {
    const char digit = fraction[i];
    const ExprId other = side == Side::above ? digits_between(pool, char(digit + 1), '9')
                                             : digits_between(pool, '0', char(digit - 1));
    parts.push_back(sequence(pool, {pool.literal("." + fraction.substr(0, i)), other, any}));
    if (side == Side::below && i > 0) parts.push_back(pool.literal("." + fraction.substr(0, i)));
  }
  if (side == Side::below && !fraction.empty()) parts.push_back(ExprPool::kEmpty);
  const ExprId equal = pool.literal("." + fraction);
  if (side == Side::above) {
    parts.push_back(sequence(pool, {equal, more}));
    if (!exclusive && fraction.empty()) parts.push_back(any_fraction(pool));
    if (!exclusive && !fraction.empty()) parts.push_back(sequence(pool, {equal, any}));
  } else if (!exclusive) {
    if (fraction.empty()) {
      parts.push_back(ExprPool::kEmpty);
      parts.push_back(sequence(pool, {equal, digits_between(pool, '0', '0'), zeros}));
    } else {
      parts.push_back(sequence(pool, {equal, zeros}));
    }
  }
  return pool.any_of(std::move(parts));
}

// Numbers without a sign.
ExprId beyond(ExprPool& pool, const Decimal& number, Side side, bool exclusive) {
  const std::string whole = number.whole.empty() ? "0" : number.whole;
  const uint32_t length = uint32_t(whole.size());
  const ExprId rest = any_fraction(pool);
  std::vector<ExprId> parts;
  if (side == Side::above) {
    parts.push_back(
        sequence(pool, {digits_between(pool, '1', '9'), any_digits(pool, length, ExprPool::kNoMost), rest}));
  } else if (length > 1) {
    parts.push_back(sequence(pool, {pool.literal("0"), rest}));
    parts.push_back(sequence(pool, {digits_between(pool, '1', '9'), any_digits(pool, 0, length - 2), rest}));
  }
  for (uint32_t i = 0; i < length; ++i) {
    const char digit = whole[i];
    const char least = i == 0 && length > 1 ? '1' : '0';
    const ExprId other = side == Side::above ? digits_between(pool, char(digit + 1), '9')
                                             : digits_between(pool, least, char(digit - 1));
    const uint32_t left = length - 1 - i;
    parts.push_back(
        sequence(pool, {pool.literal(whole.substr(0, i)), other, any_digits(pool, left, left), rest}));
  }
  parts.push_back(sequence(pool, {pool.literal(whole), fractions(pool, number.fraction, side, exclusive)}));
  return pool.any_of(std::move(parts));
}

}  // namespace

std::string Decimal::text() const {
  std::string result = negative && !is_zero() ? "-" : "";
  result += whole.empty() ? "0" : whole;
  if (!fraction.empty()) result += "." + fraction;
  return result;
}

Decimal decimal_of(const OrderedJson& number) {
  Decimal result;
  std::string text = number.is_number_float() ? fmt::format("{}", number.get<double>()) : number.dump();
  if (text.starts_with('-')) {
    result.negative = true;
    text.erase(0, 1);
  }
  long exponent = 0;
  if (const size_t at = text.find('e'); at != std::string::npos) {
    exponent = std::strtol(text.c_str() + at + 1, nullptr, 10);
    text.erase(at);
  }
  const size_t point = text.find('.');
  std::string all = text.substr(0, point) + (point == std::string::npos ? "" : text.substr(point + 1));
  long whole_digits = long(std::min(point, text.size())) + exponent;
  if (whole_digits < 0) {
    all.insert(0, size_t(-whole_digits), '0');
    whole_digits = 0;
  }
  if (size_t(whole_digits) > all.size()) all.append(size_t(whole_digits) - all.size(), '0');
  result.whole = all.substr(0, size_t(whole_digits));
  result.fraction = all.substr(size_t(whole_digits));
  result.whole.erase(0, std::min(result.whole.find_first_not_of('0'), result.whole.size()));
  result.fraction.erase(result.fraction.find_last_not_of('0') + 1);
  return result;
}

ExprId within(ExprPool& pool, const NumberBound& bound) {
  const ExprId minus = pool.literal("-");
  const Side same = bound.is_lower != bound.value.negative ? Side::above : Side::below;
  const bool is_negative = bound.value.negative && !bound.value.is_zero();
  const ExprId any = sequence(pool, {any_digits(pool, 1, ExprPool::kNoMost), any_fraction(pool)});
  if (is_negative) {
    const ExprId below_zero = sequence(pool, {minus, beyond(pool, bound.value, same, bound.exclusive)});
    return bound.is_lower ? pool.any_of({any, below_zero}) : below_zero;
  }
  Decimal value = bound.value;
  value.negative = false;
  const Side side = bound.is_lower ? Side::above : Side::below;
  const ExprId positive = beyond(pool, value, side, bound.exclusive);
  if (bound.is_lower) return positive;
  if (!value.is_zero() || !bound.exclusive) return pool.any_of({positive, sequence(pool, {minus, any})});
  return sequence(pool, {minus, beyond(pool, value, Side::above, true)});
}

ExprId multiples_of(ExprPool& pool, const Decimal& number) {
  const std::string digits = number.whole + number.fraction;
  uint64_t modulus = 0;
  for (char digit : digits) {
    modulus = modulus * 10 + uint64_t(digit - '0');
    if (modulus > Multiples::kMostModulus) throw Error("multipleOf {} has too many digits", number.text());
  }
  const Multiples multiples{.modulus = modulus, .scale = int32_t(number.fraction.size())};
  return sequence(pool, {pool.optional(pool.literal("-")), pool.multiples(multiples)});
}

ExprId equal_to(ExprPool& pool, const Decimal& number) {
  const ExprId exact =
      pool.all_of({within(pool, {number, true, false}), within(pool, {number, false, false})});
  if (!number.is_zero()) return exact;
  const ExprId zeros = pool.repeat(pool.literal("0"), 1, ExprPool::kNoMost);
  const ExprId fraction = pool.optional(sequence(pool, {pool.literal("."), zeros}));
  return pool.any_of(
      {exact, sequence(pool, {pool.optional(pool.literal("-")), pool.literal("0"), fraction})});
}

ExprId numbers(ExprPool& pool, NumberForm form, uint32_t whole_digits, uint32_t fraction_digits) {
  const ExprId whole =
      pool.any_of({pool.literal("0"),
                   sequence(pool, {digits_between(pool, '1', '9'), any_digits(pool, 0, whole_digits - 1)})});
  const ExprId integer = sequence(pool, {pool.optional(pool.literal("-")), whole});
  if (form == NumberForm::integer) return integer;
  const ExprId fraction =
      pool.optional(sequence(pool, {pool.literal("."), any_digits(pool, 1, fraction_digits)}));
  const ExprId decimal = sequence(pool, {integer, fraction});
  if (form == NumberForm::decimal) return decimal;
  ByteSet e, sign;
  for (char c : {'e', 'E'}) e.add(uint8_t(c));
  for (char c : {'+', '-'}) sign.add(uint8_t(c));
  // Doubles go up to 1.8e308: what is smaller is a number for everybody.
  const ExprId small = pool.any_of(
      {any_digits(pool, 1, 2), sequence(pool, {digits_between(pool, '0', '1'), any_digits(pool, 2, 2)})});
  const ExprId exponent = sequence(pool, {pool.bytes(e), pool.optional(pool.bytes(sign)), small});
  return sequence(pool, {decimal, pool.optional(exponent)});
}

}  // namespace quire::grammar
