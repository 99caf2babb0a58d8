#include "cli/pruning_flags.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/model_options.h"
#include "eval/evaluator_heads.h"

namespace quire::cli {

void PruningFlags::add_to(CLI::App& command) {
  std::string names;
  for (const PruningPolicy known : kPruningPolicies)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(known));
  command.add_option(
      "--kv-keep", keep,
      "keep only so much of the prompt's keys and values: a share (50%) or a number of tokens");
  command.add_option("--kv-policy", policy, "how --kv-keep chooses: " + names)->capture_default_str();
  command.add_option("--kv-window", window,
                     "the last tokens of a prompt that --kv-keep always keeps (default: 32, with zip 4)");
}

std::optional<PruningOptions> PruningFlags::options(const std::string& model_path) const {
  if (keep.empty()) return std::nullopt;
  PruningOptions pruning;
  try {
    read_kept(keep, pruning);
    pruning.policy = pruning_policy_from_name(policy);
    pruning.window = window.value_or(usual_window(pruning.policy));
    if (pruning.policy == PruningPolicy::evaluator)
      pruning.evaluator = read_evaluator_heads(evaluator_heads_path(model_path));
    pruning.check();
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
  return pruning;
}

EvaluatorHeads PruningFlags::known_heads(const std::string& model_path) {
  const std::string path = evaluator_heads_path(model_path);
  std::error_code error;
  return std::filesystem::exists(path, error) ? read_evaluator_heads(path) : EvaluatorHeads{};
}

}  // namespace quire::cli
