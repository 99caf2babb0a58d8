#include "openai/grammar_fields.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_budget.h"
#include "grammar/grammar_source.h"
#include "openai/api_error.h"

namespace quire {
namespace {

using grammar::GrammarSource;
using Found = std::vector<std::pair<std::string, GrammarSource>>;  // by field

GrammarSource schema_source(const OrderedJson& schema, const std::string& field) {
  if (schema.is_string()) return {GrammarSource::Kind::json_schema, schema.get<std::string>()};
  if (!schema.is_object() && !schema.is_boolean()) bad_field(field, "'{}' must be a JSON schema", field);
  return {GrammarSource::Kind::json_schema, schema.dump()};
}

void add_response_format(const JsonFields& fields, Found& found) {
  const auto format = fields.object("response_format");
  if (!format) return;
  const std::string type = format->text("type").value_or("text");
  if (type == "json_object") {
    const OrderedJson& schema = format->get("schema");  // as llama.cpp has it
    found.emplace_back("response_format", schema.is_null() ? GrammarSource::json_object()
                                                           : schema_source(schema, "response_format.schema"));
  } else if (type == "json_schema") {
    const auto inner = format->object("json_schema");
    const OrderedJson& schema = inner && inner->has("schema") ? inner->get("schema") : format->get("schema");
    if (schema.is_null()) bad_field("response_format", "'response_format.json_schema.schema' is missing");
    found.emplace_back("response_format", schema_source(schema, "response_format.json_schema.schema"));
  } else if (type != "text") {
    bad_field("response_format", "'response_format.type' must be text, json_object or json_schema, not '{}'",
              type);
  }
}

void add_named(const JsonFields& fields,
               const std::vector<std::pair<const char*, GrammarSource::Kind>>& names, Found& found) {
  for (const auto& [name, kind] : names) {
    if (!fields.has(name)) continue;
    const OrderedJson& value = fields.get(name);
    const std::string field = fields.name(name);
    if (kind == GrammarSource::Kind::json_schema) {
      found.emplace_back(field, schema_source(value, field));
    } else if (const auto text = fields.text(name); text && !text->empty()) {
      found.emplace_back(field, GrammarSource{kind, *text});
    }
  }
}

void add_choice(const JsonFields& fields, const char* name, Found& found) {
  if (!fields.has(name)) return;
  std::vector<std::string> texts;
  for (const OrderedJson& one : fields.get(name)) {
    if (!one.is_string()) bad_field(fields.name(name), "'{}' must be a list of texts", fields.name(name));
    texts.push_back(one.get<std::string>());
  }
  try {
    found.emplace_back(fields.name(name), GrammarSource::choice(texts));
  } catch (const Error& error) {
    bad_field(fields.name(name), "'{}': {}", fields.name(name), error.what());
  }
}

}  // namespace

std::shared_ptr<grammar::Grammar> compiled(const GrammarSource& source, const std::string& field,
                                           const ModelText& text) {
  try {
    return text.compile_grammar(source);
  } catch (const grammar::NoGrammarRoom& error) {
    throw ApiError(503, field, "no_room", error.what());
  } catch (const Error& error) {
    bad_field(field, "'{}': {}", field, error.what());
  }
}

std::shared_ptr<grammar::Grammar> read_grammar(const JsonFields& fields, const ModelText& text) {
  using Kind = GrammarSource::Kind;
  Found found;
  add_response_format(fields, found);
  add_named(fields,
            {{"guided_json", Kind::json_schema},
             {"json_schema", Kind::json_schema},
             {"guided_regex", Kind::regex},
             {"guided_grammar", Kind::grammar},
             {"grammar", Kind::grammar}},
            found);
  add_choice(fields, "guided_choice", found);
  if (const auto outputs = fields.object("structured_outputs")) {
    add_named(*outputs, {{"json", Kind::json_schema}, {"regex", Kind::regex}, {"grammar", Kind::grammar}},
              found);
    add_choice(*outputs, "choice", found);
    if (outputs->boolean("json_object").value_or(false))
      found.emplace_back("structured_outputs.json_object", GrammarSource::json_object());
  }
  if (found.empty()) return nullptr;
  if (found.size() > 1)
    bad_field(found[1].first, "'{}' and '{}' cannot both say what the answer keeps to", found[0].first,
              found[1].first);
  const auto& [field, source] = found[0];
  return compiled(source, field, text);
}

}  // namespace quire
