#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer_spec.h"

namespace quire {

// The steps that make a text ready for the pre-tokenizer. Immutable; any thread may use it.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps);
  Normalizer(Normalizer&&) noexcept;
  ~Normalizer();

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string text) const;  // REQUIRES: valid UTF-8; the result is, too

 private:
  struct Compiled;
  std::vector<NormalizerStep> steps_;
  std::vector<std::unique_ptr<const Compiled>>
      compiled_;  // one per step, null where there is nothing to compile
};

}  // namespace quire
