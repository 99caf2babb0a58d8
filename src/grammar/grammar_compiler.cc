#include "grammar/grammar_compiler.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/call_rules.h"
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
  return read_calls(calls_of_source(source.text));
}

GrammarCompiler::GrammarCompiler(std::vector<std::string> token_bytes)
    : tokens_(std::make_shared<TokenTrie>(std::move(token_bytes))) {}

std::shared_ptr<Grammar> GrammarCompiler::compile(const GrammarSource& source) {
  if (source.text.size() > kMostSourceBytes)
    throw Error("the grammar has {} bytes; at most {} are allowed", source.text.size(), kMostSourceBytes);
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(
        kept_, source, [](const auto& entry) -> const GrammarSource& { return entry.first; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().second;
    }
  }
  auto grammar = std::make_shared<Grammar>(read_source(source), tokens_, source, budget_);
  const std::lock_guard lock(mutex_);
  drop_while_over();
  if (budget_->is_over()) {
    budget_->count_refused();
    throw NoGrammarRoom("too many different grammars are in use at once: they have {} MiB of memory",
                        budget_->figures().most_bytes >> 20);
  }
  kept_.emplace_front(source, grammar);
  if (kept_.size() > kKept) kept_.pop_back();
  return grammar;
}

// Those that nobody asked for lately are compiled again if somebody does.
void GrammarCompiler::drop_while_over() {
  while (!kept_.empty() && budget_->is_over()) kept_.pop_back();
}

}  // namespace quire::grammar
