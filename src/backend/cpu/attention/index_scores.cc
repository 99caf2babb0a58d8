#include "backend/cpu/attention/index_scores.h"

#include <vector>

#include "backend/cpu/attention/attend.h"

namespace quire {
namespace {

// Room of a thread; it grows and stays.
struct IndexRoom {
  std::vector<AttendQuery> queries;
  std::vector<const std::byte*> pages;
  std::vector<float> query_lanes, key_rows, value_rows, scores;
};

}  // namespace

void score_index(const IndexScores& params, void (*attend)(const AttendArgs& args)) {
  thread_local IndexRoom room;
  const KvLayerShape& shape = params.kv.layer->shape;
  const uint32_t page_tokens = params.kv.layer->page_rows;
  const auto rounded = [](size_t n) { return (n + kAttendLanes - 1) / kAttendLanes * kAttendLanes; };
  const size_t width = rounded(shape.key_dim), page_scores = (page_tokens + 1) * kAttendLanes;
  room.query_lanes.resize(rounded(params.weights.size()) * width);
  room.key_rows.resize(page_tokens * (width + kRowGap));
  room.value_rows.resize(page_tokens * kRowGap);
  room.scores.resize(2 * page_scores);
  room.queries.clear();
  room.pages.clear();
  for (size_t h = 0; h < params.weights.size(); ++h)
    room.queries.push_back({params.query + h * shape.key_dim, 0, params.rows});
  for (uint32_t page = params.begin_page; page < params.end_page; ++page)
    room.pages.push_back(params.kv.head_page(params.run, 0, page));
  attend({.shape = &shape,
          .page_tokens = page_tokens,
          .pages = room.pages.data(),
          .begin_page = params.begin_page,
          .end_page = params.end_page,
          .fetch_end_page = params.end_page,
          .queries = room.queries.data(),
          .count = params.weights.size(),
          .scale = 1,
          .soft_cap = 0,
          .max = nullptr,
          .sum = nullptr,
          .values = nullptr,
          .key_width = width,
          .value_width = 0,
          .query_lanes = room.query_lanes.data(),
          .key_rows = room.key_rows.data(),
          .value_rows = room.value_rows.data(),
          .scores = room.scores.data(),
          .more_scores = room.scores.data() + page_scores,
          .index_weights = params.weights.data(),
          .index_scores = params.scores});
}

}  // namespace quire
