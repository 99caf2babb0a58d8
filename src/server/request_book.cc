#include "server/request_book.h"

#include <algorithm>

namespace quire {
namespace {

bool fits(const RequestEntry& entry, const std::string& id, uint32_t choice) {
  return entry.id == id && entry.choice == choice;
}

}  // namespace

const RequestEntry* BookNames::entry_of(SequenceId sequence) const {
  const auto found = entries.find(sequence);
  return found == entries.end() ? nullptr : found->second.get();
}

std::shared_ptr<const RequestEntry> RequestBook::add(SequenceId sequence, RequestEntry entry) {
  auto kept = std::make_shared<const RequestEntry>(std::move(entry));
  live_.insert_or_assign(sequence, Live{kept, {}});
  return kept;
}

void RequestBook::note(const std::string& id, uint32_t choice, const TokenEvent& event) {
  if (event.top_logprobs.empty()) return;
  for (auto& [sequence, live] : live_) {
    if (!fits(*live.entry, id, choice) || live.rivals.size() == RequestSteps::kMostPasses) continue;
    std::vector<TokenLogprob>& rivals = live.rivals.emplace_back();
    for (const TokenLogprob& top : event.top_logprobs) {
      if (top.token != event.token && rivals.size() < RequestSteps::kMostRivals) rivals.push_back(top);
    }
  }
}

void RequestBook::finish(SequenceId sequence, std::shared_ptr<const Answer> answer, Clock::time_point now) {
  const auto found = live_.find(sequence);
  if (found == live_.end()) return;
  auto finished = std::make_shared<FinishedRequest>();
  finished_.push_front(finished);
  finished->sequence = sequence;
  finished->entry = std::move(found->second.entry);
  finished->answer = std::move(answer);
  finished->rivals = std::move(found->second.rivals);
  finished->ended = now;
  live_.erase(found);
  forget_oldest(quota_.owner(finished->entry->client));
}

void RequestBook::forget_oldest(const std::string& owner) {
  const auto is_theirs = [&](const auto& finished) { return quota_.owner(finished->entry->client) == owner; };
  if (size_t(std::ranges::count_if(finished_, is_theirs)) <= quota_.of_each(kKept, kKeptInAll)) return;
  const auto oldest = std::find_if(finished_.rbegin(), finished_.rend(), is_theirs);
  finished_.erase(std::next(oldest).base());
}

std::shared_ptr<const RequestEntry> RequestBook::find(const std::string& id, uint32_t choice,
                                                      const Viewer& viewer) const {
  for (const auto& [sequence, live] : live_) {
    if (fits(*live.entry, id, choice) && viewer.sees(live.entry->client)) return live.entry;
  }
  for (const auto& finished : finished_) {
    if (fits(*finished->entry, id, choice) && viewer.sees(finished->entry->client)) return finished->entry;
  }
  return nullptr;
}

std::optional<SequenceId> RequestBook::find_live(const std::string& id, uint32_t choice) const {
  for (const auto& [sequence, live] : live_) {
    if (fits(*live.entry, id, choice)) return sequence;
  }
  return std::nullopt;
}

std::optional<std::vector<TokenId>> RequestBook::find_finished(const std::string& id, uint32_t choice) const {
  for (const auto& finished : finished_) {
    if (!fits(*finished->entry, id, choice)) continue;
    std::vector<TokenId> tokens = finished->entry->prompt;
    tokens.insert(tokens.end(), finished->answer->tokens.begin(), finished->answer->tokens.end());
    return tokens;
  }
  return std::nullopt;
}

std::optional<RequestCopy> RequestBook::copy(const Engine& engine, const std::string& id, uint32_t choice,
                                             const Viewer& viewer) const {
  RequestCopy copy;
  copy.entry = find(id, choice, viewer);
  if (copy.entry == nullptr) return std::nullopt;
  copy.submitted_ms = milliseconds_between(start_, copy.entry->submitted);
  if (const std::optional<SequenceId> live = find_live(id, choice)) {
    const std::optional<SequenceView> sequence = engine.sequence(*live);
    if (!sequence) return std::nullopt;
    copy.answer = std::make_shared<const Answer>(sequence->answer());
    for (const Clock::time_point time : sequence->token_times())
      copy.token_ms.push_back(milliseconds_between(sequence->submitted(), time));
    copy.rivals = live_.at(*live).rivals;
    return copy;
  }
  for (const auto& finished : finished_) {
    if (finished->entry != copy.entry) continue;
    copy.answer = finished->answer;
    if (!copy.answer->tokens.empty()) copy.token_ms.push_back(copy.answer->timings.ttft_ms);
    for (const RequestAccount::Gap& gap : copy.answer->account.gaps)
      copy.token_ms.push_back(copy.token_ms.back() + double(gap.ms));
    copy.rivals = finished->rivals;
    return copy;
  }
  return std::nullopt;
}

BookView RequestBook::view(const Engine& engine) const {
  BookView view;
  view.start = start_;
  view.live.reserve(live_.size());
  for (const auto& [id, live] : live_) {
    if (const std::optional<SequenceView> sequence = engine.sequence(id))
      view.live.push_back({live.entry, sequence->figures()});
  }
  view.finished.assign(finished_.begin(), finished_.end());
  return view;
}

BookNames RequestBook::names() const {
  BookNames names{start_, {}};
  for (const auto& finished : finished_) names.entries.emplace(finished->sequence, finished->entry);
  for (const auto& [id, live] : live_) names.entries.insert_or_assign(id, live.entry);
  return names;
}

}  // namespace quire
