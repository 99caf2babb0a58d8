#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/lanes.h"
#include "base/check.h"
#include "tensor/float16.h"

namespace quire {
namespace {

// Tokens of one run whose attention shares the unpacked pages.
constexpr uint32_t kQueryBlock = 16;

// The softmax so far of one query: what flash attention carries from page to page.
struct Running {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

void unpack(KvFormat format, const std::byte* rows, size_t count, float* out) {
  if (format == KvFormat::f32) {
    std::memcpy(out, rows, count * sizeof(float));
    return;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(rows);
  for (size_t i = 0; i < count; ++i) out[i] = f16_to_f32(halves[i]);
}

// Attention of a block of queries of one run over one KV head. Pages are visited in order of position and
// each query sees the same rows in the same order whatever the block, so a chunk boundary cannot be seen.
class BlockAttention {
 public:
  BlockAttention(const AttendParams& params, const BatchView& batch, uint32_t run, uint32_t kv_head)
      : params_(params),
        batch_(batch),
        layer_(*params.kv.layer),
        page_tokens_(params.kv.group->layout->page_tokens),
        run_(run),
        kv_head_(kv_head),
        heads_per_kv_(params.heads / layer_.shape.kv_heads) {}

  void compute(uint32_t first_token, uint32_t tokens) {
    first_token_ = first_token;
    tokens_ = tokens;
    const uint32_t queries = tokens * heads_per_kv_;
    running_.assign(queries, {});
    sums_.assign(size_t(queries) * layer_.shape.value_dim, 0.0f);
    const uint32_t first_page = first_visible(batch_.positions[first_token]) / page_tokens_;
    const uint32_t last_page = batch_.positions[first_token + tokens - 1] / page_tokens_;
    for (uint32_t page = first_page; page <= last_page; ++page) add_page(page);
    finish();
  }

 private:
  uint32_t first_visible(uint32_t position) const {
    const uint32_t window = layer_.shape.window;
    return window == 0 || position < window ? 0 : position + 1 - window;
  }

  void add_page(uint32_t page) {
    const uint32_t page_begin = page * page_tokens_;
    const size_t key_dim = layer_.shape.key_dim;
    const size_t value_dim = layer_.shape.value_dim;
    const uint32_t last_position = batch_.positions[first_token_ + tokens_ - 1];
    const uint32_t rows =
        std::min(page_tokens_, last_position + 1 - page_begin);  // beyond them nothing is written yet
    keys_.resize(rows * key_dim);
    values_.resize(rows * value_dim);
    scores_.resize(page_tokens_);
    const std::byte* bytes = params_.kv.group->page(run_, page);
    unpack(layer_.shape.key_format, bytes + layer_.key_offset(kv_head_, 0), keys_.size(), keys_.data());
    unpack(layer_.shape.value_format, bytes + layer_.value_offset(kv_head_, 0, page_tokens_), values_.size(),
           values_.data());
    for (uint32_t t = 0; t < tokens_; ++t) {
      const uint32_t position = batch_.positions[first_token_ + t];
      const uint32_t begin = std::max(page_begin, first_visible(position));
      const uint32_t end = std::min(page_begin + page_tokens_, position + 1);
      if (begin >= end) continue;
      for (uint32_t h = 0; h < heads_per_kv_; ++h) add_rows(t, h, begin - page_begin, end - page_begin);
    }
  }

  void add_rows(uint32_t token, uint32_t head, uint32_t begin, uint32_t end) {
    const size_t key_dim = layer_.shape.key_dim;
    const size_t value_dim = layer_.shape.value_dim;
    const float* query =
        params_.query.row(first_token_ + token) + (kv_head_ * heads_per_kv_ + head) * key_dim;
    float page_max = -std::numeric_limits<float>::infinity();
    for (uint32_t row = begin; row < end; ++row) {
      float score = dot(query, keys_.data() + row * key_dim, key_dim) * params_.scale;
      if (params_.soft_cap > 0) score = params_.soft_cap * std::tanh(score / params_.soft_cap);
      scores_[row] = score;
      page_max = std::max(page_max, score);
    }
    Running& running = running_[token * heads_per_kv_ + head];
    float* sums = sums_.data() + (token * heads_per_kv_ + head) * value_dim;
    if (page_max > running.max) rescale(running, sums, page_max);
    for (uint32_t row = begin; row < end; ++row) {
      const float share = std::exp(scores_[row] - running.max);
      running.sum += share;
      const float* value = values_.data() + row * value_dim;
      for (size_t i = 0; i < value_dim; ++i) sums[i] += share * value[i];
    }
  }

  void rescale(Running& running, float* sums, float new_max) const {
    const float factor = std::exp(running.max - new_max);  // 0 for the first page
    running.max = new_max;
    running.sum *= factor;
    for (size_t i = 0; i < layer_.shape.value_dim; ++i) sums[i] *= factor;
  }

  void finish() {
    const size_t value_dim = layer_.shape.value_dim;
    for (uint32_t t = 0; t < tokens_; ++t) {
      for (uint32_t h = 0; h < heads_per_kv_; ++h) {
        const uint32_t head = kv_head_ * heads_per_kv_ + h;
        Running& running = running_[t * heads_per_kv_ + h];
        float* sums = sums_.data() + (t * heads_per_kv_ + h) * value_dim;
        if (params_.sinks) {
          const float sink = params_.sinks.vector()[head];
          if (sink > running.max) rescale(running, sums, sink);
          running.sum += std::exp(sink - running.max);
        }
        float* out = params_.out.f32.row(first_token_ + t) + head * value_dim;
        for (size_t i = 0; i < value_dim; ++i) out[i] = sums[i] / running.sum;
      }
    }
  }

  const AttendParams& params_;
  const BatchView& batch_;
  const KvLayerLayout& layer_;
  const uint32_t page_tokens_;
  const uint32_t run_;
  const uint32_t kv_head_;
  const uint32_t heads_per_kv_;
  uint32_t first_token_ = 0;
  uint32_t tokens_ = 0;
  std::vector<Running> running_;  // [tokens, heads_per_kv]
  std::vector<float> sums_;       // [tokens, heads_per_kv, value_dim]
  std::vector<float> keys_;       // [rows of the page, key_dim]
  std::vector<float> values_;     // [rows of the page, value_dim]
  std::vector<float> scores_;     // [rows of the page]
};

}  // namespace

void CpuBackend::attend(const AttendParams& params) {
  const KvLayerShape& shape = params.kv.layer->shape;
  CHECK(params.heads % shape.kv_heads == 0 && params.query.width == params.heads * shape.key_dim);
  CHECK(params.out.f32.width == params.heads * shape.value_dim);
  struct Block {
    uint32_t run, first_token, tokens, kv_head;
  };
  std::vector<Block> blocks;
  for (uint32_t r = 0; r < batch_.runs.size(); ++r) {
    const TokenRun& run = batch_.runs[r];
    for (uint32_t begin = 0; begin < run.count; begin += kQueryBlock) {
      const uint32_t tokens = std::min(kQueryBlock, run.count - begin);
      for (uint32_t h = 0; h < shape.kv_heads; ++h) blocks.push_back({r, run.begin + begin, tokens, h});
    }
  }
  pool_.parallel_for(blocks.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const Block& block = blocks[i];
      BlockAttention(params, batch_, block.run, block.kv_head).compute(block.first_token, block.tokens);
    }
  });
  pool_.parallel_for(params.out.f32.rows, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) quantize(params.out, t);
  });
}

}  // namespace quire
