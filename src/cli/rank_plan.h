#pragma once

#include <memory>
#include <string>

#include "cli/model_options.h"

namespace quire::cli {

// `inspect --ranks N`: what each of so many processes would hold of a model, what they would hand each other for a token, and how fast
// that could be on networks of some kinds, if every machine read its memory as fast as this one, which is measured. Throws Error if they
// cannot divide it. Prints to stdout.
struct RankPlan {
  uint32_t ranks = 0;
  double seconds = 1;  // of measuring

  void print(const ModelFile& file, const ModelSpec& spec, const std::string& kv, bool json) const;
};

}  // namespace quire::cli
