#pragma once

#include <vector>

#include "base/json.h"
#include "text/tokenizer_spec.h"

// The parts of a tokenizer.json that are chains of steps. Sequences are flattened. Each throws Error for a
// component it does not know, or Json::exception where the file has another shape.
namespace quire {

std::vector<NormalizerStep> read_normalizer(const Json& json);
std::vector<PretokenizerStep> read_pretokenizer(const Json& json);
std::vector<DecoderStep> read_decoder(const Json& json);

// What the post-processor puts around a text.
struct AroundText {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};
AroundText read_post_processor(const Json& json);

}  // namespace quire
