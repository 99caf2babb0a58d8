#pragma once

#include "model/blocks/gqa.h"

namespace quire {

// Instead of one residual stream several, of which every mixer and MLP reads a mix and to all of which it gives what it made. How is told by
// the streams themselves (ConnectStreamsParams).
struct HyperSpec {
  uint32_t count = 0;
  uint32_t iterations = 1;
  float epsilon = 1e-6f;
  NormSpec norm = {};  // of all streams together, without weights

  uint32_t routed() const { return (2 + count) * count; }  // what is told
};

// What stands before a mixer or an MLP: gives what was made since the last of its kind, which is then no longer in the residual stream, and
// leaves the norm of the mix where the next block reads. `tensor`: "hc_attn", and "attn_norm" of the norm.
BlockPtr make_connection_block(const HyperSpec& spec, uint32_t dim, const std::string& tensor,
                               const std::string& norm_tensor, const NormSpec& norm);

}  // namespace quire
