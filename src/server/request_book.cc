#include "server/request_book.h"

#include <algorithm>

#include "engine/verdict.h"

namespace quire {
namespace {

constexpr size_t kMostTokenMoments = 512;

OrderedJson cause_counts(const RequestAccount& account) {
  OrderedJson causes = OrderedJson::object();
  for (const RequestAccount::Gap& gap : account.gaps) {
    if (gap.cause == GapCause::none) continue;
    const std::string cause(name(gap.cause));
    causes[cause] = causes.value(cause, 0) + 1;
  }
  return causes;
}

}  // namespace

void RequestBook::add(SequenceId sequence, Entry entry) {
  live_.insert_or_assign(sequence, std::move(entry));
}

void RequestBook::note(const std::string& id, uint32_t choice, const TokenEvent& event) {
  if (event.top_logprobs.empty()) return;
  for (auto& [sequence, entry] : live_) {
    if (entry.id != id || entry.choice != choice || entry.rivals.size() == RequestSteps::kMostPasses)
      continue;
    std::vector<TokenLogprob>& rivals = entry.rivals.emplace_back();
    for (const TokenLogprob& top : event.top_logprobs) {
      if (top.token != event.token && rivals.size() < RequestSteps::kMostRivals) rivals.push_back(top);
    }
  }
}

void RequestBook::finish(SequenceId sequence, const Answer& answer, Clock::time_point now) {
  auto node = live_.extract(sequence);
  if (node.empty()) return;
  finished_.push_front({sequence, std::move(node.mapped()), answer, now});
  finished_.front().answer.text.clear();
  if (finished_.size() > kKept) finished_.pop_back();
}

const RequestBook::Entry* RequestBook::find(const std::string& id, uint32_t choice,
                                            const Viewer& viewer) const {
  const auto fits = [&](const Entry& entry) {
    return entry.id == id && entry.choice == choice && viewer.sees(entry.client);
  };
  for (const auto& [sequence, entry] : live_) {
    if (fits(entry)) return &entry;
  }
  for (const Finished& f : finished_) {
    if (fits(f.entry)) return &f.entry;
  }
  return nullptr;
}

std::optional<SequenceId> RequestBook::find_live(const std::string& id, uint32_t choice) const {
  for (const auto& [sequence, entry] : live_) {
    if (entry.id == id && entry.choice == choice) return sequence;
  }
  return std::nullopt;
}

std::optional<std::vector<TokenId>> RequestBook::find_finished(const std::string& id, uint32_t choice) const {
  for (const Finished& f : finished_) {
    if (f.entry.id != id || f.entry.choice != choice) continue;
    std::vector<TokenId> tokens = f.entry.prompt;
    tokens.insert(tokens.end(), f.answer.tokens.begin(), f.answer.tokens.end());
    return tokens;
  }
  return std::nullopt;
}

std::optional<RequestRecord> RequestBook::record(const Engine& engine, const std::string& id, uint32_t choice,
                                                 const Viewer& viewer) const {
  if (find(id, choice, viewer) == nullptr) return std::nullopt;
  std::vector<double> moments;  // of the tokens, since the request came
  if (const std::optional<SequenceId> live = find_live(id, choice)) {
    const Sequence* sequence = engine.scheduler().find(*live);
    if (sequence == nullptr) return std::nullopt;
    for (const Clock::time_point time : sequence->token_times)
      moments.push_back(milliseconds_between(sequence->submitted, time));
    const Entry& entry = live_.at(*live);
    return RequestRecord{entry.salt,       moment(entry.submitted), entry.prompt,
                         sequence->answer, std::move(moments),      entry.rivals};
  }
  for (const Finished& f : finished_) {
    if (f.entry.id != id || f.entry.choice != choice) continue;
    if (!f.answer.tokens.empty()) moments.push_back(f.answer.timings.ttft_ms);
    for (const RequestAccount::Gap& gap : f.answer.account.gaps)
      moments.push_back(moments.back() + double(gap.ms));
    return RequestRecord{f.entry.salt, moment(f.entry.submitted), f.entry.prompt,
                         f.answer,     std::move(moments),        f.entry.rivals};
  }
  return std::nullopt;
}

const RequestBook::Entry* RequestBook::entry_of(SequenceId sequence) const {
  const auto found = live_.find(sequence);
  if (found != live_.end()) return &found->second;
  for (const Finished& f : finished_) {
    if (f.sequence == sequence) return &f.entry;
  }
  return nullptr;
}

OrderedJson RequestBook::head_json(const Entry& entry, const Answer& answer) const {
  const RequestAccount& account = answer.account;
  OrderedJson chunks = OrderedJson::array();
  for (const RequestAccount::Chunk& chunk : account.prefill) {
    chunks.push_back({{"at_ms", moment(entry.submitted) + chunk.at_ms},
                      {"took_ms", chunk.took_ms},
                      {"tokens", chunk.tokens},
                      {"entries_before", chunk.entries_before},
                      {"entries_after", chunk.entries_after}});
  }
  return {{"id", entry.id},
          {"choice", entry.choice},
          {"kind", entry.kind == AskKind::chat ? "chat" : "completion"},
          {"client", entry.client},
          {"submitted_ms", moment(entry.submitted)},
          {"queue_ms", account.queue_ms},
          {"prompt_tokens", entry.prompt.size()},
          {"cached_tokens", account.cached_tokens},
          {"disk_tokens", account.disk_tokens},
          {"why", account.miss.text()},
          {"answer_tokens", answer.tokens.size()},
          {"max_tokens", entry.max_tokens},
          {"chunks", std::move(chunks)},
          {"gap_causes", cause_counts(account)},
          {"preemptions", account.preemptions},
          {"drafted", account.drafted},
          {"accepted", account.accepted},
          {"pruned_tokens", account.pruned_tokens}};
}

OrderedJson RequestBook::live_json(const Entry& entry, const Sequence& sequence) const {
  OrderedJson json = head_json(entry, sequence.answer);
  const char* phase = sequence.backlog() > 1 || sequence.token_times.empty() ? "prefill" : "decode";
  json["state"] = sequence.running ? phase : sequence.disk.loading ? "loading" : "waiting";
  const auto& times = sequence.token_times;
  json["ttft_ms"] = nullptr;
  if (!times.empty()) json["ttft_ms"] = milliseconds_between(sequence.submitted, times.front());
  json["token_ms"] = OrderedJson::array();
  for (size_t i = times.size() - std::min(times.size(), kMostTokenMoments); i < times.size(); ++i)
    json["token_ms"].push_back(moment(times[i]));
  json["finish_reason"] = json["finished_ms"] = nullptr;
  uint32_t pages = 0;
  for (uint32_t g = 0; g < sequence.table.groups(); ++g) pages += sequence.table.held_pages(g);
  json["kv_pages"] = pages;
  json["verdict"] = OrderedJson::array();
  return json;
}

OrderedJson RequestBook::finished_json(const Finished& finished, bool with_tokens) const {
  const Answer& answer = finished.answer;
  OrderedJson json = head_json(finished.entry, answer);
  json["state"] = "finished";
  json["ttft_ms"] = nullptr;
  OrderedJson moments = OrderedJson::array();
  if (!answer.tokens.empty()) {
    json["ttft_ms"] = answer.timings.ttft_ms;
  }
  if (!answer.tokens.empty() && with_tokens) {
    double at = moment(finished.entry.submitted) + answer.timings.ttft_ms;
    const auto& gaps = answer.account.gaps;
    const size_t skipped = gaps.size() - std::min(gaps.size(), kMostTokenMoments - 1);
    if (skipped == 0) moments.push_back(at);
    for (size_t i = 0; i < gaps.size(); ++i) {
      at += double(gaps[i].ms);
      if (i >= skipped) moments.push_back(at);
    }
  }
  json["token_ms"] = std::move(moments);
  json["finish_reason"] = name(answer.finish_reason);
  json["finished_ms"] = moment(finished.ended);
  json["kv_pages"] = answer.kv_pages;
  json["verdict"] = judge(answer).lines;
  return json;
}

OrderedJson RequestBook::report(const Engine& engine, const Viewer& viewer, Clock::time_point now) const {
  std::vector<std::pair<Clock::time_point, OrderedJson>> rows;
  for (const auto& [id, entry] : live_) {
    const Sequence* sequence = engine.scheduler().find(id);
    if (sequence != nullptr && viewer.sees(entry.client))
      rows.emplace_back(entry.submitted, live_json(entry, *sequence));
  }
  for (const Finished& finished : finished_) {
    if (!viewer.sees(finished.entry.client)) continue;
    rows.emplace_back(finished.entry.submitted, finished_json(finished, now - finished.ended < kTokensShown));
  }
  std::ranges::stable_sort(rows, std::greater(), [](const auto& row) { return row.first; });
  OrderedJson requests = OrderedJson::array();
  for (auto& [submitted, json] : rows) requests.push_back(std::move(json));
  return requests;
}

}  // namespace quire
