#include "cli/budget_flags.h"

#include "base/error.h"
#include "cli/model_options.h"

namespace quire::cli {

void BudgetFlags::add_to(CLI::App& command) {
  command.add_option(
      "--kv-budget", budget,
      "most rows of keys and values that prompt and answer may have, or bytes (2000, 64M): those "
      "that are looked at least go when it is full, and the text may be longer than the context");
  command.add_option(
      "--kv-pin", pinned,
      "with --kv-budget: the first tokens that always stay (default: the system message, and 4 "
      "at least)");
}

void BudgetFlags::add_choice_to(CLI::App& command) {
  command.add_option("--kv-policy", policy_, "how --kv-budget chooses: snap, or streaming (the oldest go)")
      ->capture_default_str();
  command.add_option("--kv-window", window_, "the last tokens that --kv-budget always keeps (default: 32)");
}

std::optional<BudgetOptions> BudgetFlags::options(const std::string& policy,
                                                  std::optional<uint32_t> window) const {
  if (budget.empty()) {
    if (pinned) wrong_usage("--kv-pin says what stays of a --kv-budget, and there is none");
    return std::nullopt;
  }
  BudgetOptions options;
  try {
    read_budget(budget, options);
    options.policy = pruning_policy_from_name(policy);
    options.window = window.value_or(options.window);
    options.pinned = pinned.value_or(options.pinned);
    options.check();
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
  return options;
}

}  // namespace quire::cli
