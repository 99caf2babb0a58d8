#include "engine/drafts/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/plan_input.h"

namespace quire {
namespace {

KvCache make_cache(const ModelSpec& spec, const EngineOptions& options) {
  const KvFormatPair rest = options.kv_formats.rest();  // the layers that are named are the model's
  const KvLayout layout = make_kv_layout(kv_shapes(spec, KvFormats(rest.key, rest.value)));
  return KvCache(layout, pages_for(layout, options.context, options.prefill_chunk, options.max_sequences));
}

// The first tokens of a list, which loses them.
template <class T>
std::vector<T> take(std::vector<T>& from, size_t count) {
  std::vector<T> taken(from.begin(), from.begin() + ptrdiff_t(count));
  from.erase(from.begin(), from.begin() + ptrdiff_t(count));
  return taken;
}

}  // namespace

MtpDrafter::MtpDrafter(const Predictor& predictor, const EngineModel& model, const EngineOptions& options)
    : dim_(predictor.spec.dim),
      context_(options.context),
      chunk_(options.prefill_chunk),
      kv_(make_cache(predictor.spec, options)),
      runner_({&predictor.spec, &predictor.weights, model.backend}, kv_.layout(), kv_.pages_per_group()) {}

void MtpDrafter::forget(SequenceId id) {
  const auto found = states_.find(id);
  if (found == states_.end()) return;
  State& state = found->second;
  kv_.release(state.table, state.fed, uint32_t(state.fed.size()), KvCache::Reason::finished);
  states_.erase(found);
}

void MtpDrafter::forget_all() {
  states_.clear();
  runner_.abandon();
  kv_.forget_everything();
}

// A row depends on the token before its own too: the first of all is part of the salt.
PageTable MtpDrafter::make_table(const Sequence& sequence) const {
  CacheSalt salt = sequence.request.salt;
  salt.text = (salt.text ^ (uint64_t(sequence.tokens.front()) + 1)) * 0x9e3779b97f4a7c15u;
  return kv_.make_table(sequence.id, salt);
}

MtpDrafter::State& MtpDrafter::state_of(const Sequence& sequence) {
  const auto found = states_.find(sequence.id);
  if (found != states_.end()) return found->second;
  State& state = states_.emplace(sequence.id, State{.table = make_table(sequence)}).first->second;
  const auto rows = std::span(sequence.tokens).subspan(1);
  if (rows.empty()) return state;
  const uint32_t cached = kv_.attach(state.table, rows).tokens;
  state.fed.assign(rows.begin(), rows.begin() + cached);
  return state;
}

void MtpDrafter::learn(const Sequence& sequence, uint32_t position, std::span<const float> hidden) {
  if (sequence.request.pruning || sequence.request.budget) return;  // its rows do not stay where they are
  State& state = state_of(sequence);
  if (position > state.next()) {  // what is between, nobody will compute any more
    start_at(state, sequence.id, position);
  }
  const uint32_t end = position + uint32_t(hidden.size() / dim_);
  for (uint32_t p = std::max(position, state.next()); p < end; ++p) {
    CHECK(p + 1 < sequence.tokens.size());
    const auto row = hidden.subspan((p - position) * dim_, dim_);
    state.due.tokens.push_back(sequence.tokens[p + 1]);
    state.due.hidden.insert(state.due.hidden.end(), row.begin(), row.end());
  }
}

void MtpDrafter::start_at(State& state, SequenceId id, uint32_t position) {
  kv_.release(state.table, {}, 0, KvCache::Reason::forgotten);
  state = State{.table = kv_.make_table(id), .first = position};
  kv_.never_publish(state.table);
}

bool MtpDrafter::add(State& state, uint32_t row, const Pairs& pairs, StepInput::Logits logits,
                     StepInput& input) {
  const uint32_t count = uint32_t(pairs.tokens.size());
  if (!kv_.reserve(state.table, row + count)) return false;
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < count; ++i) positions.push_back(state.first + row + i);
  input.add(pairs.tokens, positions, row, logits == StepInput::Logits::last ? 1 : 0);
  input.hidden.insert(input.hidden.end(), pairs.hidden.begin(), pairs.hidden.end());
  return true;
}

MtpDrafter::Pairs MtpDrafter::take_due(State& state, size_t count) const {
  Pairs taken{take(state.due.tokens, count), take(state.due.hidden, count * dim_)};
  state.fed.insert(state.fed.end(), taken.tokens.begin(), taken.tokens.end());
  state.last = {{taken.tokens.back()}, {taken.hidden.end() - ptrdiff_t(dim_), taken.hidden.end()}};
  return taken;
}

StepOutput MtpDrafter::run(StepInput input, std::span<const PageTable* const> tables) {
  input.tables = kv_.flatten(tables);
  input.moves = kv_.take_moves();
  StepOutput output = runner_.collect(runner_.launch(std::move(input)));
  kv_.moved(runner_.take_made());
  return output;
}

// Prompts, of which no draw is wanted yet: what was learned of them is large.
void MtpDrafter::catch_up() {
  for (auto& [id, state] : states_) {
    while (state.due.tokens.size() > chunk_) {
      StepInput input;
      const uint32_t row = uint32_t(state.fed.size());
      const Pairs pairs = take_due(state, chunk_);
      if (!add(state, row, pairs, StepInput::Logits::none, input)) {
        start_at(state, id, state.next());
        break;
      }
      const PageTable* tables[] = {&state.table};
      run(std::move(input), tables);
      kv_.publish(state.table, state.fed, uint32_t(state.fed.size()));
    }
  }
}

bool MtpDrafter::is_ready(State& state, const Sequence& sequence) const {
  if (state.next() + 1 != sequence.tokens.size()) return false;
  if (state.due.tokens.empty() && !state.last.tokens.empty()) {
    state.fed.pop_back();
    state.due = std::exchange(state.last, {});
  }
  return !state.due.tokens.empty();
}

void MtpDrafter::propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) {
  std::map<SequenceId, Pairs> guessed;  // the last guess of each, with what came before it
  for (uint32_t round = 0;; ++round) {
    StepInput input;
    input.report_hidden = StepInput::Hidden::all;
    std::vector<const PageTable*> tables;
    std::vector<Sequence*> asked;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = *sequences[i];
      const auto found = states_.find(sequence.id);
      if (round >= most[i] || sequence.tokens.size() + round >= context_ || found == states_.end()) continue;
      if (round > sequence.drafts.size()) continue;  // there was no row for it
      State& state = found->second;
      if (round == 0 && !is_ready(state, sequence)) continue;
      const uint32_t row = uint32_t(state.fed.size()) + (round == 0 ? 0 : round - 1);
      const Pairs pairs = round == 0 ? take_due(state, state.due.tokens.size()) : guessed.at(sequence.id);
      if (!add(state, row, pairs, StepInput::Logits::last, input)) {
        if (round == 0) start_at(state, sequence.id, state.next());
        continue;
      }
      add_draft_draw(sequence, input);
      tables.push_back(&state.table);
      asked.push_back(&sequence);
    }
    if (asked.empty()) return;
    const std::vector<TokenRun> runs = input.runs;
    const StepOutput output = run(std::move(input), tables);
    for (size_t i = 0; i < asked.size(); ++i) {
      asked[i]->drafts.push_back(output.draws[i].token);
      const size_t end = (runs[i].begin + runs[i].count) * dim_;
      guessed[asked[i]->id] = {
          {output.draws[i].token},
          {output.hidden.begin() + ptrdiff_t(end - dim_), output.hidden.begin() + ptrdiff_t(end)}};
      State& state = states_.at(asked[i]->id);
      kv_.publish(state.table, state.fed, uint32_t(state.fed.size()));
    }
  }
}

}  // namespace quire
