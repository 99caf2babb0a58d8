#include "text/jinja/parser.h"

#include <initializer_list>

#include "base/error.h"
#include "text/jinja/expression_parser.h"

namespace quire::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t(1) << 19;  // those that models ship have less than 20,000

class Parser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block run() {
    Block block = parse_block({});
    if (current().kind != TokenKind::end) {
      fail(fmt::format("unexpected tag '{}'", current().text));
    }
    return block;
  }

 private:
  // Statements up to a tag whose name is one of `ends`, which is left as the current token (or up to the
  // end).
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Block block;
    while (current().kind != TokenKind::end) {
      const uint32_t line = current().line;
      if (current().kind == TokenKind::data) {
        block.push_back({line, Data{make_text(nullptr, next().text, Origin::trusted)}});
      } else if (current().kind == TokenKind::variable_begin) {
        next();
        block.push_back({line, Print{parse_tuple()}});
        expect(TokenKind::variable_end);
      } else {
        expect(TokenKind::block_begin);
        for (const std::string_view end : ends) {
          if (at_name(end)) return block;
        }
        block.push_back(parse_statement());
        expect(TokenKind::block_end);
      }
    }
    if (ends.size() > 0) fail(fmt::format("the template ends before '{}'", *(ends.end() - 1)));
    return block;
  }

  void expect(TokenKind kind) {
    if (current().kind != kind) {
      fail(fmt::format("expected {}, got {}", describe(Token{kind, 0, {}}), describe(current())));
    }
    next();
  }

  // The body of a tag, up to and with the word `end`.
  Block parse_body(std::string_view end) {
    expect(TokenKind::block_end);
    Block body = parse_block({end});
    next();
    return body;
  }

  Statement parse_statement() {
    const Token tag = current();
    const std::string name = expect_name();
    if (name == "if") return {tag.line, parse_if()};
    if (name == "for") return {tag.line, parse_for()};
    if (name == "set") return parse_set(tag.line);
    if (name == "macro") return {tag.line, parse_macro()};
    if (name == "call") return {tag.line, parse_call()};
    if (name == "filter") return {tag.line, parse_filter_block()};
    if (name == "with") return {tag.line, parse_with()};
    if (name == "generation") return {tag.line, Scoped{parse_body("endgeneration")}};
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(fmt::format("'{}' stands outside of a loop", name));
      if (name == "break") return {tag.line, Break{}};
      return {tag.line, Continue{}};
    }
    fail(fmt::format("unknown tag '{}'", name));
  }

  If parse_if() {
    If result;
    do {
      ExpressionRef condition = parse_tuple(Conditions::forbidden);
      expect(TokenKind::block_end);
      result.branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
    } while (skip_name("elif"));
    if (skip_name("else")) {
      expect(TokenKind::block_end);
      result.otherwise = parse_block({"endif"});
    }
    next();
    return result;
  }

  For parse_for() {
    For result;
    result.target = parse_target();
    if (!skip_name("in")) fail(fmt::format("expected 'in', got {}", describe(current())));
    result.iterable = parse_tuple(Conditions::forbidden);
    if (skip_name("if")) result.condition = parse_expression();
    result.recursive = skip_name("recursive");
    expect(TokenKind::block_end);
    ++loops_;
    result.body = parse_block({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      expect(TokenKind::block_end);
      result.otherwise = parse_block({"endfor"});
    }
    next();
    return result;
  }

  Statement parse_set(uint32_t line) {
    Target target = parse_target();
    if (skip_op("=")) return {line, Set{std::move(target), parse_tuple()}};
    ExpressionRef filter;
    while (skip_op("|")) filter = parse_filter(std::move(filter));
    return {line, SetBlock{std::move(target), std::move(filter), parse_body("endset")}};
  }

  // Names and defaults within parentheses.
  std::vector<std::pair<std::string, ExpressionRef>> parse_parameters() {
    std::vector<std::pair<std::string, ExpressionRef>> parameters;
    expect_op("(");
    while (!at_op(")")) {
      if (!parameters.empty()) expect_op(",");
      if (at_op(")")) break;
      std::string name = expect_name();
      ExpressionRef value = skip_op("=") ? parse_expression() : nullptr;
      if (!value && !parameters.empty() && parameters.back().second) {
        fail("a parameter without a default follows one with a default");
      }
      parameters.emplace_back(std::move(name), std::move(value));
    }
    expect_op(")");
    return parameters;
  }

  // Parameters are parsed; the body follows.
  std::shared_ptr<const MacroDefinition> parse_macro_body(MacroDefinition macro, std::string_view end) {
    const std::vector<std::string> outer = std::exchange(special_names_, {});
    const uint32_t outer_loops = std::exchange(loops_, 0);
    macro.body = parse_body(end);
    macro.uses_varargs = mentions("varargs");
    macro.uses_kwargs = mentions("kwargs");
    macro.uses_caller = mentions("caller");
    special_names_.insert(special_names_.end(), outer.begin(), outer.end());
    loops_ = outer_loops;
    return std::make_shared<const MacroDefinition>(std::move(macro));
  }

  DefineMacro parse_macro() {
    MacroDefinition macro;
    macro.name = expect_name();
    macro.parameters = parse_parameters();
    return {parse_macro_body(std::move(macro), "endmacro")};
  }

  CallBlock parse_call() {
    MacroDefinition caller;
    caller.name = "caller";
    if (at_op("(")) caller.parameters = parse_parameters();
    ExpressionRef call = parse_expression();
    if (!std::holds_alternative<Invocation>(call->node)) fail("a call block must call something");
    return {parse_macro_body(std::move(caller), "endcall"), std::move(call)};
  }

  FilterBlock parse_filter_block() {
    ExpressionRef filter = parse_filter(nullptr);
    while (skip_op("|")) filter = parse_filter(std::move(filter));
    return {std::move(filter), parse_body("endfilter")};
  }

  With parse_with() {
    With result;
    while (current().kind != TokenKind::block_end) {
      if (!result.bindings.empty()) expect_op(",");
      Target target = parse_single_target();
      expect_op("=");
      result.bindings.emplace_back(std::move(target), parse_expression());
    }
    result.body = parse_body("endwith");
    return result;
  }

  uint32_t loops_ = 0;  // that a break here could leave
};

}  // namespace

Block parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    throw Error("the chat template is too long: {} bytes, where at most {} are read", source.size(),
                kMaxSourceBytes);
  }
  return Parser(tokenize(source)).run();
}

}  // namespace quire::jinja
