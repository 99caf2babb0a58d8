#pragma once

#include "model/blocks/gqa.h"

namespace quire {

// The rows that a token attends to, where it sees more than `most`, chosen by heads and keys of an index, which are a second stream of the
// cache.
struct RowIndexSpec {
  uint32_t heads = 0;
  uint32_t key_dim = 0;  // of which as much rotates as of the heads that attend
  uint32_t most = 0;
  RopePairing pairing = RopePairing::halves;
  bool is_shared =
      false;  // the choice of the last layer before that has an index of its own: this one has none
  bool is_lent = false;                                         // layers after this one take its choice
  NormSpec norm = {.kind = NormKind::layer, .epsilon = 1e-6f};  // of keys
};

// Softmax attention whose heads all read one latent row for each token (MLA): what keys and values are made of, normed, and beside it a key
// that is rotated. Of each head two matrices go with the row: keys are its first matrix times the latent, values its second. The first is
// applied to the query instead and the second to what attention gives, for runs of any length, so that nothing but the row is ever
// stored or made again.
struct LatentSpec {
  // As attention sees it: all query heads of one KV head, whose key is what is rotated and goes on in its value, the latent.
  GqaSpec attention;
  uint32_t plain_dim = 0;   // of a query head, beside what is rotated
  uint32_t value_dim = 0;   // of what a head gives
  uint32_t query_rank = 0;  // of the latent that queries are made of; 0: they are made of the stream
  NormSpec norm = {};       // of latents
  std::optional<RowIndexSpec> index = {};  // REQUIRES: query_rank > 0, and that attention rotates
};

BlockPtr make_block(const LatentSpec& spec, uint32_t dim);

}  // namespace quire
