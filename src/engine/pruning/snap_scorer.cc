#include "engine/pruning/snap_scorer.h"

#include "engine/pruning/pooled.h"
#include "model/watched_shares.h"

namespace quire {
void SnapScorer::see(Backend& backend, size_t layer, const AttendParams& params, uint32_t token,
                     uint32_t position) {
  const uint32_t kv_heads = params.kv.layer->shape.kv_heads, group = params.heads / kv_heads;
  const Rows shares = watched_shares(backend, params, token, tokens_, shares_);
  attention_.resize(layout_.places.size());
  std::vector<float>& sums = attention_[layer];
  sums.resize(size_t(kv_heads) * tokens_);
  for (uint32_t h = 0; h < params.heads; ++h) {
    float* sum = sums.data() + size_t(h / group) * tokens_;
    const float* share = shares.row(h);
    for (uint32_t i = 0; i <= position; ++i) sum[i] += share[i];
  }
}

std::vector<float> SnapScorer::scores(size_t layer, uint32_t head) const {
  const float* sums = attention_[layer].data() + size_t(head) * tokens_;
  return pooled({sums, tokens_});
}

}  // namespace quire
