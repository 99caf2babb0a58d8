#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace quire::jinja {
namespace {

constexpr uint32_t kMaxNesting = 100;          // of the parser's own calls
constexpr uint32_t kMaxExpressionDepth = 300;  // of a tree: chains like a + b + c ... grow without nesting

std::optional<CompareOp> compare_op(std::string_view spelled) {
  if (spelled == "==") return CompareOp::equal;
  if (spelled == "!=") return CompareOp::not_equal;
  if (spelled == "<") return CompareOp::less;
  if (spelled == "<=") return CompareOp::less_equal;
  if (spelled == ">") return CompareOp::greater;
  if (spelled == ">=") return CompareOp::greater_equal;
  return std::nullopt;
}

}  // namespace

ExpressionRef ExpressionParser::make(uint32_t line, ExpressionNode node) {
  const uint32_t depth = 1 + depth_below(node);
  if (depth > kMaxExpressionDepth) fail("an expression nests too deep");
  return std::make_unique<const Expression>(Expression{line, depth, std::move(node)});
}

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) parser_.fail("it nests too deep");
  ++parser_.nesting_;
}

Token ExpressionParser::next() {
  Token token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool ExpressionParser::skip_op(std::string_view op) {
  if (!at_op(op)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail(fmt::format("expected '{}', got {}", op, describe(current())));
}

std::string ExpressionParser::expect_name() {
  if (current().kind != TokenKind::name) fail(fmt::format("expected a name, got {}", describe(current())));
  return next().text;
}

void ExpressionParser::fail(std::string_view what) const {
  throw Error("chat template, line {}: {}", current().line, what);
}

std::string ExpressionParser::describe(const Token& token) const {
  switch (token.kind) {
    case TokenKind::data:
      return "text";
    case TokenKind::variable_begin:
      return "'{{'";
    case TokenKind::variable_end:
      return "'}}'";
    case TokenKind::block_begin:
      return "'{%'";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::string:
      return "a string";
    case TokenKind::end:
      return "the end of the template";
    default:
      return fmt::format("'{}'", token.text);
  }
}

bool ExpressionParser::mentions(std::string_view name) const {
  return std::find(special_names_.begin(), special_names_.end(), name) != special_names_.end();
}

ExpressionRef ExpressionParser::parse_expression(Conditions conditions) {
  const Nesting nesting(*this);
  const uint32_t line = current().line;
  ExpressionRef value = parse_or();
  if (conditions == Conditions::forbidden) return value;
  while (skip_name("if")) {
    ExpressionRef condition = parse_or();
    ExpressionRef otherwise = skip_name("else") ? parse_expression() : nullptr;
    value = make(line, Conditional{std::move(condition), std::move(value), std::move(otherwise)});
  }
  return value;
}

ExpressionRef ExpressionParser::parse_or() {
  const uint32_t line = current().line;
  ExpressionRef first = parse_and();
  if (!at_name("or")) return first;
  Logic logic{LogicOp::logical_or, {}};
  logic.operands.push_back(std::move(first));
  while (skip_name("or")) logic.operands.push_back(parse_and());
  return make(line, std::move(logic));
}

ExpressionRef ExpressionParser::parse_and() {
  const uint32_t line = current().line;
  ExpressionRef first = parse_not();
  if (!at_name("and")) return first;
  Logic logic{LogicOp::logical_and, {}};
  logic.operands.push_back(std::move(first));
  while (skip_name("and")) logic.operands.push_back(parse_not());
  return make(line, std::move(logic));
}

ExpressionRef ExpressionParser::parse_not() {
  const uint32_t line = current().line;
  if (!skip_name("not")) return parse_compare();
  const Nesting nesting(*this);
  return make(line, Unary{UnaryOp::logical_not, parse_not()});
}

ExpressionRef ExpressionParser::parse_compare() {
  const uint32_t line = current().line;
  ExpressionRef first = parse_sum();
  std::vector<std::pair<CompareOp, ExpressionRef>> rest;
  while (true) {
    if (const auto op = current().kind == TokenKind::op ? compare_op(current().text) : std::nullopt) {
      next();
      rest.emplace_back(*op, parse_sum());
    } else if (skip_name("in")) {
      rest.emplace_back(CompareOp::in, parse_sum());
    } else if (at_name("not") && look().kind == TokenKind::name && look().text == "in") {
      next();
      next();
      rest.emplace_back(CompareOp::not_in, parse_sum());
    } else {
      break;
    }
  }
  if (rest.empty()) return first;
  return make(line, Comparison{std::move(first), std::move(rest)});
}

ExpressionRef ExpressionParser::parse_sum() {
  const uint32_t line = current().line;
  ExpressionRef left = parse_concatenation();
  while (at_op("+") || at_op("-")) {
    const BinaryOp op = next().text == "+" ? BinaryOp::add : BinaryOp::subtract;
    ExpressionRef right = parse_concatenation();
    left = make(line, Binary{op, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionRef ExpressionParser::parse_concatenation() {
  const uint32_t line = current().line;
  ExpressionRef first = parse_product();
  if (!at_op("~")) return first;
  Concatenation concatenation;
  concatenation.parts.push_back(std::move(first));
  while (skip_op("~")) concatenation.parts.push_back(parse_product());
  return make(line, std::move(concatenation));
}

ExpressionRef ExpressionParser::parse_product() {
  const uint32_t line = current().line;
  ExpressionRef left = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const BinaryOp op = at_op("*")    ? BinaryOp::multiply
                        : at_op("/")  ? BinaryOp::divide
                        : at_op("//") ? BinaryOp::floor_divide
                                      : BinaryOp::modulo;
    next();
    ExpressionRef right = parse_power();
    left = make(line, Binary{op, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionRef ExpressionParser::parse_power() {
  const uint32_t line = current().line;
  ExpressionRef left = parse_unary();
  while (skip_op("**")) {
    ExpressionRef right = parse_unary();
    left = make(line, Binary{BinaryOp::power, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionRef ExpressionParser::parse_unary(Filters filters) {
  const Nesting nesting(*this);
  const uint32_t line = current().line;
  ExpressionRef value;
  if (skip_op("-")) {
    value = make(line, Unary{UnaryOp::negative, parse_unary(Filters::forbidden)});
  } else if (skip_op("+")) {
    value = make(line, Unary{UnaryOp::positive, parse_unary(Filters::forbidden)});
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return filters == Filters::allowed ? parse_filters(std::move(value)) : std::move(value);
}

}  // namespace quire::jinja
