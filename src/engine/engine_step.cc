#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/answer_constraint.h"
#include "engine/engine.h"
#include "engine/plan_input.h"

// One step of the engine, from the plan to the tokens that were drawn.

namespace quire {
namespace {

constexpr std::chrono::seconds kLongestHandOver{5};  // that an answer waits for the store

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const size_t index = std::min(values.size() - 1, size_t(share * double(values.size())));
  std::nth_element(values.begin(), values.begin() + ptrdiff_t(index), values.end());
  return values[index];
}

Timings measure(const Sequence& sequence) {
  Timings timings;
  const auto& times = sequence.token_times;
  if (times.empty()) return timings;
  timings.ttft_ms = milliseconds_between(sequence.submitted, times.front());
  if (timings.ttft_ms > 0)
    timings.prefill_tok_s = 1000.0 *
                            double(sequence.request.prompt.size() - sequence.answer.account.cached_tokens) /
                            timings.ttft_ms;
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(milliseconds_between(times[i - 1], times[i]));
  timings.itl_ms_p50 = percentile(gaps, 0.5);
  timings.itl_ms_p99 = percentile(gaps, 0.99);
  const double total = milliseconds_between(times.front(), times.back());
  if (total > 0) timings.decode_tok_s = 1000.0 * double(gaps.size()) / total;
  return timings;
}

}  // namespace

void Engine::propose_drafts() {
  if (!drafter_) return;
  drafter_->catch_up();
  std::vector<Sequence*> streams;
  std::vector<uint32_t> most;
  for (const auto& sequence : scheduler_.running()) {
    if (sequence->ahead.rows > 0) continue;  // what it has is still being judged
    sequence->drafts.clear();
    if (sequence->backlog() != 1 || sequence->pooled) continue;
    if (sequence->prune.is_due()) continue;  // guesses would be pruned with its prompt
    if (sequence->request.watch) continue;   // nobody wants to know where a wrong guess looks
    const uint32_t known = uint32_t(sequence->tokens.size());
    if (known >= options_.context) continue;  // drafters have no budget
    uint32_t left = options_.context - known;
    if (sequence->request.max_tokens > 0)
      left = std::min(left, sequence->request.max_tokens - sequence->answer_tokens());
    streams.push_back(sequence.get());
    most.push_back(std::min(left - 1, pace_.length(sequence->id)));
    if (sequence->budget)
      most.back() = std::min(most.back(), sequence->budget->most_guesses(sequence->rows()));
  }
  if (!streams.empty()) drafter_->propose(streams, most);
  for (size_t i = 0; i < streams.size(); ++i) {
    if (streams[i]->constraint) streams[i]->constraint->shape(streams[i]->drafts, most[i]);
  }
}

bool Engine::compute_step() {
  end_overdue();
  tell_handed_over();
  if (!flights_.empty() && (wants_to_wait_ || scheduler_.idle())) {
    land();
    return true;
  }
  if (scheduler_.idle()) {
    // Pages that nobody waits for any more: then they are cached like others.
    while (kv_.pages_arriving() > 0) wait_for_tiers();
    if (!remote_) return false;
    settle_moves();  // what was published last goes to the store now, and not with the next request
    if (handing_over_.empty()) return false;
    remote_->wait(std::chrono::milliseconds(2));
    tell_handed_over();
    return true;
  }
  const size_t before = flights_.size();
  take_off();
  if (before > 0) land();
  const bool may_stay = options_.pipeline > 1 && options_.kv_cache && !scheduler_.idle();
  if (!flights_.empty() && (!may_stay || !flights_.front().taps.empty())) land();
  return true;
}

void Engine::take_off() {
  StepTimes times{
      .begin = options_.now(), .planned = {}, .end = {}, .evicted = kv_.events().count(KvEventKind::evicted)};
  take_made();
  loads_.advance();
  propose_drafts();
  times.planned = options_.now();
  const bool streams_run =
      std::ranges::any_of(scheduler_.running(), [](const auto& s) { return s->backlog() == 1; });
  StepPlan plan =
      scheduler_.plan(budget_.tokens(streams_run), budget_.per_token_ms(),
                      flights_.empty() ? Scheduler::Before::all_done : Scheduler::Before::one_on_its_way);
  wants_to_wait_ = plan.wants_to_wait;
  const bool somebody_loads = loads_.any();
  for (const StepPlan::Scoring& scoring : plan.scorings) score(scoring);
  if (!plan.runs.empty()) return launch(std::move(plan), times);
  move_aside();
  start_moves();
  if (!flights_.empty() || !plan.scorings.empty()) return;
  if (wait_for_tiers() || somebody_loads) return;
  for (auto& sequence : scheduler_.take_hopeless()) {
    sequence->answer.finish_reason = FinishReason::no_room;
    finish(std::move(sequence));
  }
}

void Engine::expose(const StepPlan& plan) {
  std::vector<SequenceId> all;  // all or nobody: that there is no memory for it says nothing of who is served
  for (const Flight& flight : flights_) {
    for (const StepPlan::Run& run : flight.plan.runs) all.push_back(run.id);
  }
  for (const StepPlan::Run& run : plan.runs) all.push_back(run.id);
  being_computed_ = std::move(all);
}

void Engine::launch(StepPlan plan, StepTimes times) {
  Flight flight{.plan = std::move(plan), .handle = {}, .taps = {}, .times = times, .cost = {}};
  StepInput input = input_of(flight.plan, kv_);
  move_aside();  // now that all is decided: what it copies from is not evicted in this step any more
  for (size_t r = 0; r < input.runs.size(); ++r)
    flight.taps.ask(*flight.plan.runs[r].sequence, input.runs[r], input);
  flight.cost = cost_of(costs_, input.batch(), kv_.layout());
  flight.attention_pairs = attention_pairs(input.batch());
  expose(flight.plan);
  input.moves = kv_.take_moves();
  input.aside = kv_.take_aside();
  if ((drafter_ && drafter_->wants_hidden()) || makes_rows(flight.plan))
    input.report_hidden = StepInput::Hidden::all;
  flight.handle = runner_.launch(std::move(input));
  take_made();
  being_computed_.clear();
  flights_.push_back(std::move(flight));
}

void Engine::land() {
  expose({});
  Flight& flight = flights_.front();
  const StepPlan& plan = flight.plan;
  const StepOutput output = runner_.collect(flight.handle);
  take_made();
  flight.taps.tell(output);
  being_computed_.clear();
  StepTimes& times = flight.times;
  times.end = options_.now();
  times.begin = std::max(times.begin, last_end_);
  times.planned = std::max(times.planned, times.begin);
  times.evicted = kv_.events().count(KvEventKind::evicted) - times.evicted;
  last_end_ = times.end;
  const uint32_t draft_tokens = plan.draft_tokens();
  const double step_ms = milliseconds_between(times.begin, times.end);
  steps_.add({.begin = times.begin,
              .ms = step_ms,
              .runs = uint32_t(plan.runs.size()),
              .prompt_tokens = plan.prefill_tokens,
              .stream_tokens = plan.tokens - plan.prefill_tokens - draft_tokens,
              .draft_tokens = draft_tokens,
              .cost = flight.cost,
              .attention_pairs = flight.attention_pairs});
  budget_.learn(step_ms, plan.tokens - plan.prefill_tokens, plan.prefill_tokens);
  if (plan.prefill_tokens == 0) {
    pace_.learn_step(milliseconds_between(times.planned, times.end),
                     milliseconds_between(times.begin, times.planned), uint32_t(plan.runs.size()),
                     plan.tokens - uint32_t(plan.runs.size()));
  }
  const Flight landed = std::move(flights_.front());
  flights_.pop_front();
  settle(landed.plan, output, landed.times);
}

void Engine::score(const StepPlan::Scoring& scoring) {
  Sequence& sequence = *scoring.sequence;
  const Clock::time_point begin = options_.now();
  const ScoringPass& pass = *sequence.due_pass();
  StepInput input;
  StepTaps taps;
  const PageTable* tables[] = {&sequence.table};
  input.tables = kv_.flatten(tables);
  input.layers = pass.layers;
  if (pass.tokens.empty()) {
    input.expectations = sequence.prune.scorer->expectations(input.values);
  } else {
    const uint32_t row = pass.row + sequence.prune.pass_done;
    input.add(std::span(pass.tokens).subspan(sequence.prune.pass_done, scoring.count), row,
              StepInput::Logits::none);
    taps.ask(*sequence.prune.scorer, input.runs[0], row,
             pass.row + uint32_t(pass.tokens.size()) - pass.observed, input);
  }
  const StepCost cost = cost_of(costs_, input.batch(), kv_.layout());
  const double pairs = attention_pairs(input.batch());
  input.moves = kv_.take_moves();
  input.aside = kv_.take_aside();
  const StepOutput output = runner_.collect(runner_.launch(std::move(input)));
  take_made();
  taps.tell(output);
  if (pass.tokens.empty()) sequence.prune.scorer->take(output.values);
  sequence.prune.pass_done += scoring.count;
  // Of a pass over the prompt itself nothing is needed again; one that follows it must leave the windows as they are.
  if (pass.row == 0) kv_.release_behind_window(sequence.table, sequence.prune.pass_done);
  const Clock::time_point end = options_.now();
  StepRecord record;
  record.begin = begin;
  record.ms = milliseconds_between(begin, end);
  record.runs = 1;
  record.prompt_tokens = scoring.count;
  record.cost = cost;
  const double computed_share = double(pass.layers) / double(model_.spec->layers.size());
  record.cost *= computed_share;
  record.attention_pairs = pairs * computed_share;
  steps_.add(record);
  if (!sequence.started) sequence.answer.account.queue_ms = milliseconds_between(sequence.submitted, begin);
  sequence.started = true;
  if (pass.tokens.empty()) {
    sequence.answer.account.choosing_ms += record.ms;
  } else {
    sequence.answer.account.prefill.push_back({milliseconds_between(sequence.submitted, begin), record.ms,
                                               scoring.count, scoring.count, sequence.computed,
                                               sequence.computed});
  }
  if (sequence.prune.pass_done < pass.tokens.size()) return;
  if (pass.row == 0) {
    kv_.release(sequence.table, {}, 0, KvCache::Reason::forgotten);  // some of it may be others'
  } else {
    kv_.truncate(sequence.table, pass.row);
  }
  sequence.prune.end_pass();
  if (!sequence.prune.scorer->chooses_before_prefill() || sequence.due_pass() != nullptr) return;
  sequence.prune.kept = sequence.prune.scorer->choose_tokens();
  sequence.prune.dropped = sequence.prune.scorer->tokens() - uint32_t(sequence.prune.kept.size());
  sequence.answer.account.pruned_tokens = sequence.prune.dropped;
  sequence.prune.scorer->restart();
  kv_.never_publish(sequence.table);
}

void Engine::account(Sequence& sequence, const StepPlan::Run& run, const StepPlan& plan,
                     const StepTimes& times) {
  RequestAccount& account = sequence.answer.account;
  if (!sequence.started) account.queue_ms = milliseconds_between(sequence.submitted, times.begin);
  sequence.started = true;
  if (run.is_prompt || sequence.answer_tokens() == 0) {
    account.prefill.push_back({milliseconds_between(sequence.submitted, times.begin),
                               milliseconds_between(times.begin, times.end), run.count, plan.tokens,
                               sequence.computed, sequence.computed + run.count});
  }
  const uint32_t of_others = plan.prefill_tokens - (run.is_prompt ? run.count : 0);
  GapCause cause = GapCause::none;
  if (times.evicted > 0) cause = GapCause::eviction;
  if (of_others > 0) cause = GapCause::prefill_of_another;
  if (sequence.gap_cause == GapCause::none) sequence.gap_cause = cause;
}

void Engine::teach(const Sequence& sequence, uint32_t before, size_t row, const StepOutput& output) {
  if (!drafter_ || !drafter_->wants_hidden() || sequence.pooled) return;
  if (output.hidden.empty() || sequence.finished() || sequence.computed <= before) return;
  const size_t dim = model_.spec->dim;
  drafter_->learn(sequence, before,
                  std::span(output.hidden).subspan(row * dim, (sequence.computed - before) * dim));
}

void Engine::tell_scores(Sequence& sequence, std::span<const SampleResult> results) {
  for (uint32_t i = 0; i < results.size(); ++i) {
    const uint32_t position = sequence.token_of(sequence.computed) + i + 1;
    if (position <= sequence.scores_told) continue;  // computed again after a preemption
    sequence.scores_told = position;
    CHECK(results[i].watched.size() == 1);
    const TokenRank& told = results[i].watched.front();
    sequence.request.on_prompt_score({.position = position,
                                      .token = told.token,
                                      .loss = told.loss,
                                      .top_logprobs = results[i].top_logprobs});
  }
}

bool Engine::makes_rows(const StepPlan& plan) {
  return std::ranges::any_of(plan.runs, [](const StepPlan::Run& run) {
    const Sequence& sequence = *run.sequence;  // which counts the run as on its way
    return sequence.pooled && sequence.pooled->wants_any(sequence.rows() - run.count, run.count);
  });
}

void Engine::pool(Sequence& sequence, uint32_t count, size_t row, const StepOutput& output) {
  const size_t dim = model_.spec->dim;
  PooledRows& pooled = *sequence.pooled;
  for (uint32_t i = 0; i < count; ++i) {
    if (!pooled.wants(sequence.computed + i)) continue;
    CHECK(output.hidden.size() >= (row + i + 1) * dim);
    pooled.add(sequence.computed + i, std::span(output.hidden).subspan((row + i) * dim, dim));
  }
  if (sequence.computed + count < sequence.tokens.size()) return;
  sequence.answer.finish_reason = FinishReason::stop;
  try {
    sequence.request.embedding->on_vector(pooled.take());
  } catch (const std::exception&) {
    sequence.answer.finish_reason = FinishReason::failed;
  }
}

void Engine::settle(const StepPlan& plan, const StepOutput& output, const StepTimes& times) {
  std::span<const SampleResult> results = output.draws;
  size_t next_row = 0;
  for (const StepPlan::Run& run : plan.runs) {
    const size_t row = next_row;
    next_row += run.count + run.drafts;
    const std::span<const SampleResult> drawn = results.first(run.scored    ? run.count
                                                              : run.samples ? run.drafts + 1
                                                                            : 0);
    results = results.subspan(drawn.size());
    Sequence* found = scheduler_.find(run.id);
    if (found == nullptr) continue;  // it has ended since the step was launched: what was drawn is not wanted
    Sequence& sequence = *found;
    account(sequence, run, plan, times);
    const uint32_t before = sequence.computed;
    sequence.ahead.rows -= run.count;
    if (sequence.ahead.astray) {  // its row will be computed again, from the right token
      sequence.ahead.astray = false;
      if (run.samples) --sequence.ahead.drawing;
      kv_.end_run(sequence.table, sequence.computed);
      continue;
    }
    if (run.scored) tell_scores(sequence, drawn);
    if (sequence.pooled) pool(sequence, run.count, row, output);
    sequence.computed += run.count;  // before the tokens are told: who listens may ask for it
    if (run.samples) {
      --sequence.ahead.drawing;
      const uint32_t right = add_tokens(sequence, drawn);
      if (right < run.drafts && kv_.layout().has_states()) {
        // The state went on with the wrong guesses: what was right is computed again, from where the run began.
        sequence.computed -= run.count;
      } else {
        sequence.computed += right;
      }
      sequence.ahead.astray = drawn.back().amended && sequence.ahead.rows > 0;
    }
    sequence.drafts.clear();
    teach(sequence, before, row, output);
    if (options_.kv_cache) kv_.end_run(sequence.table, sequence.computed, sequence.ahead.rows);
    if (sequence.finished()) {
      finish(scheduler_.remove(sequence.id));
    } else if (!options_.kv_cache) {
      kv_.release(sequence.table, sequence.tokens, sequence.computed, KvCache::Reason::forgotten);
      sequence.computed = 0;
    } else {
      kv_.publish(sequence.table, sequence.tokens, sequence.computed);
      kv_.release_behind_window(sequence.table, sequence.computed);
    }
  }
}

uint32_t Engine::add_tokens(Sequence& sequence, std::span<const SampleResult> results) {
  RequestAccount& account = sequence.answer.account;
  account.drafted += uint32_t(results.size()) - 1;
  // A draft was right if it is what the model itself drew in its place; then the draw after it counts as well.
  for (uint32_t right = 0;; ++right) {
    const std::span<const TokenId> guesses = std::span(sequence.drafts).subspan(right);
    const bool guessed = !guesses.empty() && guesses.front() == results[right].token;
    add_token(sequence, results[right], guesses);
    if (right > 0) account.gaps.back().same_pass = true;
    if (sequence.finished() || !guessed) {
      account.accepted += right + (guessed ? 1 : 0);
      pace_.learn_result(sequence.id, uint32_t(results.size()) - 1, right);
      return right;
    }
  }
}

void Engine::add_token(Sequence& sequence, const SampleResult& result, std::span<const TokenId> guesses) {
  const Clock::time_point now = options_.now();
  Answer& answer = sequence.answer;
  if (!sequence.token_times.empty()) {
    answer.account.gaps.push_back(
        {float(milliseconds_between(sequence.token_times.back(), now)), sequence.gap_cause});
    ++answer.account.gap_causes[size_t(sequence.gap_cause)];
  }
  sequence.gap_cause = GapCause::none;
  sequence.append(result.token);
  sequence.token_times.push_back(now);
  answer.tokens.push_back(result.token);
  if (sequence.request.logprobs) answer.logprobs.push_back(result.logprob);
  TokenEvent event{.token = result.token,
                   .choice = sequence.request.choice,
                   .text = {},
                   .logprob = result.logprob,
                   .top_logprobs = result.top_logprobs,
                   .watched = result.watched,
                   .guessed = !guesses.empty() && guesses.front() == result.token,
                   .wrong_guesses = {}};
  if (sequence.detokenizer) {
    const bool shown = std::ranges::binary_search(sequence.request.shown_special, result.token);
    event.text = sequence.stop.push(sequence.detokenizer->push(
        result.token, shown ? Tokenizer::Special::keep : Tokenizer::Special::skip));
  }
  answer.finish_reason = why_finished(sequence, result.token);
  if (sequence.constraint && !sequence.finished()) {
    answer.finish_reason = sequence.constraint->add(result.token);
    answer.problem = sequence.constraint->problem();
  }
  if (sequence.stop.matched()) answer.stop = sequence.stop.match();
  if (sequence.finished() && sequence.detokenizer) {
    event.text += sequence.stop.push(sequence.detokenizer->finish());
    event.text += sequence.stop.finish();
  }
  answer.text += event.text;
  if (!event.guessed || sequence.finished()) {
    guesses = guesses.subspan(event.guessed ? 1 : 0);
    event.wrong_guesses.assign(guesses.begin(), guesses.end());
  }
  if (!sequence.request.on_token) return;
  try {
    sequence.request.on_token(event);
  } catch (const std::exception&) {
    answer.finish_reason =
        FinishReason::failed;  // whoever listens cannot be told: that is no reason to end others
  }
}

FinishReason Engine::why_finished(Sequence& sequence, TokenId token) const {
  if (sequence.stop.matched() || std::ranges::binary_search(sequence.request.stop_tokens, token))
    return FinishReason::stop;
  if (!sequence.request.ignore_end && std::ranges::find(model_.end_tokens, token) != model_.end_tokens.end())
    return FinishReason::stop;
  if (sequence.request.max_tokens > 0 && sequence.answer_tokens() >= sequence.request.max_tokens) {
    return FinishReason::length;
  }
  if (outlives_context(sequence.request)) {
    // Without a word of how long an answer may be, it is as long as one that has the context to itself.
    const bool is_long = sequence.request.max_tokens == 0 && sequence.answer_tokens() >= options_.context;
    return is_long ? FinishReason::length : FinishReason::none;
  }
  if (sequence.tokens.size() >= options_.context) {
    sequence.answer.context_full = true;
    return FinishReason::length;
  }
  return FinishReason::none;
}

void Engine::finish(std::unique_ptr<Sequence> sequence) {
  Answer& answer = sequence->answer;
  answer.timings = measure(*sequence);
  for (uint32_t g = 0; g < sequence->table.groups(); ++g) {
    answer.kv_pages += sequence->table.held_pages(g);
    answer.kv_bytes += sequence->table.held_pages(g) * kv_.layout().groups[g].page_bytes;
  }
  kv_.release(sequence->table, sequence->tokens, sequence->computed, KvCache::Reason::finished);
  forget_drafts(sequence->id);
  if (!remote_) {
    answers_.emplace_back(sequence->id, std::move(answer));
    return;
  }
  const CacheSalt salt = sequence->request.salt;
  kv_.send({sequence->tokens, salt});  // what found no room in the queue when it was published
  const bool hands_over = sequence->request.hands_over && answer.finish_reason != FinishReason::cancelled;
  Clock::time_point until = options_.now() + (hands_over ? kLongestHandOver : std::chrono::seconds(0));
  if (sequence->request.deadline) until = std::min(until, *sequence->request.deadline);
  if (hands_over) {
    handing_over_.push_back(
        {sequence->id, std::move(answer), {sequence->request.prompt, salt}, remote_->last_sent(), until});
  } else {
    answers_.emplace_back(sequence->id, std::move(answer));
  }
}

}  // namespace quire
