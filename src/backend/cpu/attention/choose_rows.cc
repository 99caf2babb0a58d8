#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "backend/cpu/attention/index_scores.h"
#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "base/thread_pool.h"

// Which rows a token attends to, by an index of keys. A score depends on the token and the row alone, and of scores there is one
// order: so what is chosen is the same whatever the chunk, the company or the threads.

namespace quire {
namespace {

constexpr uint32_t kIndexPages = 16;  // that a thread scores at once, where tokens are few

struct Index {
  const ChooseRowsParams& params;
  const BatchView& batch;
  void (*attend)(const AttendArgs& args);

  const KvLayerShape& shape() const { return params.kv.layer->shape; }
  uint32_t page_tokens() const { return params.kv.layer->page_rows; }
  // That the token sees: those whose last token is no later.
  uint32_t rows_of(uint32_t token) const {
    const uint32_t run = batch.run_of_token[token];
    return (params.kv.head_row(run, 0, batch.runs[run].row_of(token)) + 1) / shape().stride;
  }
  uint32_t pages_of(uint32_t token) const { return (rows_of(token) + page_tokens() - 1) / page_tokens(); }

  // Scores of whole pages: there is room for the rows behind the last, which
  // count for nothing.
  void score(uint32_t token, uint32_t begin_page, uint32_t end_page, float* scores) const {
    score_index({.kv = params.kv,
                 .run = batch.run_of_token[token],
                 .rows = rows_of(token),
                 .begin_page = begin_page,
                 .end_page = end_page,
                 .query = params.query.row(token),
                 .weights = std::span(params.weights.row(token), params.heads),
                 .scores = scores},
                attend);
  }

  void choose(uint32_t token, const float* scores) const {
    thread_local std::vector<uint64_t> order;  // by score, the largest first, then by row
    order.clear();
    for (uint32_t row = 0; row < rows_of(token); ++row) {
      const float score =
          scores[row] == scores[row] ? scores[row] + 0.0f : -std::numeric_limits<float>::infinity();
      const uint32_t bits = std::bit_cast<uint32_t>(score);
      const uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
      order.push_back(uint64_t(~ascending) << 32 | row);
    }
    const auto end = order.begin() + ptrdiff_t(params.most);
    std::nth_element(order.begin(), end, order.end());
    uint32_t* out = params.chosen.data() + size_t(token) * params.most;
    std::transform(order.begin(), end, out, [](uint64_t one) { return uint32_t(one); });
    std::sort(out, out + params.most);
  }
};

}  // namespace

void CpuBackend::choose_rows(const ChooseRowsParams& params) {
  const Index index{params, batch_, kernels_.attend};
  const KvLayerShape& shape = index.shape();
  CHECK(shape.kv_heads == 1 && shape.value_dim == 0 && shape.window == 0 && params.most > 0);
  CHECK(params.query.width == size_t(params.heads) * shape.key_dim && params.weights.width == params.heads);
  CHECK(params.chosen.size() >= params.query.rows * params.most);
  std::vector<uint32_t> tokens;
  for (uint32_t t = 0; t < params.query.rows; ++t)
    if (index.rows_of(t) > params.most) tokens.push_back(t);
  if (tokens.size() >= 2 * pool_.size()) {
    pool_.parallel_for(tokens.size(), 1, [&](size_t begin, size_t end) {
      thread_local std::vector<float> scores;
      for (size_t i = begin; i < end; ++i) {
        const uint32_t pages = index.pages_of(tokens[i]);
        scores.resize(size_t(pages) * index.page_tokens());
        index.score(tokens[i], 0, pages, scores.data());
        index.choose(tokens[i], scores.data());
      }
    });
    return;
  }
  struct Piece {
    uint32_t token, page;
    size_t at;  // of its token's scores
  };
  std::vector<Piece> pieces;
  std::vector<size_t> begins;
  size_t size = 0;
  for (const uint32_t token : tokens) {
    begins.push_back(size);
    for (uint32_t page = 0; page < index.pages_of(token); page += kIndexPages)
      pieces.push_back({token, page, size});
    size += size_t(index.pages_of(token)) * index.page_tokens();
  }
  std::vector<float> scores(size);
  pool_.parallel_for(pieces.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto [token, page, at] = pieces[i];
      index.score(token, page, std::min(page + kIndexPages, index.pages_of(token)),
                  scores.data() + at + size_t(page) * index.page_tokens());
    }
  });
  pool_.parallel_for(tokens.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) index.choose(tokens[i], scores.data() + begins[i]);
  });
}

}  // namespace quire
