#include <cmath>

#include "base/error.h"
#include "server/completions.h"

// What the engine's thread does with an ask: begins it, says what it draws, and settles it.

namespace quire {

struct Completions::Started {
  Ask ask;
  std::string id;
  std::optional<ForkPoint> fork;
  Clock::time_point submitted;
  std::vector<SequenceId> sequences;  // by answer, as the next
  std::vector<std::shared_ptr<const RequestEntry>> entries;
  std::vector<std::optional<PruningOptions>> pruning;  // by prompt
};

EngineLoop::Ticket Completions::start(const Ask& ask, const std::string& id,
                                      const std::optional<ForkPoint>& fork, const std::shared_ptr<Box>& box) {
  const auto started = std::make_shared<Started>(Started{ask, id, fork, Clock::now(), {}, {}, {}});
  started->ask.turn = nullptr;  // the engine's thread need not free what it never reads
  const auto begin = [this, started, box](Engine& engine) {
    submit(*started, box, engine);
    return started->sequences;
  };
  return loop_.start(begin, [this, box, started, open = open_answers_, answers = ask.answers()](
                                uint32_t index, const Answer* answer, const std::string& refused) {
    const bool begun = answer != nullptr && refused.empty();
    *open -= begun ? 1 : answers;
    try {
      const auto kept = answer != nullptr ? std::make_shared<const Answer>(*answer) : nullptr;
      Delivery delivery{
          .index = index, .token = {}, .score = {}, .vector = {}, .answer = kept, .refused = refused};
      if (begun) finish(*started, index, kept);
      box->put(std::move(delivery));
    } catch (const std::bad_alloc&) {
      box->lose();
    }
    if (begun) book_.forget(started->sequences[index]);  // unless it has been finished
  });
}

// Submits every prompt, or none.
void Completions::submit(Started& started, const std::shared_ptr<Box>& box, Engine& engine) {
  try {
    for (uint32_t p = 0; p < started.ask.prompts.size(); ++p) submit_prompt(started, p, box, engine);
  } catch (...) {
    for (const SequenceId sequence : started.sequences) {
      engine.cancel(sequence);
      book_.forget(sequence);
    }
    throw;
  }
}

void Completions::submit_prompt(Started& started, uint32_t p, const std::shared_ptr<Box>& box,
                                Engine& engine) {
  const Ask& ask = started.ask;
  Request request = ask.request;
  request.prompt = ask.prompts[p];
  if (ask.is_text()) request.pruning = pruning_of(ask, request.prompt, model_);
  started.pruning.push_back(request.pruning);
  request.logprobs = request.logprobs || recorder_ != nullptr;
  request.on_token = [this, id = started.id, box, base = p * ask.choices](const TokenEvent& event) {
    book_.note(id, base + event.choice, event);
    deliver(box, base + event.choice, event);
  };
  if (ask.score_prompt)
    request.on_prompt_score = [this, box, base = p * ask.choices](const PromptScore& score) {
      deliver_score(box, base, score);
    };
  if (request.embedding)
    request.embedding->on_vector = [this, box, p](std::vector<float> vector) {
      deliver_vector(box, p, std::move(vector));
    };
  const std::vector<SequenceId> ids = submit_choices(started, std::move(request), engine);
  started.sequences.insert(started.sequences.end(), ids.begin(), ids.end());
  if (!ask.is_text()) return;  // there are thousands of them, and nothing to look at
  for (const SequenceId id : ids) {
    const SequenceView sequence = engine.sequence(id).value();
    const auto index = uint32_t(started.entries.size());
    started.entries.push_back(
        book_.add(id, {started.id, ask.kind, index, ask.request.client, ask.request.max_tokens,
                       started.submitted, sequence.prompt(), sequence.salt()}));
  }
}

std::vector<SequenceId> Completions::submit_choices(const Started& started, Request request, Engine& engine) {
  if (!started.fork) return engine.submit_choices(request, started.ask.choices);
  const ForkPoint& fork = *started.fork;
  const std::optional<SequenceId> parent = book_.find_live(fork.request, fork.choice);
  const auto tokens = parent ? std::nullopt : book_.find_finished(fork.request, fork.choice);
  if (!parent && !tokens) throw Error("there is no request '{}' any more", fork.request);
  const size_t known = parent ? engine.sequence(*parent)->tokens().size() : tokens->size();
  if (fork.at > known) throw Error("'at' is {}, but the request has {} tokens", fork.at, known);
  if (parent) return {engine.fork(*parent, fork.at, std::move(request)).value()};
  request.prompt.assign(tokens->begin(), tokens->begin() + fork.at);
  return engine.submit_choices(request, started.ask.choices);
}

// Nothing is left half done if it throws.
void Completions::finish(const Started& started, uint32_t index,
                         const std::shared_ptr<const Answer>& answer) {
  if (answer->finish_reason == FinishReason::cancelled) {
    metrics_.cancelled();
    return;
  }
  const Clock::time_point now = Clock::now();
  book_.finish(started.sequences[index], answer, now);
  count_finished(answer, milliseconds_between(started.submitted, now));
  record(started, index, answer);
}

void Completions::record(const Started& started, uint32_t index,
                         const std::shared_ptr<const Answer>& answer) noexcept {
  if (recorder_ == nullptr || answer->tokens.empty() || !started.ask.is_text()) return;
  try {
    // Made of it elsewhere. What says who asked stays here.
    const auto kept = std::make_shared<Request>();
    const Request& asked = started.ask.request;
    kept->sampling = asked.sampling;
    kept->max_tokens = asked.max_tokens;
    kept->stop = asked.stop;
    kept->stop_tokens = asked.stop_tokens;
    kept->ignore_end = asked.ignore_end;
    kept->choice = index % started.ask.choices;
    kept->pruning = started.pruning[index / started.ask.choices];
    if (kept->pruning && kept->pruning->is_shared && answer->account.kept) {
      // It kept whole pages. What is recorded is shared with nobody.
      kept->pruning->tokens = uint32_t(std::lround(answer->account.kept->share * kept->pruning->scored));
      kept->pruning->share = 0;
      kept->pruning->is_shared = false;
    }
    kept->budget = asked.budget;
    recorder_->add([kept, entry = started.entries[index], answer] {
      RecordedAnswer recorded{.id = entry->id, .index = entry->choice, .request = *kept};
      recorded.request.prompt = entry->prompt;
      recorded.tokens = answer->tokens;
      recorded.logprobs = answer->logprobs;
      recorded.finish_reason = answer->finish_reason;
      return recorded;
    });
  } catch (const std::bad_alloc&) {  // then it is not recorded
  }
}

// Before its reader hears of it, who may ask for the metrics next; on the reader's thread, because every token is counted.
void Completions::count_finished(const std::shared_ptr<const Answer>& answer, double ms) noexcept {
  try {
    asio::post(executor_, [&metrics = metrics_, answer, ms] { metrics.finished(*answer, ms); });
  } catch (const std::bad_alloc&) {  // then it is not counted
  }
}

void Completions::deliver_vector(const std::shared_ptr<Box>& box, uint32_t index, std::vector<float> vector) {
  box->put(
      {.index = index, .token = {}, .score = {}, .vector = std::move(vector), .answer = {}, .refused = {}});
}

// They are bounded by the prompt, and the reader keeps them all until the first token comes.
void Completions::deliver_score(const std::shared_ptr<Box>& box, uint32_t index,
                                const PromptScore& score) noexcept {
  try {
    box->put({.index = index, .token = {}, .score = score, .vector = {}, .answer = {}, .refused = {}});
  } catch (const std::bad_alloc&) {
    box->lose();
  }
}

// On the engine's thread, which neither waits for a reader nor ends for want of memory.
void Completions::deliver(const std::shared_ptr<Box>& box, uint32_t index, const TokenEvent& event) noexcept {
  if (box->overrun) return;
  try {
    const auto join = [joins = box->joins](Delivery& last, Delivery& next) {
      if (!joins || !last.token || last.index != next.index) return false;
      last.token->text += next.token->text;
      return true;
    };
    const size_t bytes = event.text.size() + (box->joins ? 0 : sizeof(Delivery)) +
                         event.top_logprobs.size() * sizeof(event.top_logprobs[0]);
    Delivery delivery{.index = index, .token = event, .score = {}, .vector = {}, .answer = {}, .refused = {}};
    if (box->put_bounded(std::move(delivery), bytes, box->most_bytes, join)) return;
    asio::post(executor_, [this, box] { loop_.cancel(EngineLoop::Ticket{box->ticket}); });
    box->overrun = true;
  } catch (const std::bad_alloc&) {
    box->lose();
  }
}

}  // namespace quire
