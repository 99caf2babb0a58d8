#include "grammar/call_rules.h"

#include "base/error.h"
#include "grammar/code_points.h"
#include "grammar/schema_compiler.h"

namespace quire::grammar {

GrammarSource call_source(const CallRules& calls) {
  const auto bytes = [](const std::string& text) {
    OrderedJson list = OrderedJson::array();
    for (const char byte : text) list.push_back(uint8_t(byte));
    return list;
  };
  OrderedJson tools = OrderedJson::array();
  for (const Tool& tool : calls.tools) tools.push_back({tool.name, tool.parameters});
  const OrderedJson json = {{"before", bytes(calls.form.before)}, {"between", bytes(calls.form.between)},
                            {"after", bytes(calls.form.after)},   {"separator", bytes(calls.form.separator)},
                            {"trigger", bytes(calls.trigger)},    {"alone", calls.place == CallPlace::alone},
                            {"most", calls.most_calls},           {"strict", calls.strict},
                            {"tools", std::move(tools)}};
  return {GrammarSource::Kind::calls, json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

CallRules calls_of_source(const std::string& text) {
  const OrderedJson json =
      parse_ordered_json(text, "the tools", {.depth = 110, .tree_bytes = uint64_t(256) << 20});
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
  for (const OrderedJson& tool : json.at("tools"))
    calls.tools.push_back({tool.at(0).get<std::string>(), tool.at(1)});
  return calls;
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
  const Symbol more = rules.repeated(
      next, 0, calls.most_calls == ExprPool::kNoMost ? calls.most_calls : calls.most_calls - 1);
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

}  // namespace quire::grammar
