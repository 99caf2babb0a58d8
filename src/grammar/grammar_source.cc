#include "grammar/grammar_source.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/grammar_reader.h"
#include "grammar/regex_reader.h"
#include "grammar/schema_compiler.h"

namespace quire::grammar {
namespace {

constexpr size_t kMostChoices = 10'000;

OrderedJson parse_schema(const std::string& text) {
  return parse_ordered_json(text, "the schema", {.depth = 100, .tree_bytes = uint64_t(256) << 20});
}

Rules read_regex_source(const std::string& pattern) {
  Rules rules;
  const ExprId text = read_regex(rules.pool(), pattern, {});
  rules.finish(Symbol::terminal(text));
  return rules;
}

CallRules calls_of(const std::string& text) {
  const OrderedJson json = parse_schema(text);
  CallRules calls;
  const auto bytes = [&](const char* field) {
    std::string result;
    for (const OrderedJson& byte : json.at(field)) result += char(byte.get<uint8_t>());
    return result;
  };
  calls.form = {bytes("before"), bytes("between"), bytes("after"), bytes("separator")};
  calls.trigger = bytes("trigger");
  calls.place = json.at("alone").get<bool>() ? CallPlace::alone : CallPlace::after_text;
  calls.most_calls = json.at("most").get<uint32_t>();
  calls.strict = json.at("strict").get<bool>();
  for (const OrderedJson& tool : json.at("tools")) calls.tools.push_back({tool.at(0).get<std::string>(), tool.at(1)});
  return calls;
}

}  // namespace

GrammarSource GrammarSource::choice(const std::vector<std::string>& texts) {
  if (texts.empty() || texts.size() > kMostChoices)
    throw Error("there must be 1 to {} texts to choose from, not {}", kMostChoices, texts.size());
  std::string pattern;
  for (const std::string& text : texts) {
    if (!pattern.empty()) pattern += '|';
    for (const char c : text) {
      const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      if (uint8_t(c) < 0x80 && !is_letter) {
        pattern += fmt::format("\\x{:02x}", uint8_t(c));
      } else {
        pattern += c;
      }
    }
  }
  return {Kind::regex, std::move(pattern)};
}

GrammarSource GrammarSource::calls(const CallRules& calls) {
  const auto bytes = [](const std::string& text) {
    OrderedJson list = OrderedJson::array();
    for (const char byte : text) list.push_back(uint8_t(byte));
    return list;
  };
  OrderedJson tools = OrderedJson::array();
  for (const Tool& tool : calls.tools) tools.push_back({tool.name, tool.parameters});
  const OrderedJson json = {{"before", bytes(calls.form.before)},
                            {"between", bytes(calls.form.between)},
                            {"after", bytes(calls.form.after)},
                            {"separator", bytes(calls.form.separator)},
                            {"trigger", bytes(calls.trigger)},
                            {"alone", calls.place == CallPlace::alone},
                            {"most", calls.most_calls},
                            {"strict", calls.strict},
                            {"tools", std::move(tools)}};
  return {Kind::calls, json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

Rules read_calls(const CallRules& calls) {
  if (calls.tools.empty()) throw Error("there is no tool to call");
  Rules rules;
  ExprPool& pool = rules.pool();
  SchemaStore store;
  SchemaCompiler compiler(rules, store);
  Schema* object = store.make();
  object->types = kObject;
  const Symbol call = rules.add_rule();
  for (const Tool& tool : calls.tools) {
    Goal goal{object};
    if (calls.strict && !tool.parameters.is_null()) goal.push_back(read_schema(tool.parameters, store));
    const std::string start = calls.form.before + json_content(tool.name) + calls.form.between;
    rules.add(call, {rules.literal(start), compiler.value(std::move(goal)), rules.literal(calls.form.after)});
  }
  compiler.finish();
  const Symbol next = rules.add_rule();
  rules.add(next, {rules.literal(calls.form.separator), call});
  const Symbol more = rules.repeated(next, 0, calls.most_calls == ExprPool::kNoMost ? calls.most_calls : calls.most_calls - 1);
  Symbol root = rules.add_rule();
  rules.add(root, {call, more});
  if (calls.place == CallPlace::after_text) {
    if (calls.trigger.empty() || !calls.form.before.starts_with(calls.trigger))
      throw Error("what begins a tool call is not what triggers it");
    const ExprId byte = pool.bytes(ByteSet::of(0, 255));
    const ExprId special[] = {pool.bytes(ByteSet::of(0xFF, 0xFF)), pool.repeat(byte, 3, 3)};
    const ExprId piece = pool.any_of({utf8_of(pool, CodePoints::all()), pool.concat(special)});
    const ExprId with[] = {ExprPool::kAll, pool.literal(calls.trigger), ExprPool::kAll};
    const Symbol text = Symbol::terminal(
        pool.all_of({pool.repeat(piece, 0, ExprPool::kNoMost), pool.complement(pool.concat(with))}));
    const Symbol spoken = rules.add_rule();
    rules.add(spoken, {text});
    rules.add(spoken, {text, root, text});
    root = spoken;
  }
  rules.finish(root);
  return rules;
}

Rules read_source(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarSource::Kind::json_schema:
      return read_json_schema(parse_schema(source.text));
    case GrammarSource::Kind::regex:
      return read_regex_source(source.text);
    case GrammarSource::Kind::grammar:
      return read_grammar(source.text);
    case GrammarSource::Kind::calls:
      break;
  }
  return read_calls(calls_of(source.text));
}

GrammarCompiler::GrammarCompiler(std::vector<std::string> token_bytes)
    : tokens_(std::make_shared<TokenTrie>(std::move(token_bytes))) {}

std::shared_ptr<Grammar> GrammarCompiler::compile(const GrammarSource& source) {
  if (source.text.size() > kMostSourceBytes)
    throw Error("the grammar has {} bytes; at most {} are allowed", source.text.size(), kMostSourceBytes);
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, source, [](const auto& entry) -> const GrammarSource& { return entry.first; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().second;
    }
  }
  auto grammar = std::make_shared<Grammar>(read_source(source), tokens_);
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(source, grammar);
  if (kept_.size() > kKept) kept_.pop_back();
  return grammar;
}

}  // namespace quire::grammar
