#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "model/model_file.h"

namespace quire {

// What one vector is made of the vectors that a model makes of a text's tokens.
enum class Pooling : uint8_t {
  mean,  // of all of them
  cls,   // the first token's
  last,  // the last token's
  rank,  // none: the model judges pairs of texts
};
std::string_view name(Pooling pooling);
// Throws Error naming those that there are.
Pooling pooling_from_name(std::string_view name);

// What the file says (ARCH.pooling_type; of a folder, what sentence-transformers keeps beside the model). Nothing: it does not
// say. Throws Error if it is one that is not known.
std::optional<Pooling> said_pooling(const ModelFile& file);

}  // namespace quire
