#include "engine/sequence_view.h"

#include <algorithm>

#include "engine/sequence.h"

namespace quire {
namespace {

template <class T>
std::vector<T> last_of(const std::vector<T>& all, size_t most) {
  return {all.end() - ptrdiff_t(std::min(all.size(), most)), all.end()};
}

SequenceFigures::State state_of(const Sequence& sequence) {
  using State = SequenceFigures::State;
  if (!sequence.running) return sequence.is_loading() ? State::loading : State::waiting;
  return sequence.backlog() > 1 || sequence.token_times.empty() ? State::prefill : State::decode;
}

}  // namespace

SequenceId SequenceView::id() const {
  return sequence_->id;
}

const std::string& SequenceView::client() const {
  return sequence_->request.client;
}

CacheSalt SequenceView::salt() const {
  return sequence_->request.salt;
}

const std::vector<TokenId>& SequenceView::prompt() const {
  return sequence_->request.prompt;
}

const std::vector<TokenId>& SequenceView::tokens() const {
  return sequence_->tokens;
}

uint32_t SequenceView::answer_tokens() const {
  return sequence_->answer_tokens();
}

uint32_t SequenceView::computed() const {
  return sequence_->computed;
}

const PageTable& SequenceView::table() const {
  return sequence_->table;
}

const Answer& SequenceView::answer() const {
  return sequence_->answer;
}

Clock::time_point SequenceView::submitted() const {
  return sequence_->submitted;
}

const std::vector<Clock::time_point>& SequenceView::token_times() const {
  return sequence_->token_times;
}

SequenceFigures SequenceView::figures() const {
  const RequestAccount& account = answer().account;
  SequenceFigures figures;
  figures.state = state_of(*sequence_);
  figures.counts = account;
  figures.chunks = last_of(account.prefill, SequenceFigures::kMostChunks);
  figures.answer_tokens = answer_tokens();
  const auto& times = token_times();
  if (!times.empty()) figures.ttft_ms = milliseconds_between(submitted(), times.front());
  figures.token_times = last_of(times, SequenceFigures::kMostMoments);
  for (uint32_t g = 0; g < table().groups(); ++g) figures.kv_pages += table().held_pages(g);
  return figures;
}

}  // namespace quire
