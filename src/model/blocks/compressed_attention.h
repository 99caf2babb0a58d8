#pragma once

#include "model/blocks/gqa.h"

namespace quire {

// Rows that one token or several have, and that are key and value at once, and attention to them (DeepSeek V4): every head reads the last
// `window` tokens' own rows and, beside them, rows of `stride` tokens each, of which an index may choose some. The end of a head rotates,
// and that of what attention gives is turned back. What attention gives goes through a matrix for each group of heads and then through
// one for all.
struct CompressedSpec {
  // Heads of an index and their keys, rows of as many tokens as those that they choose from.
  struct Index {
    uint32_t heads = 0;
    uint32_t key_dim = 0;
    uint32_t most = 0;
  };
  uint32_t heads = 0;
  uint32_t head_dim = 0;  // of queries, rows, and what a head gives
  uint32_t query_rank = 0;
  uint32_t groups = 0, group_rank = 0;  // of heads, and what one's matrix gives
  uint32_t window = 0;
  uint32_t rope = 0;  // which of ModelSpec::ropes, of pairs at the end of a head
  float scale = 0;
  NormSpec norm = {};
  uint32_t stride = 0;              // tokens to a row beside the window's; 0: there are none
  bool overlaps = false;            // each is of the tokens of the one before as well
  uint32_t row_rope = 0;            // which of the ropes has the angles of such a row
  uint32_t page_tokens = 0;         // of the pages with such rows
  std::optional<Index> index = {};  // REQUIRES: stride > 0 and overlaps
};

BlockPtr make_block(const CompressedSpec& spec, uint32_t dim);

}  // namespace quire
