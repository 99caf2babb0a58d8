#include "engine/engine.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/plan_input.h"
#include "engine/pruning/zip_scorer.h"

namespace quire {
namespace {

EngineOptions settled(EngineOptions options, const ModelSpec& spec) {
  if (options.context == 0) options.context = spec.context;
  if (spec.learned_positions && options.context > spec.context) {
    throw Error("a context of {} tokens was asked for, but the model has positions for {} only",
                options.context, spec.context);
  }
  if (options.prefill_chunk == 0) throw Error("a prefill chunk must have at least one token");
  // Without a cache every step computes whole sequences.
  if (!options.kv_cache) options.prefill_chunk = options.context;
  options.prefill_chunk = std::min(options.prefill_chunk, options.context);
  return options;
}

KvCache make_cache(const ModelSpec& spec, const EngineOptions& options) {
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats), options.page_tokens);
  const auto pages =
      options.kv_bytes == 0
          ? pages_for(layout, options.context, options.prefill_chunk, options.max_sequences)
          : pages_within(layout, options.kv_bytes, options.prefill_chunk, options.max_sequences);
  return KvCache(layout, pages, {.sharing = options.sharing && options.kv_cache});
}

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

Engine::Engine(const EngineModel& model, const EngineOptions& options, std::unique_ptr<Drafter> drafter)
    : model_(model),
      options_(settled(options, *model.spec)),
      kv_(make_cache(*model.spec, options_)),
      runner_(model.runner_model(), kv_.layout(), kv_.pages_per_group()),
      scheduler_({.max_sequences = options_.max_sequences, .prefill_chunk = options_.prefill_chunk}, kv_),
      costs_(*model.weights, *model.backend),
      budget_(options_.itl_target_ms,
              options_.kv_cache ? options_.prefill_chunk : options_.context * options_.max_sequences),
      pace_(options_.draft_tokens),
      drafter_(options_.kv_cache ? std::move(drafter) : nullptr) {
  if (options_.disk_bytes == 0 || !options_.sharing || !options_.kv_cache) return;
  disk_ = std::make_unique<DiskTier>(
      kv_.layout(), DiskTierOptions{.folder = options_.disk_folder, .bytes = options_.disk_bytes},
      options_.disk_io);
  loads_ = std::make_unique<DiskLoads>(kv_, *disk_, options_.disk_patience);
  kv_.evict_to(*disk_);
  scheduler_.wait_for(*loads_);
}

Engine::~Engine() = default;

template <class Work>
std::invoke_result_t<Work> Engine::guarded(Work&& work) {
  try {
    return work();
  } catch (...) {
    recover();
    throw;
  }
}

void Engine::check(const Request& request) const {
  request.sampling.check();
  if (request.prompt.empty()) throw Error("the prompt is empty: there is nothing to continue");
  if (request.prompt.size() >= options_.context) {
    throw Error("the prompt has {} tokens, but the context holds {} with at least one for the answer",
                request.prompt.size(), options_.context);
  }
  for (TokenId token : request.prompt) {
    if (token >= model_.spec->vocab) {
      throw Error("the prompt has the token {}, but the model knows {} tokens only", token,
                  model_.spec->vocab);
    }
  }
  if (request.pruning) check_pruning(request);
  if (request.watch) check_watch(request);
  uint64_t tokens = options_.context;
  if (request.max_tokens > 0)
    tokens = std::min<uint64_t>(tokens, request.prompt.size() + uint64_t(request.max_tokens));
  if (!kv_.could_hold(uint32_t(tokens), options_.prefill_chunk)) {
    throw Error("{} tokens of prompt and {} of answer need {} bytes of KV cache, but there are {} in all",
                request.prompt.size(), tokens - request.prompt.size(),
                kv_bytes(kv_.layout(), pages_for(kv_.layout(), uint32_t(tokens), options_.prefill_chunk, 1)),
                kv_.stats().capacity_bytes);
  }
}

void Engine::check_pruning(const Request& request) const {
  const PruningOptions& pruning = *request.pruning;
  pruning.check();
  if (!options_.kv_cache) throw Error("without a KV cache there is nothing to prune");
  if (pruning.scored > request.prompt.size())
    throw Error("{} tokens are to be pruned, but the prompt has {} only", pruning.scored,
                request.prompt.size());
  const size_t layers = model_.spec->layers.size();
  for (const KvLayerShape& shape : kv_shapes(*model_.spec, KvFormats())) {
    if (shape.shares_with)
      throw Error("layers of this model read each other's keys and values: such a cache cannot be pruned");
  }
  if (pruning.policy == PruningPolicy::evaluator) {
    if (pruning.evaluator.layer >= layers ||
        std::ranges::max(pruning.evaluator.heads) >= model_.spec->layers[pruning.evaluator.layer].gqa().heads)
      throw Error("the evaluator heads are those of another model");
    if (model_.spec->layers[pruning.evaluator.layer].window() > 0)
      throw Error("layer {} sees a window only: its heads cannot judge a prompt", pruning.evaluator.layer);
  }
  const uint32_t scored = pruning.scored > 0 ? pruning.scored : uint32_t(request.prompt.size());
  const uint32_t again =
      pruning.policy == PruningPolicy::zip ? ZipScorer::pass_tokens(scored, model_.repeat_request) : 0;
  if (scored + again > options_.context) {
    throw Error(
        "{} tokens of prompt are read again in parts of {} after themselves, but the context holds {}",
        scored, again, options_.context);
  }
  if (!kv_.could_hold(scored + again, std::max(options_.prefill_chunk, again))) {
    throw Error(
        "{} tokens of prompt and {} that are read again need more KV cache than the {} bytes there are",
        scored, again, kv_.stats().capacity_bytes);
  }
}

void Engine::check_watch(const Request& request) const {
  CHECK(request.watch->on_row != nullptr);
  place_of(request.watch->layer, request.watch->head);  // throws if there is none
  if (request.pruning)
    throw Error("a prompt that is pruned cannot be watched: its rows do not stay in their places");
  if (request.prompt.size() > HeadWatch::kMostTokens) {
    throw Error(
        "a head is watched over at most {} tokens, for it has a share for every pair of them; the prompt has "
        "{}",
        HeadWatch::kMostTokens, request.prompt.size());
  }
}

void Engine::add(Request request, std::optional<SequenceId> lead, SequenceId id) {
  std::ranges::sort(request.stop_tokens);
  PageTable table = kv_.make_table(id, request.salt);
  auto sequence =
      std::make_unique<Sequence>(id, std::move(request), std::move(table), model_.tokenizer, options_.now());
  sequence->lead = lead;
  if (const auto& pruning = sequence->request.pruning) {
    const uint32_t scored = pruning->scored > 0 ? pruning->scored : uint32_t(sequence->tokens.size());
    if (pruning->kept_of(scored) < scored)
      sequence->scorer = make_scorer(*pruning, *model_.spec, kv_.layout(), scored, model_.repeat_request);
  }
  scheduler_.add(std::move(sequence));
}

SequenceId Engine::submit(Request request) {
  check(request);
  const SequenceId id{next_id_++};
  add(std::move(request), std::nullopt, id);
  return id;
}

std::vector<SequenceId> Engine::submit_choices(const Request& request, uint32_t count) {
  check(request);
  std::vector<SequenceId> ids;
  for (uint32_t choice = 0; choice < count; ++choice) ids.push_back(SequenceId{next_id_++});
  try {
    for (uint32_t choice = 0; choice < count; ++choice) {
      Request one = request;
      one.choice = choice;
      add(std::move(one), choice == 0 ? std::nullopt : std::optional(ids.front()), ids[choice]);
    }
  } catch (...) {
    for (SequenceId id : ids) cancel(id);  // all or none
    throw;
  }
  return ids;
}

std::optional<SequenceId> Engine::fork(SequenceId from, uint32_t at, Request request) {
  const Sequence* parent = scheduler_.find(from);
  if (parent == nullptr || at == 0 || at > parent->tokens.size()) return std::nullopt;
  request.prompt.assign(parent->tokens.begin(), parent->tokens.begin() + at);
  request.salt = parent->request.salt;
  check(request);
  const SequenceId id{next_id_++};
  add(std::move(request), from, id);
  return id;
}

StepCost Engine::prompt_cost(uint32_t tokens, uint32_t cached) const {
  StepCost cost;
  for (uint32_t done = cached; done < tokens;) {
    const uint32_t count = std::min(options_.prefill_chunk, tokens - done);
    cost += costs_.step({.tokens = count, .depth = done, .logit_rows = done + count == tokens ? 1u : 0u},
                        kv_.layout());
    done += count;
  }
  return cost;
}

Engine::Pin Engine::pin(const SaltedTokens& prompt, PinTerms terms) {
  return guarded([&] {
    const SequenceId id{next_id_++};
    const Pinned& pinned = pins_.emplace(id, Pinned{kv_.pin(prompt, id), std::move(terms)}).first->second;
    return Pin{id, pinned.tokens()};
  });
}

bool Engine::unpin(SequenceId pin) {
  const auto found = pins_.find(pin);
  if (found == pins_.end()) return false;
  guarded([&] {
    kv_.release(found->second.table, {}, 0, KvCache::Reason::forgotten);
    pins_.erase(found);
  });
  return true;
}

void Engine::unpin_all() {
  while (!pins_.empty()) unpin(pins_.begin()->first);
}

void Engine::end_overdue_pins() {
  const Clock::time_point now = options_.now();
  std::vector<SequenceId> overdue;
  for (const auto& [id, pinned] : pins_) {
    if (pinned.terms.until && *pinned.terms.until <= now) overdue.push_back(id);
  }
  for (SequenceId id : overdue) unpin(id);
}

void Engine::cancel(SequenceId id) {
  guarded([&] { end(id, KvCache::Reason::finished); });
}

void Engine::end(SequenceId id, KvCache::Reason reason) {
  if (auto sequence = scheduler_.remove(id)) {
    kv_.release(sequence->table, sequence->tokens, sequence->computed, reason);
    forget_drafts(id);
  }
}

void Engine::forget_drafts(SequenceId id) {
  pace_.forget(id);
  if (drafter_) drafter_->forget(id);
}

void Engine::end_overdue() {
  end_overdue_pins();
  const Clock::time_point now = options_.now();
  std::vector<SequenceId> overdue;
  for (const auto* list : {&scheduler_.running(), &scheduler_.waiting()}) {
    for (const auto& sequence : *list) {
      if (sequence->request.deadline && *sequence->request.deadline <= now) overdue.push_back(sequence->id);
    }
  }
  for (SequenceId id : overdue) {
    auto sequence = scheduler_.remove(id);
    sequence->answer.finish_reason = FinishReason::deadline;
    finish(std::move(sequence));
  }
}

void Engine::propose_drafts() {
  if (!drafter_) return;
  std::vector<Sequence*> streams;
  std::vector<uint32_t> most;
  for (const auto& sequence : scheduler_.running()) {
    if (sequence->ahead > 0) continue;  // what it has is still being judged
    sequence->drafts.clear();
    if (sequence->backlog() != 1) continue;
    if (sequence->scorer && sequence->dropped == 0) continue;  // guesses would be pruned with its prompt
    if (sequence->request.watch) continue;  // nobody wants to know where a wrong guess looks
    uint32_t left = options_.context - uint32_t(sequence->tokens.size());
    if (sequence->request.max_tokens > 0)
      left = std::min(left, sequence->request.max_tokens - sequence->answer_tokens());
    streams.push_back(sequence.get());
    most.push_back(std::min(left - 1, pace_.length(sequence->id)));
  }
  if (!streams.empty()) drafter_->propose(streams, most);
}

bool Engine::step() {
  return guarded([&] { return compute_step(); });
}

void Engine::recover() {
  const std::vector<SequenceId> served = std::exchange(being_computed_, {});
  runner_.abandon();
  flights_.clear();
  wants_to_wait_ = false;
  try {
    kv_.moved(runner_.take_made());
    for (SequenceId id : served) end(id, KvCache::Reason::forgotten);
    if (!served.empty() && kv_.moves_on_their_way() == 0) return;
  } catch (const std::exception&) {
    // There is no memory even for that.
  }
  // It may be anywhere in what it was changing: only what is empty can be trusted.
  scheduler_.drop_running();
  pins_.clear();
  if (drafter_) drafter_->forget_all();
  pace_.forget_all();
  kv_.forget_everything();
}

bool Engine::compute_step() {
  end_overdue();
  if (!flights_.empty() && (wants_to_wait_ || scheduler_.idle())) {
    land();
    return true;
  }
  if (scheduler_.idle()) return false;
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
  if (loads_) loads_->advance();
  propose_drafts();
  times.planned = options_.now();
  const bool streams_run =
      std::ranges::any_of(scheduler_.running(), [](const auto& s) { return s->backlog() == 1; });
  StepPlan plan =
      scheduler_.plan(budget_.tokens(streams_run), budget_.per_token_ms(),
                      flights_.empty() ? Scheduler::Before::all_done : Scheduler::Before::one_on_its_way);
  wants_to_wait_ = plan.wants_to_wait;
  for (const StepPlan::Scoring& scoring : plan.scorings) score(scoring);
  if (!plan.runs.empty()) return launch(std::move(plan), times);
  if (!flights_.empty() || !plan.scorings.empty()) return;
  if (loads_ && loads_->any()) {
    settle_moves();
    loads_->wait();
    return;
  }
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
  for (size_t r = 0; r < input.runs.size(); ++r)
    flight.taps.ask(*flight.plan.runs[r].sequence, input.runs[r], input);
  flight.cost = cost_of(costs_, input.batch(), kv_.layout());
  flight.attention_pairs = attention_pairs(input.batch());
  expose(flight.plan);
  input.moves = kv_.take_moves();
  flight.handle = runner_.launch(std::move(input));
  kv_.moved(runner_.take_made());
  being_computed_.clear();
  flights_.push_back(std::move(flight));
}

void Engine::land() {
  expose({});
  Flight& flight = flights_.front();
  const StepPlan& plan = flight.plan;
  const StepOutput output = runner_.collect(flight.handle);
  kv_.moved(runner_.take_made());
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
  settle(landed.plan, output.draws, landed.times);
}

void Engine::settle_moves() {
  const KvMoves moves = kv_.take_moves();
  runner_.make(moves);
  kv_.moved(moves);
}

MakeMoves Engine::make_moves() {
  return [this](const KvMoves& moves) {
    settle_moves();
    runner_.make(moves);
  };
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
    input.expectations = sequence.scorer->expectations(input.values);
  } else {
    const uint32_t row = pass.row + sequence.pass_done;
    input.add(std::span(pass.tokens).subspan(sequence.pass_done, scoring.count), row,
              StepInput::Logits::none);
    taps.ask(*sequence.scorer, input.runs[0], row, pass.row + uint32_t(pass.tokens.size()) - pass.observed,
             input);
  }
  const StepCost cost = cost_of(costs_, input.batch(), kv_.layout());
  const double pairs = attention_pairs(input.batch());
  input.moves = kv_.take_moves();
  const StepOutput output = runner_.collect(runner_.launch(std::move(input)));
  kv_.moved(runner_.take_made());
  taps.tell(output);
  if (pass.tokens.empty()) sequence.scorer->take(output.values);
  sequence.pass_done += scoring.count;
  // Of a pass over the prompt itself nothing is needed again; one that follows it must leave the windows as they are.
  if (pass.row == 0) kv_.release_behind_window(sequence.table, sequence.pass_done);
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
  sequence.answer.account.prefill.push_back({milliseconds_between(sequence.submitted, begin), record.ms,
                                             scoring.count, scoring.count, sequence.computed,
                                             sequence.computed});
  if (sequence.pass_done < pass.tokens.size()) return;
  kv_.truncate(sequence.table, pass.row);
  sequence.pass.reset();
  sequence.pass_done = 0;
  ++sequence.pass_index;
  if (!sequence.scorer->chooses_before_prefill() || sequence.due_pass() != nullptr) return;
  sequence.kept = sequence.scorer->choose_tokens();
  sequence.dropped = sequence.scorer->tokens() - uint32_t(sequence.kept.size());
  sequence.answer.account.pruned_tokens = sequence.dropped;
  sequence.scorer->restart();
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

void Engine::settle(const StepPlan& plan, std::span<const SampleResult> results, const StepTimes& times) {
  for (const StepPlan::Run& run : plan.runs) {
    const std::span<const SampleResult> drawn = results.first(run.samples ? run.drafts + 1 : 0);
    results = results.subspan(drawn.size());
    Sequence* found = scheduler_.find(run.id);
    if (found == nullptr) continue;  // it has ended since the step was launched: what was drawn is not wanted
    Sequence& sequence = *found;
    account(sequence, run, plan, times);
    sequence.ahead -= run.count;
    sequence.computed += run.count;
    if (run.samples) {
      --sequence.drawing;
      sequence.computed += add_tokens(sequence, drawn);
    }
    sequence.drafts.clear();
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
  if (sequence.detokenizer) event.text = sequence.stop.push(sequence.detokenizer->push(result.token));
  answer.finish_reason = why_finished(sequence, result.token);
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
  answers_.emplace_back(sequence->id, std::move(answer));
}

std::optional<Answer> Engine::take_answer(SequenceId id) {
  const auto found =
      std::find_if(answers_.begin(), answers_.end(), [&](const auto& a) { return a.first == id; });
  if (found == answers_.end()) return std::nullopt;
  Answer answer = std::move(found->second);
  answers_.erase(found);
  return answer;
}

Answer Engine::run(Request request) {
  const SequenceId id = submit(std::move(request));
  while (true) {
    CHECK(step());
    if (auto answer = take_answer(id)) return *std::move(answer);
  }
}

double Engine::unused_share() const {
  size_t held = 0, used = 0;
  for (const auto& sequence : scheduler_.running()) {
    for (uint32_t g = 0; g < sequence->table.groups(); ++g) {
      const KvGroupLayout& group = kv_.layout().groups[g];
      const uint32_t first = uint32_t(sequence->table.pages(g).size()) - sequence->table.held_pages(g);
      held += sequence->table.held_pages(g) * group.page_bytes;
      const uint32_t rows = sequence->computed + (group.window > 0 ? sequence->table.window_shift() : 0);
      used += (rows - std::min(rows, first * group.page_tokens)) * group.bytes_per_token();
    }
  }
  return held == 0 ? 0 : 1 - double(used) / double(held);
}

void Engine::check_invariants() const {
  kv_.check_invariants();
  if (disk_) disk_->check_invariants();
  scheduler_.check_invariants();
}

}  // namespace quire
