#include "capi/asking.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>

#include "base/clock.h"
#include "engine/pooled_rows.h"
#include "openai/answering.h"
#include "openai/openai_writer.h"

namespace quire::capi {
namespace {

constexpr std::chrono::milliseconds kSilence{100};  // after which the caller hears that there is nothing new
constexpr size_t kTextsAtOnce = 64;                 // that become vectors, so that others come in between

// What the engine's thread says of one request.
struct Delivery {
  uint32_t index = 0;
  std::optional<TokenEvent> token;
  std::optional<PromptScore> score;
  std::vector<float> vector;
  std::shared_ptr<const Answer> answer;
  std::string refused;
};

// Where it says it. The engine's thread never waits for the caller's.
class Box {
 public:
  void put(Delivery delivery) noexcept {
    {
      const std::lock_guard lock(mutex_);
      try {
        things_.push_back(std::move(delivery));
      } catch (const std::bad_alloc&) {
        lost_ = true;
      }
    }
    wake_.notify_one();
  }
  void lose() noexcept {
    {
      const std::lock_guard lock(mutex_);
      lost_ = true;
    }
    wake_.notify_one();
  }
  // All that came since; none if nothing did for a while. Throws std::bad_alloc if something was lost.
  std::vector<Delivery> take() {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kSilence, [&] { return lost_ || !things_.empty(); });
    if (lost_) throw std::bad_alloc();
    return std::exchange(things_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Delivery> things_;
  bool lost_ = false;
};

uint32_t kind_of(OutputEvent::Kind kind) {
  switch (kind) {
    case OutputEvent::Kind::reasoning:
      return QUIRE_REASONING;
    case OutputEvent::Kind::call_begin:
      return QUIRE_CALL_BEGIN;
    case OutputEvent::Kind::call_arguments:
      return QUIRE_CALL_ARGUMENTS;
    case OutputEvent::Kind::call_end:
      return QUIRE_CALL_END;
    default:
      return QUIRE_TEXT;
  }
}

// Tells the caller of the pieces, until it has heard enough.
class Teller {
 public:
  Teller(quire_on_piece on_piece, void* user) : on_piece_(on_piece), user_(user) {}

  bool is_over() const { return over_; }
  void nothing() { say({}, QUIRE_NOTHING, 0, 0, ""); }
  void token(uint32_t choice, const TokenEvent& event) {
    alternatives_.clear();
    for (const TokenLogprob& other : event.top_logprobs)
      alternatives_.push_back({other.token, other.logprob});
    say({.token = event.token, .logprob = event.logprob}, QUIRE_TOKEN, choice, 0, "");
    alternatives_.clear();
  }
  void events(uint32_t choice, std::span<const OutputEvent> events) {
    for (const OutputEvent& event : events) say({}, kind_of(event.kind), choice, event.call, event.text);
  }

 private:
  struct Drawn {
    uint32_t token = 0;
    float logprob = 0;
  };
  void say(Drawn drawn, uint32_t kind, uint32_t choice, uint32_t call, const std::string& text) {
    if (on_piece_ == nullptr || over_) return;
    const quire_piece piece{.size = sizeof(quire_piece),
                            .kind = kind,
                            .choice = choice,
                            .call = call,
                            .text = text.c_str(),
                            .text_bytes = text.size(),
                            .token = drawn.token,
                            .logprob = drawn.logprob,
                            .alternatives = alternatives_.empty() ? nullptr : alternatives_.data(),
                            .alternative_count = alternatives_.size()};
    over_ = on_piece_(&piece, user_) != 0;
  }

  quire_on_piece on_piece_;
  void* user_;
  bool over_ = false;
  std::vector<quire_alternative> alternatives_;
};

void refuse_salt(const Ask& ask) {
  if (!ask.cache_salt.empty())
    bad_field("cache_salt",
              "'cache_salt' is for servers: what a program asks its own model shares its cache");
}

Ask read_ask(std::string_view request, const ServedModel& model) {
  const OrderedJson body = parse_body(request);
  Ask ask = body.contains("messages") ? parse_chat(body, model) : parse_completion(body, model);
  refuse_salt(ask);
  if (ask.deadline_ms)
    ask.request.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double, std::milli>(*ask.deadline_ms));
  ask.stream = false;
  return ask;
}

// Submits every prompt, or none.
std::vector<SequenceId> submit(Engine& engine, const Ask& ask, const std::shared_ptr<Box>& box) {
  std::vector<SequenceId> all;
  try {
    for (uint32_t p = 0; p < ask.prompts.size(); ++p) {
      Request request = ask.request;
      request.prompt = ask.prompts[p];
      const uint32_t base = p * ask.choices;
      request.on_token = [box, base](const TokenEvent& event) {
        box->put({.index = base + event.choice,
                  .token = event,
                  .score = {},
                  .vector = {},
                  .answer = {},
                  .refused = {}});
      };
      if (ask.score_prompt)
        request.on_prompt_score = [box, base](const PromptScore& score) {
          box->put({.index = base, .token = {}, .score = score, .vector = {}, .answer = {}, .refused = {}});
        };
      if (request.embedding)
        request.embedding->on_vector = [box, base](std::vector<float> vector) {
          box->put({.index = base,
                    .token = {},
                    .score = {},
                    .vector = std::move(vector),
                    .answer = {},
                    .refused = {}});
        };
      const std::vector<SequenceId> ids = engine.submit_choices(request, ask.choices);
      all.insert(all.end(), ids.begin(), ids.end());
    }
  } catch (...) {
    for (const SequenceId id : all) engine.cancel(id);
    throw;
  }
  return all;
}

EngineLoop::Ticket start(EngineLoop& loop, const Ask& ask, const std::shared_ptr<Box>& box) {
  const auto kept = std::make_shared<const Ask>(ask);
  return loop.start(
      [kept, box](Engine& engine) { return submit(engine, *kept, box); },
      [box](uint32_t index, const Answer* answer, const std::string& refused) {
        try {
          const auto copy = answer ? std::make_shared<const Answer>(*answer) : nullptr;
          box->put(
              {.index = index, .token = {}, .score = {}, .vector = {}, .answer = copy, .refused = refused});
        } catch (const std::bad_alloc&) {
          box->lose();
        }
      });
}

// Whatever is thrown, nothing is computed for nobody.
class Running {
 public:
  Running(EngineLoop& loop, EngineLoop::Ticket ticket) : loop_(loop), ticket_(ticket) {}
  ~Running() {
    if (done_) return;
    try {
      loop_.cancel(ticket_);
    } catch (const std::bad_alloc&) {  // then it is computed all the same
    }
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  void cancel() { loop_.cancel(ticket_); }
  void end() { done_ = true; }

 private:
  EngineLoop& loop_;
  EngineLoop::Ticket ticket_;
  bool done_ = false;
};

// Reads what comes until all is there.
std::vector<WholeAnswer> collect(Answering& answering, Running& running, Box& box, Teller& teller) {
  std::vector<WholeAnswer> answers(answering.ask.answers());
  for (uint32_t i = 0; i < answers.size(); ++i) answers[i].part.choice = i;
  const bool wants_tokens = answering.ask.wants_tokens();
  uint64_t heard = 0;
  bool cancelled = false;
  const auto take = [&](const Delivery& delivery) {
    WholeAnswer& whole = answers[delivery.index];
    if (delivery.score) answering.scores[delivery.index].push_back(*delivery.score);
    if (delivery.score || (delivery.token && answering.ask.leave_out_answer)) return;
    const size_t before = whole.part.events.size();
    OutputEvents events;
    if (delivery.token) {
      ++heard;
      if (wants_tokens) teller.token(delivery.index, *delivery.token);
      answering.read(delivery.index, delivery.token->text, events);
      if (wants_tokens) whole.part.tokens.push_back(*delivery.token);
    } else {
      answering.settle(delivery.index, delivery.answer.get(), delivery.refused);
      if (delivery.answer) whole.end = answering.end(delivery.index, *delivery.answer, events);
    }
    teller.events(delivery.index, events);
    whole.part.events.resize(before);
    whole.part.events.insert(whole.part.events.end(), events.begin(), events.end());
  };
  while (!answering.done()) {
    const std::vector<Delivery> deliveries = box.take();
    if (deliveries.empty()) teller.nothing();
    for (const Delivery& delivery : deliveries) take(delivery);
    if (teller.is_over() && !std::exchange(cancelled, true)) running.cancel();
  }
  running.end();
  if (cancelled) answering.usage.answer_tokens = heard;  // what was cancelled tells of none
  return answers;
}

std::string text_of(const WholeAnswer& answer) {
  WholeOutput output;
  for (const OutputEvent& event : answer.part.events) output.add(event);
  return std::move(output.text);
}

}  // namespace

LibraryAnswer answer(LibraryModel& model, std::string_view request, quire_on_piece on_piece, void* user) {
  static std::atomic<uint64_t> last_id = 0;
  const ServedModel& served = model.served();
  Answering answering;
  answering.ask = read_ask(request, served);
  answering.begin(served);
  const Ask& ask = answering.ask;
  const std::string id = fmt::format("{}-{}", ask.kind == AskKind::chat ? "chatcmpl" : "cmpl", ++last_id);
  OpenAiWriter writer({ask.kind, id, seconds_since_1970(), served.name, model.fingerprint()}, ask,
                      served.text->tokenizer);
  Teller teller(on_piece, user);
  std::vector<WholeAnswer> answers;
  if (ask.prompt_only) {
    answers = answering.prompts_alone(served);
  } else {
    const auto box = std::make_shared<Box>();
    Running running(model.loop(), start(model.loop(), ask, box));
    answers = collect(answering, running, *box, teller);
    if (answering.failed && !teller.is_over()) throw ApiError(*answering.failed);
    answering.put_echoes(answers, served);
  }
  LibraryAnswer result;
  result.cancelled = teller.is_over() && answering.failed.has_value();
  for (const WholeAnswer& one : answers) result.texts.push_back(text_of(one));
  result.json = dump(writer.whole(std::move(answers), answering.usage, answering.report(id)));
  return result;
}

VectorAsk read_vectors(const LibraryModel& model, std::string_view request) {
  VectorAsk asked = parse_embeddings(parse_body(request), model.served());
  refuse_salt(asked.ask);
  return asked;
}

std::vector<std::vector<float>> embed(LibraryModel& model, const VectorAsk& asked, size_t width) {
  const std::vector<std::vector<TokenId>>& prompts = asked.ask.prompts;
  std::vector<std::vector<float>> vectors;
  for (size_t first = 0; first < prompts.size(); first += kTextsAtOnce) {
    Answering answering;
    answering.ask = asked.ask;
    const auto from = prompts.begin() + ptrdiff_t(first);
    answering.ask.prompts.assign(from, from + ptrdiff_t(std::min(kTextsAtOnce, prompts.size() - first)));
    vectors.resize(first + answering.ask.prompts.size());
    const auto box = std::make_shared<Box>();
    Running running(model.loop(), start(model.loop(), answering.ask, box));
    while (!answering.done()) {
      for (Delivery& delivery : box->take()) {
        if (!delivery.vector.empty())
          vectors[first + delivery.index] = as_unit(std::move(delivery.vector), width);
        else
          answering.settle(delivery.index, delivery.answer.get(), delivery.refused);
      }
    }
    running.end();
    if (answering.failed) throw ApiError(*answering.failed);
  }
  return vectors;
}

}  // namespace quire::capi
