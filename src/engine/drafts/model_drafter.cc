#include "engine/drafts/model_drafter.h"

#include <algorithm>

#include "base/error.h"
#include "engine/plan_input.h"

namespace quire {
namespace {

KvCache make_cache(const EngineModel& draft, const EngineOptions& options) {
  const KvFormatPair rest = options.kv_formats.rest();  // the layers that are named are not this model's
  const KvLayout layout = make_kv_layout(kv_shapes(*draft.spec, KvFormats(rest.key, rest.value)));
  return KvCache(layout, pages_for(layout, options.context, options.prefill_chunk, options.max_sequences));
}

}  // namespace

ModelDrafter::ModelDrafter(const EngineModel& draft, const ModelSpec& target, const EngineOptions& options)
    : draft_(draft),
      context_(draft.spec->learned_positions ? draft.spec->context : options.context),
      chunk_(options.prefill_chunk),
      kv_(make_cache(draft, options)),
      runner_(draft.runner_model(), kv_.layout(), kv_.pages_per_group()) {
  if (draft.spec->vocab != target.vocab) {
    throw Error("the draft model has {} tokens and the model {}: they cannot work together",
                draft.spec->vocab, target.vocab);
  }
  if (kv_.layout().has_states())
    throw Error(
        "the draft model has recurrent layers, whose states do not go back to before a wrong guess; choose "
        "one of "
        "attention layers alone");
}

void ModelDrafter::forget(SequenceId id) {
  const auto found = states_.find(id);
  if (found == states_.end()) return;
  State& state = found->second;
  kv_.release(state.table, state.fed, uint32_t(state.fed.size()), KvCache::Reason::finished);
  states_.erase(found);
}

void ModelDrafter::forget_all() {
  states_.clear();
  runner_.abandon();
  kv_.forget_everything();
}

ModelDrafter::State& ModelDrafter::caught_up(const Sequence& sequence) {
  auto found = states_.find(sequence.id);
  if (found == states_.end()) {
    found = states_.emplace(sequence.id, State{kv_.make_table(sequence.id, sequence.request.salt), {}}).first;
    const uint32_t cached = kv_.attach(found->second.table, sequence.tokens).tokens;
    found->second.fed.assign(sequence.tokens.begin(), sequence.tokens.begin() + cached);
  }
  State& state = found->second;
  const auto [mine, theirs] = std::ranges::mismatch(state.fed, sequence.tokens);
  state.fed.erase(mine, state.fed.end());  // guesses that were wrong
  // The newest token is always fed: its logits are needed.
  if (state.fed.size() == sequence.tokens.size()) state.fed.pop_back();
  return state;
}

void ModelDrafter::compute_prompt(const Sequence& sequence, State& state) {
  while (state.fed.size() + chunk_ < sequence.tokens.size()) {
    const auto part = std::span(sequence.tokens).subspan(state.fed.size(), chunk_);
    if (!feed(state, part)) return;
    StepInput input;
    input.add(part, uint32_t(state.fed.size() - part.size()), StepInput::Logits::none);
    const PageTable* tables[] = {&state.table};
    run(std::move(input), tables);
    kv_.publish(state.table, state.fed, uint32_t(state.fed.size()));
    kv_.release_behind_window(state.table, uint32_t(state.fed.size()));
  }
}

// Makes room for the tokens and counts them as fed.
bool ModelDrafter::feed(State& state, std::span<const TokenId> tokens) {
  if (!kv_.reserve(state.table, uint32_t(state.fed.size() + tokens.size()))) return false;
  state.fed.insert(state.fed.end(), tokens.begin(), tokens.end());
  return true;
}

StepOutput ModelDrafter::run(StepInput input, std::span<const PageTable* const> tables) {
  input.tables = kv_.flatten(tables);
  input.moves = kv_.take_moves();
  StepOutput output = runner_.collect(runner_.launch(std::move(input)));
  kv_.moved(runner_.take_made());
  return output;
}

void ModelDrafter::propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) {
  for (uint32_t round = 0;; ++round) {
    StepInput input;
    std::vector<const PageTable*> tables;
    std::vector<Sequence*> asked;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = *sequences[i];
      if (round >= most[i] || sequence.tokens.size() + round >= context_) continue;
      if (round > sequence.drafts.size()) continue;  // there was no room for it
      State& state = round == 0 ? caught_up(sequence) : states_.at(sequence.id);
      if (round == 0) compute_prompt(sequence, state);
      const uint32_t from = uint32_t(state.fed.size());
      const auto next = round == 0 ? std::span(std::as_const(sequence.tokens)).subspan(from)
                                   : std::span(std::as_const(sequence.drafts)).last(1);
      if (next.size() > chunk_ || !feed(state, next)) continue;
      input.add(next, from, StepInput::Logits::last);
      add_draft_draw(sequence, input);
      tables.push_back(&state.table);
      asked.push_back(&sequence);
    }
    if (asked.empty()) return;
    const StepOutput output = run(std::move(input), tables);
    for (size_t i = 0; i < asked.size(); ++i) {
      asked[i]->drafts.push_back(output.draws[i].token);
      // Pages that only guesses have filled are not for others.
      State& state = states_.at(asked[i]->id);
      const uint32_t sure = uint32_t(std::min(state.fed.size(), asked[i]->tokens.size()));
      kv_.publish(state.table, asked[i]->tokens, sure);
      kv_.release_behind_window(state.table, sure - 1);  // the last sure token may be fed once more
    }
  }
}

}  // namespace quire
