#include "cli/pruning_flags.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/model_options.h"
#include "eval/keep_chooser.h"

namespace quire::cli {

void PruningFlags::add_to(CLI::App& command) {
  std::string names;
  for (const PruningPolicy known : kPruningPolicies)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(known));
  command.add_option(
      "--kv-keep", keep,
      "keep only so much of the prompt's keys and values: a share (50%), a number of tokens, or auto: the "
      "smallest cache that was measured to keep --kv-target of the answers (quire kv-check --curve)");
  command
      .add_option("--kv-target", target, "with --kv-keep auto: the share of the answers that is to be kept")
      ->capture_default_str();
  command.add_option("--kv-policy", policy, "how --kv-keep chooses: " + names)->capture_default_str();
  command.add_option("--kv-window", window,
                     "the last tokens of a prompt that --kv-keep always keeps (default: 32, with zip 4)");
}

std::optional<PruningOptions> PruningFlags::options() const {
  if (keep.empty() || is_auto()) return std::nullopt;
  PruningOptions pruning;
  try {
    read_kept(keep, pruning);
    pruning.policy = pruning_policy_from_name(policy);
    pruning.window = window.value_or(usual_window(pruning.policy));
    pruning.check();
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
  return pruning;
}

double PruningFlags::wanted_answers() const {
  try {
    return read_target(target);
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
}

}  // namespace quire::cli
