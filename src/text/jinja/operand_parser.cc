#include <charconv>

#include "text/jinja/expression_parser.h"

// What operators stand between: literals, names, and what follows them.

namespace quire::jinja {

ExpressionRef ExpressionParser::parse_primary() {
  const uint32_t line = current().line;
  switch (current().kind) {
    case TokenKind::name:
      return parse_name_or_word();
    case TokenKind::integer:
    case TokenKind::real:
      return parse_number();
    case TokenKind::string: {
      std::string text;
      while (current().kind == TokenKind::string) text += next().text;
      return make(line, Constant{make_text(nullptr, std::move(text), Origin::trusted)});
    }
    default:
      break;
  }
  if (at_op("(")) return parse_parentheses();
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  fail(fmt::format("unexpected {}", describe(current())));
}

ExpressionRef ExpressionParser::parse_name_or_word() {
  const Token token = next();
  if (token.text == "true" || token.text == "True") return make(token.line, Constant{true});
  if (token.text == "false" || token.text == "False") return make(token.line, Constant{false});
  if (token.text == "none" || token.text == "None") return make(token.line, Constant{None{}});
  if (token.text == "varargs" || token.text == "kwargs" || token.text == "caller") {
    special_names_.push_back(token.text);
  }
  return make(token.line, Name{token.text});
}

ExpressionRef ExpressionParser::parse_number() {
  const Token token = next();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == TokenKind::real) {
    double real = 0;
    const auto [stop, error] = std::from_chars(begin, end, real);
    if (stop != end || error != std::errc()) fail(fmt::format("'{}' is not a number", token.text));
    return make(token.line, Constant{real});
  }
  int base = 10;
  if (token.text.size() > 2 && token.text[0] == '0') {
    const char radix = char(token.text[1] | 0x20);
    base = radix == 'x' ? 16 : radix == 'o' ? 8 : radix == 'b' ? 2 : 10;
    if (base != 10) begin += 2;
  }
  int64_t integer = 0;
  const auto [stop, error] = std::from_chars(begin, end, integer, base);
  if (stop != end || error != std::errc())
    fail(fmt::format("'{}' is not a number within 64 bits", token.text));
  return make(token.line, Constant{integer});
}

bool ExpressionParser::at_tuple_end() const {
  return current().kind == TokenKind::variable_end || current().kind == TokenKind::block_end || at_op(")") ||
         at_name("in") || at_name("recursive");
}

ExpressionRef ExpressionParser::parse_tuple(Conditions conditions) {
  const uint32_t line = current().line;
  ExpressionRef first = parse_expression(conditions);
  if (!at_op(",")) return first;
  ListLiteral tuple{{}, SequenceKind::tuple};
  tuple.items.push_back(std::move(first));
  while (skip_op(",") && !at_tuple_end()) tuple.items.push_back(parse_expression(conditions));
  return make(line, std::move(tuple));
}

ExpressionRef ExpressionParser::parse_parentheses() {
  const uint32_t line = current().line;
  expect_op("(");
  ExpressionRef value =
      at_op(")") ? make(line, ListLiteral{{}, SequenceKind::tuple}) : parse_tuple(Conditions::allowed);
  expect_op(")");
  return value;
}

ExpressionRef ExpressionParser::parse_list() {
  const uint32_t line = current().line;
  expect_op("[");
  ListLiteral list{{}, SequenceKind::list};
  while (!at_op("]")) {
    if (!list.items.empty()) expect_op(",");
    if (at_op("]")) break;
    list.items.push_back(parse_expression());
  }
  expect_op("]");
  return make(line, std::move(list));
}

ExpressionRef ExpressionParser::parse_dict() {
  const uint32_t line = current().line;
  expect_op("{");
  DictLiteral dict;
  while (!at_op("}")) {
    if (!dict.entries.empty()) expect_op(",");
    if (at_op("}")) break;
    ExpressionRef key = parse_expression();
    expect_op(":");
    dict.entries.emplace_back(std::move(key), parse_expression());
  }
  expect_op("}");
  return make(line, std::move(dict));
}

ExpressionRef ExpressionParser::parse_postfix(ExpressionRef value) {
  while (true) {
    const uint32_t line = current().line;
    if (at_op(".") || at_op("[")) {
      value = parse_subscript(std::move(value));
    } else if (at_op("(")) {
      CallArguments arguments = parse_call_arguments();
      value = make(line, Invocation{std::move(value), std::move(arguments)});
    } else {
      return value;
    }
  }
}

ExpressionRef ExpressionParser::parse_subscript(ExpressionRef value) {
  const uint32_t line = current().line;
  if (skip_op(".")) {
    if (current().kind == TokenKind::integer) return make(line, Item{std::move(value), parse_number()});
    return make(line, Attribute{std::move(value), expect_name()});
  }
  expect_op("[");
  ExpressionRef parts[3];
  size_t colons = 0;
  while (!at_op("]")) {
    if (skip_op(":")) {
      if (++colons > 2) fail("a slice has too many colons");
    } else {
      if (parts[colons]) fail(fmt::format("expected ']', got {}", describe(current())));
      parts[colons] = parse_tuple();
    }
  }
  expect_op("]");
  if (colons > 0) {
    return make(line, Slice{std::move(value), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])});
  }
  if (!parts[0]) fail("a subscript is empty");
  return make(line, Item{std::move(value), std::move(parts[0])});
}

ExpressionRef ExpressionParser::parse_filters(ExpressionRef value) {
  while (true) {
    const uint32_t line = current().line;
    if (skip_op("|")) {
      value = parse_filter(std::move(value));
    } else if (at_name("is")) {
      value = parse_test(std::move(value));
    } else if (at_op("(")) {
      CallArguments arguments = parse_call_arguments();
      value = make(line, Invocation{std::move(value), std::move(arguments)});
    } else {
      return value;
    }
  }
}

ExpressionRef ExpressionParser::parse_filter(ExpressionRef value) {
  const uint32_t line = current().line;
  std::string name = expect_name();
  while (skip_op(".")) name.append(1, '.').append(expect_name());
  CallArguments arguments;
  if (at_op("(")) arguments = parse_call_arguments();
  return make(line, FilterUse{std::move(value), std::move(name), std::move(arguments)});
}

ExpressionRef ExpressionParser::parse_test(ExpressionRef value) {
  const uint32_t line = next().line;
  const bool negated = skip_name("not");
  std::string name = expect_name();
  while (skip_op(".")) name.append(1, '.').append(expect_name());
  CallArguments arguments;
  const TokenKind kind = current().kind;
  const bool word = at_name("else") || at_name("or") || at_name("and") || at_name("if");
  if (at_op("(")) {
    arguments = parse_call_arguments();
  } else if (at_name("is")) {
    fail("tests cannot be chained with 'is'");
  } else if ((kind == TokenKind::name && !word) || kind == TokenKind::string || kind == TokenKind::integer ||
             kind == TokenKind::real || at_op("[") || at_op("{")) {
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  ExpressionRef test = make(line, TestUse{std::move(value), std::move(name), std::move(arguments)});
  return negated ? make(line, Unary{UnaryOp::logical_not, std::move(test)}) : std::move(test);
}

CallArguments ExpressionParser::parse_call_arguments() {
  expect_op("(");
  CallArguments arguments;
  bool first = true;
  while (!at_op(")")) {
    if (!first) expect_op(",");
    first = false;
    if (at_op(")")) break;
    if (skip_op("*")) {
      if (arguments.rest || arguments.named_rest) fail("a call has '*' twice");
      arguments.rest = parse_expression();
    } else if (skip_op("**")) {
      if (arguments.named_rest) fail("a call has '**' twice");
      arguments.named_rest = parse_expression();
    } else if (current().kind == TokenKind::name && look().kind == TokenKind::op && look().text == "=") {
      std::string name = expect_name();
      next();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty() || arguments.rest || arguments.named_rest) {
        fail("a positional argument follows a named one");
      }
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_op(")");
  return arguments;
}

Target ExpressionParser::parse_target() {
  Target first = parse_single_target();
  if (!at_op(",")) return first;
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (skip_op(",") && !at_tuple_end() && !at_op("=")) tuple.parts.push_back(parse_single_target());
  return tuple;
}

Target ExpressionParser::parse_single_target() {
  const Nesting nesting(*this);
  if (skip_op("(")) {
    Target target = parse_target();
    expect_op(")");
    return target;
  }
  Target target;
  target.name = expect_name();
  for (const std::string_view word : {"true", "True", "false", "False", "none", "None"}) {
    if (target.name == word) fail(fmt::format("can't assign to '{}'", word));
  }
  if (skip_op(".")) target.attribute = expect_name();
  return target;
}

}  // namespace quire::jinja
