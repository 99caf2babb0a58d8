#include "grammar/call_rules.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/code_points.h"
#include "grammar/regex_reader.h"
#include "grammar/schema_compiler.h"

namespace quire::grammar {
namespace {

constexpr std::pair<const char*, std::string CallForm::*> kLiterals[] = {
    {"before", &CallForm::before},
    {"between", &CallForm::between},
    {"after", &CallForm::after},
    {"separator", &CallForm::separator},
    {"key_open", &CallForm::key_open},
    {"key_end", &CallForm::key_end},
    {"key_end_of_json", &CallForm::key_end_of_json},
    {"value_end", &CallForm::value_end},
    {"quote", &CallForm::quote}};

JsonTypes type_named(const std::string& name) {
  return name == "null"      ? kNull
         : name == "boolean" ? kBoolean
         : name == "integer" ? kInteger
         : name == "number"  ? kNumber
         : name == "string"  ? kString
         : name == "array"   ? kArray
         : name == "object"  ? kObject
                             : JsonTypes(0);
}

// Calls of tools in one form, as rules.
class CallWriter {
 public:
  CallWriter(Rules& rules, const CallRules& calls)
      : rules_(rules),
        pool_(rules.pool()),
        calls_(calls),
        form_(calls.form),
        compiler_(rules, store_, syntax()) {}

  Symbol any_call() {
    const Symbol call = rules_.add_rule();
    Schema* object = store_.make();
    object->types = kObject;
    if (form_.body == CallForm::Body::tags && form_.never.empty())
      throw Error("this model's calls do not say where a value ends");
    for (const Tool& tool : calls_.tools) {
      Goal goal{object};
      if (calls_.strict && !tool.parameters.is_null()) goal.push_back(read_schema(tool.parameters, store_));
      const bool in_json = form_.body == CallForm::Body::json;
      const std::string name = in_json ? json_content(tool.name) : tool.name;
      if (!in_json && !is_bare_name(tool.name))
        throw Error("a tool named '{}' cannot be called as this model writes calls", tool.name);
      rules_.add(call, {Symbol::terminal(written(form_.before + name + form_.between)), arguments(tool, goal),
                        Symbol::terminal(written(form_.after))});
    }
    compiler_.finish();
    return call;
  }

 private:
  ValueSyntax syntax() const {
    switch (form_.body) {
      case CallForm::Body::json:
        return {.never = form_.never};
      case CallForm::Body::tags:  // values that are no texts are JSON
        return {.texts = TextForm::json_one, .never = form_.never};
      case CallForm::Body::loose:
        if (form_.quote.empty()) return {.texts = TextForm::json_one, .bare_names = true};
        return {.texts = TextForm::plain, .quote = form_.quote, .never = form_.never, .bare_names = true};
      case CallForm::Body::python:
        return {.texts = TextForm::json_one, .python_words = true};
    }
    return {};
  }

  // A literal with what may stand in it.
  ExprId written(std::string_view literal, const std::string& key = {}) {
    std::vector<ExprId> parts{ExprPool::kEmpty};
    std::string plain;
    const auto settle = [&] {
      if (!plain.empty()) parts.push_back(pool_.literal(plain));
      plain.clear();
    };
    for (size_t i = 0; i < literal.size(); ++i) {
      if (uint8_t(literal[i]) == 0xFF) {  // a special token
        plain += literal.substr(i, 4);
        i += 3;
      } else if (literal[i] == kItsKey) {
        plain += key;
      } else if (literal[i] == kAnyWord) {
        settle();
        parts.push_back(read_regex(pool_, "[A-Za-z0-9]{1,9}", {}));
      } else {
        plain += literal[i];
      }
    }
    settle();
    return pool_.concat(parts);
  }

  Symbol arguments(const Tool& tool, const Goal& goal) {
    const auto types = [&tool](const std::string& name) {
      const auto found = std::ranges::find(tool.types, name, [](const auto& entry) { return entry.first; });
      return found == tool.types.end() ? std::vector<std::string>() : found->second;
    };
    // Texts that would be taken for something else may not stand where that is so.
    const auto kept_apart = [this, types](const Goal& of, const std::string& name) {
      const std::vector<std::string> known = types(name);
      Goal goal_here = of;
      if (!known.empty() && std::ranges::find(known, "string") == known.end())
        goal_here.push_back(only(JsonTypes(kAnyType & ~kString)));
      return compiler_.value(std::move(goal_here));
    };
    switch (form_.body) {
      case CallForm::Body::json:
        return compiler_.value(goal);
      case CallForm::Body::loose:
        return compiler_.object_as(goal, compiler_.usual_object(kept_apart));
      case CallForm::Body::python: {
        ObjectSyntax syntax = compiler_.usual_object(kept_apart);
        syntax.open = pool_.literal("(");
        syntax.close = syntax.close_after_member = pool_.literal(")");
        syntax.name_open = ExprPool::kEmpty;
        syntax.name_close = pool_.literal("=");
        syntax.bare_names = true;
        syntax.may_quote = false;
        return compiler_.object_as(goal, syntax);
      }
      case CallForm::Body::tags:
        break;
    }
    ObjectSyntax syntax;
    syntax.name_open = written(form_.key_open);
    syntax.others = form_.value_end.find(kItsKey) == std::string::npos &&
                    form_.key_end.find(kItsKey) == std::string::npos;
    syntax.value = [this, types](const Goal& of, const std::string& name) {
      return tag_value(of, name, types(name));
    };
    syntax.value_close = [this](const std::string& name) {
      return written((form_.value_on_lines ? "\n" : "") + form_.value_end, name);
    };
    return compiler_.object_as(goal, syntax);
  }

  Schema* only(JsonTypes types) {
    Schema*& known = only_[types];
    if (known == nullptr) known = store_.make();
    known->types = types;
    return known;
  }

  // From behind the key on: a text as it is, or a value as JSON; whoever reads it tells them apart by their look and by `known`.
  Symbol tag_value(const Goal& goal, const std::string& name, const std::vector<std::string>& known) {
    JsonTypes others = 0;
    for (const std::string& type : known) others |= type_named(type);
    const bool texts_alone = others == kString;
    others = (others == 0 ? kAnyType : others) & JsonTypes(~kString);
    const std::string line = form_.value_on_lines ? "\n" : "";
    const Symbol symbol = rules_.add_rule();
    if (others != 0) {
      Goal json = goal;
      json.push_back(only(others));
      const std::string& end = form_.key_end_of_json.empty() ? form_.key_end : form_.key_end_of_json;
      rules_.add(symbol, {Symbol::terminal(written(end + line, name)), compiler_.value(std::move(json))});
    }
    Goal plain = goal;
    plain.push_back(only(kString));
    std::vector<ExprId> limits{compiler_.plain_texts(plain), compiler_.without(form_.never)};
    const auto never = [&](const char* pattern) {
      limits.push_back(
          pool_.complement(read_regex(pool_, pattern, {.ignore_case = true, .dot_is_newline_too = true})));
    };
    never("<!\\[CDATA\\[.*");
    if (!texts_alone) {
      never("[ \\t\\r\\n\\v\\f]*[0-9+.\\-\\[{(].*");
      never("[ \\t\\r\\n\\v\\f]*(true|false|null|none|inf|nan|infinity)[ \\t\\r\\n\\v\\f]*");
    }
    if (!form_.value_on_lines) {  // space at its edges may be the form's
      never("[ \\t\\r\\n].*");
      never(".*[ \\t\\r\\n]");
    }
    rules_.add(symbol, {Symbol::terminal(written(form_.key_end + line, name)),
                        Symbol::terminal(pool_.all_of(std::move(limits)))});
    return symbol;
  }

  Rules& rules_;
  ExprPool& pool_;
  const CallRules& calls_;
  const CallForm& form_;
  SchemaStore store_;
  SchemaCompiler compiler_;
  std::map<JsonTypes, Schema*> only_;
};

}  // namespace

GrammarSource call_source(const CallRules& calls) {
  const auto bytes = [](const std::string& text) {
    OrderedJson list = OrderedJson::array();
    for (const char byte : text) list.push_back(uint8_t(byte));
    return list;
  };
  OrderedJson tools = OrderedJson::array();
  for (const Tool& tool : calls.tools) {
    OrderedJson types = OrderedJson::array();
    for (const auto& [name, names] : tool.types) types.push_back({name, names});
    tools.push_back({tool.name, tool.parameters, std::move(types)});
  }
  OrderedJson json = {{"body", int(calls.form.body)},    {"on_lines", calls.form.value_on_lines},
                      {"trigger", bytes(calls.trigger)}, {"alone", calls.place == CallPlace::alone},
                      {"most", calls.most_calls},        {"strict", calls.strict},
                      {"or_else", calls.or_else},        {"tools", std::move(tools)}};
  for (const auto& [name, literal] : kLiterals) {
    if (!(calls.form.*literal).empty()) json[name] = bytes(calls.form.*literal);
  }
  for (const std::string& one : calls.form.never) json["never"].push_back(bytes(one));
  return {GrammarSource::Kind::calls, json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

CallRules calls_of_source(const std::string& text) {
  const OrderedJson json =
      parse_ordered_json(text, "the tools", {.depth = 110, .tree_bytes = uint64_t(256) << 20});
  CallRules calls;
  const auto text_of = [](const OrderedJson& bytes) {
    std::string result;
    for (const OrderedJson& byte : bytes) result += char(byte.get<uint8_t>());
    return result;
  };
  const auto bytes = [&](const char* field) {
    return json.contains(field) ? text_of(json.at(field)) : std::string();
  };
  for (const auto& [name, literal] : kLiterals) calls.form.*literal = bytes(name);
  if (json.contains("never")) {
    for (const OrderedJson& one : json.at("never")) calls.form.never.push_back(text_of(one));
  }
  calls.form.body = CallForm::Body(std::min(json.value("body", 0), int(CallForm::Body::python)));
  calls.form.value_on_lines = json.value("on_lines", false);
  calls.trigger = bytes("trigger");
  calls.place = json.at("alone").get<bool>() ? CallPlace::alone : CallPlace::after_text;
  calls.most_calls = json.at("most").get<uint32_t>();
  calls.strict = json.at("strict").get<bool>();
  if (json.contains("or_else")) calls.or_else = json.at("or_else");
  for (const OrderedJson& tool : json.at("tools")) {
    Tool& read = calls.tools.emplace_back();
    read.name = tool.at(0).get<std::string>();
    read.parameters = tool.at(1);
    if (tool.size() <= 2) continue;
    for (const OrderedJson& one : tool.at(2))
      read.types.emplace_back(one.at(0).get<std::string>(), one.at(1).get<std::vector<std::string>>());
  }
  return calls;
}

Rules read_calls(const CallRules& calls) {
  if (calls.tools.empty()) throw Error("there is no tool to call");
  Rules rules;
  ExprPool& pool = rules.pool();
  CallWriter writer(rules, calls);
  const Symbol call = writer.any_call();
  const Symbol next = rules.add_rule();
  rules.add(next, {rules.literal(calls.form.separator), call});
  const Symbol more =
      rules.repeated(next, 0, calls.most_calls == kAnyNumber ? calls.most_calls : calls.most_calls - 1);
  Symbol root = rules.add_rule();
  rules.add(root, {call, more});
  SchemaStore store;
  if (calls.place == CallPlace::alone && !calls.or_else.is_null()) {
    SchemaCompiler compiler(rules, store);
    const Symbol value = compiler.value({read_schema(calls.or_else, store)});
    compiler.finish();
    rules.add(root, {value});
  }
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
