#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/pruning/pruning_options.h"

namespace quire::cli {

// What is kept of a prompt's keys and values: --kv-keep and what belongs to it.
struct PruningFlags {
  void add_to(CLI::App& command);
  // Nothing without --kv-keep. Beside the model it finds what a policy needs to know of it. Ends the program with a usage error if a value is wrong.
  std::optional<PruningOptions> options(const std::string& model_path) const;

  // The evaluator heads that are stored beside the model; none if there is no such file.
  static EvaluatorHeads known_heads(const std::string& model_path);

  std::string keep;
  std::string policy = "snap";
  std::optional<uint32_t> window;  // nothing: as is usual with the policy
};

}  // namespace quire::cli
