#include <algorithm>

#include "engine/verdict.h"
#include "server/request_book.h"

namespace quire {
namespace {

constexpr std::chrono::seconds kTokensShown{60};

OrderedJson cause_counts(const RequestFigures& figures) {
  OrderedJson causes = OrderedJson::object();
  for (size_t cause = 0; cause < kGapCauses; ++cause) {
    if (GapCause(cause) != GapCause::none && figures.gap_causes[cause] > 0)
      causes[std::string(name(GapCause(cause)))] = figures.gap_causes[cause];
  }
  return causes;
}

const char* state_name(SequenceFigures::State state) {
  switch (state) {
    case SequenceFigures::State::waiting:
      return "waiting";
    case SequenceFigures::State::loading:
      return "loading";
    case SequenceFigures::State::prefill:
      return "prefill";
    case SequenceFigures::State::decode:
      return "decode";
  }
  return "";
}

OrderedJson chunks_json(const std::vector<RequestAccount::Chunk>& chunks, double submitted_ms) {
  OrderedJson json = OrderedJson::array();
  for (const RequestAccount::Chunk& chunk : chunks) {
    json.push_back({{"at_ms", submitted_ms + chunk.at_ms},
                    {"took_ms", chunk.took_ms},
                    {"tokens", chunk.tokens},
                    {"entries_before", chunk.entries_before},
                    {"entries_after", chunk.entries_after}});
  }
  return json;
}

OrderedJson head_json(const RequestEntry& entry, double submitted_ms, const RequestFigures& figures,
                      size_t answer_tokens, const std::vector<RequestAccount::Chunk>& chunks) {
  return {{"id", entry.id},
          {"choice", entry.choice},
          {"kind", entry.kind == AskKind::chat ? "chat" : "completion"},
          {"client", entry.client},
          {"submitted_ms", submitted_ms},
          {"queue_ms", figures.queue_ms},
          {"prompt_tokens", entry.prompt.size()},
          {"cached_tokens", figures.cached_tokens},
          {"host_tokens", figures.host_tokens},
          {"disk_tokens", figures.disk_tokens},
          {"remote_tokens", figures.remote_tokens},
          {"why", figures.miss.text()},
          {"answer_tokens", answer_tokens},
          {"max_tokens", entry.max_tokens},
          {"chunks", chunks_json(chunks, submitted_ms)},
          {"gap_causes", cause_counts(figures)},
          {"preemptions", figures.preemptions},
          {"drafted", figures.drafted},
          {"accepted", figures.accepted},
          {"pruned_tokens", figures.pruned_tokens},
          {"budget_rows", figures.budget_rows},
          {"forgotten_tokens", figures.forgotten_tokens},
          {"counted_anew", figures.counted_anew},
          {"choosing_ms", figures.choosing_ms}};
}

OrderedJson live_json(const BookView& book, const BookView::Live& live) {
  const SequenceFigures& figures = live.figures;
  OrderedJson json = head_json(*live.entry, book.moment(live.entry->submitted), figures.counts,
                               figures.answer_tokens, figures.chunks);
  json["state"] = state_name(figures.state);
  json["ttft_ms"] = nullptr;
  if (figures.ttft_ms) json["ttft_ms"] = *figures.ttft_ms;
  json["token_ms"] = OrderedJson::array();
  for (const Clock::time_point time : figures.token_times) json["token_ms"].push_back(book.moment(time));
  json["finish_reason"] = json["finished_ms"] = nullptr;
  json["kv_pages"] = figures.kv_pages;
  json["verdict"] = OrderedJson::array();
  return json;
}

// The last ones, on the server's clock.
OrderedJson token_moments(const Answer& answer, double submitted_ms) {
  OrderedJson moments = OrderedJson::array();
  double at = submitted_ms + answer.timings.ttft_ms;
  const auto& gaps = answer.account.gaps;
  const size_t skipped = gaps.size() - std::min(gaps.size(), SequenceFigures::kMostMoments - 1);
  if (skipped == 0) moments.push_back(at);
  for (size_t i = 0; i < gaps.size(); ++i) {
    at += double(gaps[i].ms);
    if (i >= skipped) moments.push_back(at);
  }
  return moments;
}

OrderedJson finished_json(const BookView& book, const FinishedRequest& finished, Clock::time_point now) {
  const Answer& answer = *finished.answer;
  const double submitted_ms = book.moment(finished.entry->submitted);
  OrderedJson json =
      head_json(*finished.entry, submitted_ms, answer.account, answer.tokens.size(), answer.account.prefill);
  json["state"] = "finished";
  json["ttft_ms"] = nullptr;
  if (!answer.tokens.empty()) json["ttft_ms"] = answer.timings.ttft_ms;
  json["token_ms"] = OrderedJson::array();
  if (!answer.tokens.empty() && now - finished.ended < kTokensShown)
    json["token_ms"] = token_moments(answer, submitted_ms);
  json["finish_reason"] = name(answer.finish_reason);
  json["finished_ms"] = book.moment(finished.ended);
  json["kv_pages"] = answer.kv_pages;
  json["verdict"] = judge(answer).lines;
  return json;
}

}  // namespace

OrderedJson book_json(const BookView& book, const Viewer& viewer, Clock::time_point now) {
  std::vector<std::pair<Clock::time_point, OrderedJson>> rows;
  for (const BookView::Live& live : book.live) {
    if (viewer.sees(live.entry->client)) rows.emplace_back(live.entry->submitted, live_json(book, live));
  }
  for (const auto& finished : book.finished) {
    if (viewer.sees(finished->entry->client))
      rows.emplace_back(finished->entry->submitted, finished_json(book, *finished, now));
  }
  std::ranges::stable_sort(rows, std::greater(), [](const auto& row) { return row.first; });
  OrderedJson requests = OrderedJson::array();
  for (auto& [submitted, json] : rows) requests.push_back(std::move(json));
  return requests;
}

}  // namespace quire
