#pragma once

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/model_text.h"

namespace quire::cli {

// --schema, --grammar and --regex: what an answer has to keep to.
struct GrammarFlags {
  std::string schema_file, grammar_file, regex;

  void add_to(CLI::App& command);
  // Null if none was given. Throws Error if it cannot be followed.
  std::shared_ptr<grammar::Grammar> grammar(const ModelText& text) const;
};

}  // namespace quire::cli
