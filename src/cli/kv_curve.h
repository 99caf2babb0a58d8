#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/model_options.h"
#include "eval/keep_chooser.h"
#include "eval/kv_curve.h"

namespace quire::cli {

// `quire kv-check --curve`: what a model still answers from less of its KV cache, by policy, format and share.
struct CurveFlags {
  void add_to(CLI::App& command);
  // Measures, prints and, unless told otherwise, keeps it beside the model.
  void measure(const ModelOptions& model, bool json) const;

  bool wanted = false, dry = false;
  std::vector<std::string> formats, policies = {"evaluator", "zip"}, shares = {"70%", "50%", "30%"};
  std::string question = "both", data;
  uint32_t tokens = 1024, cases = 50;
};

// What was measured of the model at this path; throws Error if nothing was.
KvCurve known_curve(const std::string& model_path);
// For --kv-keep auto, of a model that keeps its cache in this format.
KeepChooser make_chooser(const KvCurve& curve, const LoadedModel& model, const std::string& model_path,
                         const std::string& format);

}  // namespace quire::cli
