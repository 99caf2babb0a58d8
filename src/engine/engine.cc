#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/batch.h"

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

KvCache make_cache(const ModelSpec& spec, const EngineOptions& options, Backend& backend) {
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.key_format, options.value_format));
  const auto pages = pages_for(layout, options.context, options.prefill_chunk, options.max_sequences);
  return KvCache(layout, pages, [&](size_t bytes) { return backend.allocate(bytes); });
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
    timings.prefill_tok_s = 1000.0 * double(sequence.request.prompt.size()) / timings.ttft_ms;
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(milliseconds_between(times[i - 1], times[i]));
  timings.itl_ms_p50 = percentile(gaps, 0.5);
  timings.itl_ms_p99 = percentile(gaps, 0.99);
  const double total = milliseconds_between(times.front(), times.back());
  if (total > 0) timings.decode_tok_s = 1000.0 * double(gaps.size()) / total;
  return timings;
}

}  // namespace

Engine::Engine(const EngineModel& model, const EngineOptions& options)
    : model_(model),
      options_(settled(options, *model.spec)),
      kv_(make_cache(*model.spec, options_, *model.backend)),
      decoder_(*model.spec, *model.weights, *model.backend),
      scheduler_({.max_sequences = options_.max_sequences,
                  .step_tokens = options_.kv_cache ? std::max(options_.prefill_chunk, options_.max_sequences)
                                                   : options_.context * options_.max_sequences}) {}

SequenceId Engine::submit(Request request) {
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
  const SequenceId id{next_id_++};
  scheduler_.add(std::make_unique<Sequence>(id, std::move(request), kv_.make_table(), model_.tokenizer));
  return id;
}

void Engine::cancel(SequenceId id) {
  scheduler_.remove(id);
}

bool Engine::step() {
  const StepPlan plan = scheduler_.plan();
  if (plan.runs.empty()) return false;
  std::vector<const PageTable*> tables;
  for (const StepPlan::Run& run : plan.runs) {
    // Pools were sized for every sequence that may run, so this cannot fail.
    CHECK(kv_.reserve(run.sequence->table, run.sequence->computed + run.count));
    tables.push_back(&run.sequence->table);
  }
  KvCache::FlatTables flat;
  const std::vector<KvGroupView> views = kv_.view(tables, flat);
  const Batch batch = make_batch(plan);
  const Rows logits = decoder_.forward(batch.view(), kv_.layout(), views);
  settle(plan, sampler_.sample(*model_.backend, plan, logits));
  return true;
}

void Engine::settle(const StepPlan& plan, std::span<const SampleResult> results) {
  size_t next_result = 0;
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *run.sequence;
    sequence.computed += run.count;
    kv_.release_behind_window(sequence.table, sequence.computed);
    if (run.samples) add_token(sequence, results[next_result++]);
    if (sequence.finished()) {
      finish(sequence);
    } else if (!options_.kv_cache) {
      sequence.table = kv_.make_table();
      sequence.computed = 0;
    }
  }
}

void Engine::add_token(Sequence& sequence, const SampleResult& result) {
  sequence.append(result.token);
  sequence.token_times.push_back(Clock::now());
  Answer& answer = sequence.answer;
  answer.tokens.push_back(result.token);
  if (sequence.request.logprobs) answer.logprobs.push_back(result.logprob);
  TokenEvent event{
      .token = result.token, .text = {}, .logprob = result.logprob, .top_logprobs = result.top_logprobs};
  if (sequence.detokenizer) event.text = sequence.stop.push(sequence.detokenizer->push(result.token));
  answer.finish_reason = why_finished(sequence, result.token);
  if (sequence.finished() && sequence.detokenizer) {
    event.text += sequence.stop.push(sequence.detokenizer->finish());
    event.text += sequence.stop.finish();
  }
  answer.text += event.text;
  if (sequence.request.on_token) sequence.request.on_token(event);
}

FinishReason Engine::why_finished(Sequence& sequence, TokenId token) const {
  const auto is_in = [&](const std::vector<TokenId>& tokens) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  if (sequence.stop.matched() || is_in(sequence.request.stop_tokens)) return FinishReason::stop;
  if (!sequence.request.ignore_end && is_in(model_.end_tokens)) return FinishReason::stop;
  if (sequence.request.max_tokens > 0 && sequence.answer_tokens() >= sequence.request.max_tokens) {
    return FinishReason::length;
  }
  if (sequence.tokens.size() >= options_.context) {
    sequence.answer.context_full = true;
    return FinishReason::length;
  }
  return FinishReason::none;
}

void Engine::finish(Sequence& sequence) {
  sequence.answer.timings = measure(sequence);
  for (uint32_t g = 0; g < sequence.table.groups(); ++g) {
    for (const auto& page : sequence.table.pages(g)) {
      if (!page) continue;
      ++sequence.answer.kv_pages;
      sequence.answer.kv_bytes += kv_.layout().groups[g].page_bytes;
    }
  }
  answers_.emplace_back(sequence.id, std::move(sequence.answer));
  scheduler_.remove(sequence.id);
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

}  // namespace quire
