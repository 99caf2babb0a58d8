#pragma once

#include <string>

#include "base/json.h"
#include "grammar/expr_pool.h"

namespace quire::grammar {

// A number in digits: exact, and of any size that JSON numbers here have.
struct Decimal {
  bool negative = false;
  std::string whole = {};     // without zeros in front; empty: 0
  std::string fraction = {};  // without zeros at the end

  bool is_zero() const { return whole.empty() && fraction.empty(); }
  std::string text() const;  // as JSON writes it, without an exponent
};

// REQUIRES: it is a number, and finite.
Decimal decimal_of(const OrderedJson& number);

struct NumberBound {
  Decimal value;
  bool is_lower = true;
  bool exclusive = false;
};

// Decimals without an exponent: those within a bound; the multiples of a number (Error if it is too large); the one number.
ExprId within(ExprPool& pool, const NumberBound& bound);
ExprId multiples_of(ExprPool& pool, const Decimal& number);
ExprId equal_to(ExprPool& pool, const Decimal& number);

// Numbers as JSON writes them, with at most so many digits before the point and after it, which bounds an answer.
enum class NumberForm : uint8_t { integer, decimal, any };  // any: with an exponent
ExprId numbers(ExprPool& pool, NumberForm form, uint32_t whole_digits, uint32_t fraction_digits);

}  // namespace quire::grammar
