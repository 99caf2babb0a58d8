#include "cli/grammar_flags.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/model_options.h"
#include "grammar/grammar_source.h"

namespace quire::cli {

void GrammarFlags::add_to(CLI::App& command) {
  auto* schema =
      command.add_option("--schema", schema_file, "a file with a JSON schema that the answer keeps to");
  auto* rules =
      command.add_option("--grammar", grammar_file,
                         "a file with a grammar that the answer keeps to: GBNF (root ::= ...) or Lark");
  auto* pattern = command.add_option("--regex", regex, "a regular expression that the whole answer matches");
  schema->excludes(rules)->excludes(pattern);
  rules->excludes(pattern);
}

std::shared_ptr<grammar::Grammar> GrammarFlags::grammar(const ModelText& text) const {
  using grammar::GrammarSource;
  const auto compile = [&](GrammarSource::Kind kind, const std::string& words, const std::string& name) {
    try {
      return text.compile_grammar({kind, words});
    } catch (const Error& error) {
      throw Error("{}: {}", name, error.what());
    }
  };
  if (!schema_file.empty())
    return compile(GrammarSource::Kind::json_schema, read_text(schema_file), schema_file);
  if (!grammar_file.empty())
    return compile(GrammarSource::Kind::grammar, read_text(grammar_file), grammar_file);
  if (!regex.empty()) return compile(GrammarSource::Kind::regex, regex, "--regex");
  return nullptr;
}

}  // namespace quire::cli
