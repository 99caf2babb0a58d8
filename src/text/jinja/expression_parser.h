#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace quire::jinja {

// Reads expressions from a list of tokens, in Jinja's grammar and precedence. The statement parser builds on
// it.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  enum class Conditions { allowed, forbidden };  // `a if b else c`; its `if` would swallow that of a for loop

  ExpressionRef parse_expression(Conditions conditions = Conditions::allowed);
  // An expression, or several with commas between, which make a tuple.
  ExpressionRef parse_tuple(Conditions conditions = Conditions::allowed);
  ExpressionRef parse_postfix(ExpressionRef value);
  // The filters, tests and calls that follow a value.
  ExpressionRef parse_filters(ExpressionRef value);
  // A filter's name and arguments, the pipe already read.
  ExpressionRef parse_filter(ExpressionRef value);
  ExpressionRef parse_primary();
  CallArguments parse_call_arguments();
  Target parse_target();
  Target parse_single_target();

  const Token& current() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool at_op(std::string_view op) const { return current().kind == TokenKind::op && current().text == op; }
  bool at_name(std::string_view name) const {
    return current().kind == TokenKind::name && current().text == name;
  }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_name();
  [[noreturn]] void fail(std::string_view what) const;
  std::string describe(const Token& token) const;

  // Counts how deep the parser calls itself.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }

   private:
    ExpressionParser& parser_;
  };

  bool mentions(std::string_view name) const;  // in what was parsed since the innermost macro began
  std::vector<std::string> special_names_;     // varargs, kwargs, caller, as they are met

 private:
  ExpressionRef parse_or();
  ExpressionRef parse_and();
  ExpressionRef parse_not();
  ExpressionRef parse_compare();
  ExpressionRef parse_sum();
  ExpressionRef parse_concatenation();
  ExpressionRef parse_product();
  ExpressionRef parse_power();
  enum class Filters { allowed, forbidden };
  ExpressionRef parse_unary(Filters filters = Filters::allowed);
  ExpressionRef parse_name_or_word();
  ExpressionRef parse_number();
  ExpressionRef parse_parentheses();
  ExpressionRef parse_list();
  ExpressionRef parse_dict();
  ExpressionRef parse_subscript(ExpressionRef value);
  ExpressionRef parse_test(ExpressionRef value);
  bool at_tuple_end() const;

  ExpressionRef make(uint32_t line, ExpressionNode node);

  std::vector<Token> tokens_;  // the last is `end`
  size_t position_ = 0;
  uint32_t nesting_ = 0;
};

}  // namespace quire::jinja
