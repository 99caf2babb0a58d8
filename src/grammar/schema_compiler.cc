#include "grammar/schema_compiler.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace quire::grammar {
namespace {

constexpr uint32_t kMostIndentation = 40;
constexpr size_t kMostGoals = 50'000;

ExprId optional_space(ExprPool& pool) {
  ByteSet blank;
  blank.add(' ');
  blank.add('\t');
  const ExprId line[] = {pool.literal("\n"), pool.repeat(pool.bytes(blank), 0, kMostIndentation)};
  return pool.any_of({ExprPool::kEmpty, pool.literal(" "), pool.concat(line)});
}

// A schema and all that it stands on.
void add_base(const Schema* schema, std::set<const Schema*>& seen, Goal& found) {
  std::vector<const Schema*> todo{schema};
  while (!todo.empty()) {
    const Schema* one = todo.back();
    todo.pop_back();
    if (one == nullptr || !seen.insert(one).second) continue;
    found.push_back(one);
    todo.insert(todo.end(), one->all.begin(), one->all.end());
  }
}

}  // namespace

bool is_bare_name(std::string_view name) {
  constexpr size_t kMostBareBytes = 200;
  return !name.empty() && name.size() <= kMostBareBytes && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.' || c == '$' || uint8_t(c) >= 0x80;
  });
}

SchemaCompiler::SchemaCompiler(Rules& rules, SchemaStore& store, ValueSyntax syntax)
    : rules_(rules),
      pool_(rules.pool()),
      syntax_(std::move(syntax)),
      values_(pool_, syntax_.texts),
      plain_values_(pool_, TextForm::plain),
      validator_(values_),
      choices_(store),
      space_(optional_space(pool_)),
      allowed_(without(syntax_.never)) {}

ExprId SchemaCompiler::without(const std::vector<std::string>& never) {
  std::vector<ExprId> limits{ExprPool::kAll};
  for (const std::string& one : never) {
    const ExprId with[] = {ExprPool::kAll, pool_.literal(one), ExprPool::kAll};
    limits.push_back(pool_.complement(pool_.concat(with)));
  }
  return pool_.all_of(std::move(limits));
}

ExprId SchemaCompiler::word(const char* json, const char* python) {
  return syntax_.python_words ? pool_.any_of({pool_.literal(json), pool_.literal(python)})
                              : pool_.literal(json);
}

// A text between its quotes; kNothing if it may not stand there.
ExprId SchemaCompiler::text_of(const std::string& text) {
  const std::string content = values_.content(text);
  if (!pool_.matches(allowed_, content)) return ExprPool::kNothing;
  return pool_.literal(syntax_.quote + content + syntax_.quote);
}

ExprId SchemaCompiler::name_of(const std::string& name) {
  return syntax_.bare_names && is_bare_name(name) ? pool_.literal(name) : text_of(name);
}

Symbol SchemaCompiler::value(Goal goal) {
  std::erase(goal, nullptr);
  std::ranges::sort(goal);
  goal.erase(std::unique(goal.begin(), goal.end()), goal.end());
  const auto found = known_.find(goal);
  if (found != known_.end()) return found->second;
  if (known_.size() >= kMostGoals) throw Error("the schema is too complex: it combines too many parts");
  const Symbol symbol = rules_.add_rule();
  known_.emplace(goal, symbol);
  to_emit_.emplace_back(std::move(goal), symbol);
  return symbol;
}

void SchemaCompiler::finish() {
  while (!to_emit_.empty()) {
    const auto [goal, symbol] = std::move(to_emit_.back());
    to_emit_.pop_back();
    emit(goal, symbol);
  }
}

std::optional<std::vector<OrderedJson>> SchemaCompiler::listed(const Goal& goal) {
  std::set<const Schema*> seen;
  Goal base;
  for (const Schema* one : goal) add_base(one, seen, base);
  const auto listing = std::ranges::find_if(base, [](const Schema* one) { return one->allowed.has_value(); });
  if (listing == base.end()) return std::nullopt;
  std::vector<OrderedJson> left;
  for (const OrderedJson& value : *(*listing)->allowed) {
    if (std::ranges::all_of(goal, [&](const Schema* one) { return validator_.holds(one, value); }))
      left.push_back(value);
  }
  return left;
}

ExprId SchemaCompiler::literal(const OrderedJson& value) {
  if (value.is_string()) return text_of(value.get_ref<const std::string&>());
  if (value.is_null()) return word("null", "None");
  if (value.is_boolean()) return value.get<bool>() ? word("true", "True") : word("false", "False");
  if (value.is_number_float()) {
    const Decimal number = decimal_of(value);
    if (number.fraction.empty() && number.whole.size() < 16) return pool_.literal(number.text());
  }
  if (!value.is_structured()) return pool_.literal(value.dump());
  const bool is_array = value.is_array();
  std::vector<ExprId> parts{pool_.literal(is_array ? "[" : "{"), space_};
  bool is_first = true;
  for (const auto& [key, member] : value.items()) {
    if (!is_first) parts.push_back(comma());
    is_first = false;
    if (!is_array) parts.push_back(join({name_of(key), space_, pool_.literal(":"), space_}));
    parts.push_back(literal(member));
  }
  if (!is_first) parts.push_back(space_);
  parts.push_back(pool_.literal(is_array ? "]" : "}"));
  return pool_.concat(parts);
}

ExprId SchemaCompiler::literals(const std::vector<OrderedJson>& values) {
  std::vector<std::string> texts;
  std::vector<ExprId> parts;
  for (const OrderedJson& value : values) {
    if (value.is_string() && syntax_.usual()) {
      texts.push_back(json_text(value.get_ref<const std::string&>()));
    } else {
      parts.push_back(literal(value));
    }
  }
  parts.push_back(pool_.literals(std::move(texts)));
  return pool_.any_of(std::move(parts));
}

void SchemaCompiler::emit(const Goal& goal, Symbol symbol) {
  if (const auto values = listed(goal)) {
    rules_.add(symbol, {Symbol::terminal(literals(*values))});
    return;
  }
  std::set<Goal> seen;  // as sets: the order says which member comes first, and the first says it
  for (Goal& leaves : choices_.alternatives(goal)) {
    Goal sorted = leaves;
    std::ranges::sort(sorted);
    if (seen.insert(std::move(sorted)).second) emit_types(leaves, symbol);
  }
}

void SchemaCompiler::emit_types(const Goal& leaves, Symbol symbol) {
  if (const auto values = listed(leaves)) {
    // What chose between the alternatives is decided: the keywords of the leaves are all there is.
    rules_.add(symbol, {Symbol::terminal(literals(*values))});
    return;
  }
  JsonTypes types = kAnyType;
  for (const Schema* leaf : leaves) types &= leaf->types;
  const auto is_excluded = [&](const OrderedJson& value) {
    return std::ranges::any_of(leaves, [&](const Schema* leaf) {
      return std::ranges::any_of(leaf->excluded,
                                 [&](const OrderedJson& other) { return is_same_value(value, other); });
    });
  };
  std::vector<ExprId> texts;
  if ((types & kNull) != 0 && !is_excluded(nullptr)) texts.push_back(literal(nullptr));
  for (const bool value : {false, true}) {
    if ((types & kBoolean) != 0 && !is_excluded(value)) texts.push_back(literal(value));
  }
  if ((types & kNumber) != 0) texts.push_back(values_.number(leaves, types));
  if ((types & kString) != 0) {
    ExprId content = values_.string_content(leaves);
    if (!syntax_.never.empty()) content = pool_.all_of({content, allowed_});
    texts.push_back(join({pool_.literal(syntax_.quote), content, pool_.literal(syntax_.quote)}));
  }
  rules_.add(symbol, {Symbol::terminal(pool_.any_of(std::move(texts)))});
  refuse_excluded(leaves, types);
  if ((types & kArray) != 0) rules_.add(symbol, {array(leaves)});
  if ((types & kObject) != 0)
    rules_.add(
        symbol,
        {object(leaves, usual_object([this](const Goal& goal, const std::string&) { return value(goal); }))});
}

void SchemaCompiler::refuse_excluded(const Goal& leaves, JsonTypes types) {
  for (const Schema* leaf : leaves) {
    for (const OrderedJson& value : leaf->excluded) {
      if (value.is_structured() && (types & type_of(value)) != 0)
        throw Error(
            "the schema's keyword 'not' (or oneOf) cannot be used over lists or objects in 'enum' and "
            "'const'");
    }
  }
}

Symbol SchemaCompiler::object_as(const Goal& goal, const ObjectSyntax& syntax) {
  if (listed(goal)) throw Error("the schema lists whole objects with 'enum' or 'const'");
  const Symbol symbol = rules_.add_rule();
  for (const Goal& leaves : choices_.alternatives(goal)) {
    JsonTypes types = kAnyType;
    for (const Schema* leaf : leaves) types &= leaf->types;
    if (listed(leaves)) throw Error("the schema lists whole objects with 'enum' or 'const'");
    if ((types & kObject) == 0) continue;
    refuse_excluded(leaves, kObject);
    rules_.add(symbol, {object(leaves, syntax)});
  }
  return symbol;
}

ExprId SchemaCompiler::plain_texts(const Goal& goal) {
  std::vector<ExprId> parts;
  const auto add = [&](const std::vector<OrderedJson>& values) {
    std::vector<std::string> texts;
    for (const OrderedJson& value : values) {
      if (value.is_string()) texts.push_back(value.get<std::string>());
    }
    parts.push_back(pool_.literals(std::move(texts)));
  };
  if (const auto values = listed(goal)) {
    add(*values);
    return pool_.any_of(std::move(parts));
  }
  for (const Goal& leaves : choices_.alternatives(goal)) {
    JsonTypes types = kAnyType;
    for (const Schema* leaf : leaves) types &= leaf->types;
    if ((types & kString) == 0) continue;
    if (const auto values = listed(leaves)) {
      add(*values);
    } else {
      parts.push_back(plain_values_.string_content(leaves));
    }
  }
  return pool_.any_of(std::move(parts));
}

Rules read_json_schema(const OrderedJson& document) {
  SchemaStore store;
  Rules rules;
  const Schema* schema = read_schema(document, store);
  SchemaCompiler compiler(rules, store);
  const Symbol root = compiler.value({schema});
  compiler.finish();
  try {
    rules.finish(root);
  } catch (const Error&) {
    throw Error("the schema allows no value at all, or none that could be written in a bounded text");
  }
  return rules;
}

}  // namespace quire::grammar
