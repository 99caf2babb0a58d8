#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_options.h"

namespace quire::cli {

// How a machine and its use could be: as they are, or after some changes.
struct Circumstances {
  double bandwidth = 1, flops = 1;  // times what was measured
  std::string kv = "f16";
  uint32_t context = 0;
  uint32_t batch = 1;
};

// Applies "bandwidth=2x,flops=2x,kv=int8,ctx=8192,batch=8"; anything else is wrong usage.
Circumstances changed(Circumstances base, const std::string& changes);

// `inspect --what-if`: predicts the phases of a model as it is and after some changes, from a short measurement.
struct WhatIf {
  std::string changes;
  std::vector<uint32_t> prompts = {512};
  std::vector<uint32_t> depths = {512};
  std::optional<uint32_t> threads;
  std::string device = "auto";
  double seconds = 6;  // of measuring; a large model takes longer

  // `memory`: that weights and KV cache share. Prints to stdout.
  void print(std::shared_ptr<const ModelFile> file, const ModelSpec& spec, const std::string& kv,
             size_t memory, bool json) const;
};

}  // namespace quire::cli
