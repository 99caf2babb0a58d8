#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/pruning/budget_options.h"

namespace quire::cli {

// How many rows of keys and values a sequence may have: --kv-budget and what belongs to it.
struct BudgetFlags {
  void add_to(CLI::App& command);
  // And --kv-policy and --kv-window, of commands that do not prune prompts.
  void add_choice_to(CLI::App& command);
  // Nothing without --kv-budget. Ends the program with a usage error if a value is wrong. `policy` and `window`: as they were given.
  std::optional<BudgetOptions> options(const std::string& policy, std::optional<uint32_t> window) const;
  std::optional<BudgetOptions> options() const { return options(policy_, window_); }
  // The first tokens that always stay were not said: those of the system's words do.
  bool pins_system() const { return !pinned; }

  std::string budget;
  std::optional<uint32_t> pinned;

 private:
  std::string policy_ = "snap";
  std::optional<uint32_t> window_;
};

}  // namespace quire::cli
