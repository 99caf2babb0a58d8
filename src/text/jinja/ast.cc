#include "text/jinja/ast.h"

#include <algorithm>

namespace quire::jinja {
namespace {

uint32_t depth_of(const ExpressionRef& expression) {
  return expression ? expression->depth : 0;
}

uint32_t depth_of(const std::vector<ExpressionRef>& expressions) {
  uint32_t depth = 0;
  for (const auto& expression : expressions) depth = std::max(depth, depth_of(expression));
  return depth;
}

template <class First>
uint32_t depth_of(const std::vector<std::pair<First, ExpressionRef>>& pairs) {
  uint32_t depth = 0;
  for (const auto& pair : pairs) depth = std::max(depth, depth_of(pair.second));
  return depth;
}

uint32_t depth_of(const CallArguments& arguments) {
  return std::max({depth_of(arguments.positional), depth_of(arguments.named), depth_of(arguments.rest),
                   depth_of(arguments.named_rest)});
}

uint32_t depth_of(const Constant&) {
  return 0;
}
uint32_t depth_of(const Name&) {
  return 0;
}
uint32_t depth_of(const ListLiteral& node) {
  return depth_of(node.items);
}
uint32_t depth_of(const DictLiteral& node) {
  uint32_t depth = depth_of(node.entries);
  for (const auto& entry : node.entries) depth = std::max(depth, depth_of(entry.first));
  return depth;
}
uint32_t depth_of(const Attribute& node) {
  return depth_of(node.object);
}
uint32_t depth_of(const Item& node) {
  return std::max(depth_of(node.object), depth_of(node.key));
}
uint32_t depth_of(const Slice& node) {
  return std::max({depth_of(node.object), depth_of(node.begin), depth_of(node.end), depth_of(node.step)});
}
uint32_t depth_of(const Invocation& node) {
  return std::max(depth_of(node.callee), depth_of(node.arguments));
}
uint32_t depth_of(const FilterUse& node) {
  return std::max(depth_of(node.value), depth_of(node.arguments));
}
uint32_t depth_of(const TestUse& node) {
  return std::max(depth_of(node.value), depth_of(node.arguments));
}
uint32_t depth_of(const Unary& node) {
  return depth_of(node.operand);
}
uint32_t depth_of(const Binary& node) {
  return std::max(depth_of(node.left), depth_of(node.right));
}
uint32_t depth_of(const Logic& node) {
  return depth_of(node.operands);
}
uint32_t depth_of(const Concatenation& node) {
  return depth_of(node.parts);
}
uint32_t depth_of(const Comparison& node) {
  return std::max(depth_of(node.first), depth_of(node.rest));
}
uint32_t depth_of(const Conditional& node) {
  return std::max({depth_of(node.condition), depth_of(node.then), depth_of(node.otherwise)});
}

}  // namespace

uint32_t depth_below(const ExpressionNode& node) {
  return std::visit([](const auto& each) { return depth_of(each); }, node);
}

}  // namespace quire::jinja
