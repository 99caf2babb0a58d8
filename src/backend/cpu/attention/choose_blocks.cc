#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/attention/index_scores.h"
#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "base/thread_pool.h"

// Which blocks of rows the KV heads of a token attend to. A block's score depends on the token and its rows alone, and of scores there is
// one order: so what is chosen is the same whatever the chunk, the company or the threads.

namespace quire {
namespace {

constexpr uint32_t kPieceRows = 512;  // that a thread scores at once
constexpr float kLeast = -std::numeric_limits<float>::infinity();

// A head of a token, and the blocks that it may choose: all that it sees but the last `local` ones, which it has anyway.
struct Chooser {
  uint32_t token, head, blocks;
  size_t at;  // of its scores
};

class BlockIndex {
 public:
  BlockIndex(const ChooseBlocksParams& params, const BatchView& batch, void (*attend)(const AttendArgs& args))
      : params_(params), batch_(batch), attend_(attend) {
    for (uint32_t t = 0; t < params.query.rows; ++t) {
      const uint32_t own = row_of(t) / params.block;
      for (uint32_t h = 0; own >= params.most && h < params.heads; ++h) {
        choosers_.push_back({t, h, own + 1 - params.local, scores_});
        scores_ += choosers_.back().blocks;
      }
    }
  }

  std::span<const Chooser> choosers() const { return choosers_; }
  size_t scores() const { return scores_; }

  // The best row of each of some blocks.
  void score(const Chooser& chooser, uint32_t begin, uint32_t end, float* best) const {
    thread_local std::vector<float> scores, queries;
    const uint32_t dim = params_.kv.layer->shape.key_dim, page_rows = params_.kv.layer->page_rows;
    const uint32_t pages = params_.block / page_rows;
    const float* query = params_.query.row(chooser.token) + size_t(chooser.head) * dim;
    // Of a head and its opposite, one of which is above 0, the sum is the product itself.
    queries.assign(query, query + dim);
    for (uint32_t i = 0; i < dim; ++i) queries.push_back(-query[i]);
    constexpr float kWeights[] = {1, -1};
    scores.resize(size_t(end - begin) * params_.block);
    score_index({.kv = params_.kv,
                 .run = batch_.run_of_token[chooser.token],
                 .rows = row_of(chooser.token) + 1,
                 .begin_page = begin * pages,
                 .end_page = end * pages,
                 .query = queries.data(),
                 .weights = kWeights,
                 .scores = scores.data()},
                attend_);
    for (uint32_t b = begin; b < end; ++b) {
      const float* rows = scores.data() + size_t(b - begin) * params_.block;
      float most = kLeast;
      for (uint32_t r = 0; r < params_.block; ++r) most = rows[r] > most ? rows[r] : most;
      best[b] = most;
    }
  }

  void choose(const Chooser& chooser, const float* scores) const {
    thread_local std::vector<uint32_t> order;
    order.resize(chooser.blocks);
    std::iota(order.begin(), order.end(), 0u);
    const uint32_t chosen = params_.most - params_.local;
    const auto is_better = [&](uint32_t a, uint32_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    };
    if (chosen > 0)
      std::nth_element(order.begin(), order.begin() + ptrdiff_t(chosen - 1), order.end(), is_better);
    uint32_t* out =
        params_.chosen.data() + (size_t(chooser.token) * params_.heads + chooser.head) * params_.most;
    std::copy_n(order.begin(), chosen, out);
    std::sort(out, out + chosen);
    std::iota(out + chosen, out + params_.most, chooser.blocks);
  }

 private:
  uint32_t row_of(uint32_t token) const {
    const uint32_t run = batch_.run_of_token[token];
    return params_.kv.head_row(run, 0, batch_.runs[run].row_of(token));
  }

  const ChooseBlocksParams& params_;
  const BatchView& batch_;
  void (*attend_)(const AttendArgs& args);
  std::vector<Chooser> choosers_;
  size_t scores_ = 0;
};

}  // namespace

void CpuBackend::choose_blocks(const ChooseBlocksParams& params) {
  const KvLayerShape& shape = params.kv.layer->shape;
  CHECK(shape.kv_heads == 1 && shape.value_dim == 0 && shape.window == 0 && shape.stride == 1);
  CHECK(params.local >= 1 && params.local <= params.most && params.block > 0 &&
        params.block % params.kv.layer->page_rows == 0);
  CHECK(params.query.width == size_t(params.heads) * shape.key_dim);
  CHECK(params.chosen.size() >= params.query.rows * params.heads * params.most);
  const BlockIndex index(params, batch_, kernels_.attend);
  struct Piece {
    const Chooser* chooser;
    uint32_t begin, end;
  };
  std::vector<Piece> pieces;
  const uint32_t at_once = std::max(kPieceRows / params.block, 1u);
  for (const Chooser& chooser : index.choosers()) {
    for (uint32_t b = 0; b < chooser.blocks; b += at_once)
      pieces.push_back({&chooser, b, std::min(b + at_once, chooser.blocks)});
  }
  std::vector<float> scores(index.scores());
  pool_.parallel_for(pieces.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      index.score(*pieces[i].chooser, pieces[i].begin, pieces[i].end, scores.data() + pieces[i].chooser->at);
  });
  pool_.parallel_for(index.choosers().size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      index.choose(index.choosers()[i], scores.data() + index.choosers()[i].at);
  });
}

}  // namespace quire
