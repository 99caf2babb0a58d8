#pragma once

#include <string_view>

#include "grammar/code_points.h"
#include "grammar/expr_pool.h"

namespace quire::grammar {

// A regular expression as JSON Schema, Python and JavaScript write it, over characters. What is not regular (look-around,
// back-references, word boundaries) or needs tables of Unicode (\p) throws Error with a sentence.
enum class RegexWhole : uint8_t {
  text,  // the expression is all of the text; ^ and $ change nothing at its ends
  part   // it stands somewhere in the text, unless ^ and $ say otherwise
};
enum class RegexSpelling : uint8_t { utf8, json };  // json: as JsonSpelling::one

struct RegexOptions {
  RegexWhole whole = RegexWhole::text;
  RegexSpelling spelling = RegexSpelling::utf8;
  bool ignore_case = false;  // of ASCII letters
  bool dot_is_newline_too = false;
};

ExprId read_regex(ExprPool& pool, std::string_view pattern, const RegexOptions& options);

}  // namespace quire::grammar
