#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/pruning/pruning_options.h"

namespace quire::cli {

// What is kept of a prompt's keys and values: --kv-keep and what belongs to it.
struct PruningFlags {
  void add_to(CLI::App& command);
  // Nothing without --kv-keep, and with auto. Which heads an evaluator is, is not known yet: that needs the model. Ends the program with a usage
  // error if a value is wrong.
  std::optional<PruningOptions> options() const;

  // --kv-keep auto: the prompt decides, by what was measured of the model.
  bool is_auto() const { return keep == "auto"; }
  double wanted_answers() const;  // --kv-target; wrong usage if it is none

  std::string keep;
  std::string target = "98%";
  std::string policy = "snap";
  std::optional<uint32_t> window;  // nothing: as is usual with the policy
};

}  // namespace quire::cli
