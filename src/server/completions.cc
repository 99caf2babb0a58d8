#include "server/completions.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "base/random_bytes.h"
#include "openai/answering.h"
#include "openai/api_error.h"
#include "server/answer_writers.h"
#include "server/responses.h"

namespace quire {
namespace {

constexpr size_t kGatheredAtOnce = 64;  // prompts of one request, so that others come in between

ApiError too_slow() {
  return ApiError(503, "", "reader_too_slow",
                  "the stream was not read fast enough: more of it waited than a server can keep");
}

}  // namespace

// One ask on its way through the engine.
struct Completions::Run : Answering {
  ResponseHead head;
  std::shared_ptr<Box> box;
  EngineLoop::Ticket ticket;
  std::unique_ptr<AnswerWriter> writer;
  std::shared_ptr<KeptStreams::Stream> kept;    // null: it ends with its reader
  std::shared_ptr<KeptStreams::Reader> reader;  // who asked; null with `kept`

  bool keeps() const { return kept != nullptr && !kept->lost(); }
  // Whether that was all there is to do with it.
  bool take_score(const Delivery& delivery) {
    if (delivery.score) scores[delivery.index].push_back(*delivery.score);
    return delivery.score || (delivery.token && ask.leave_out_answer);
  }
  // Takes the figures of one that is complete.
  void settle(const Delivery& delivery) {
    Answering::settle(delivery.index, delivery.answer.get(), delivery.refused);
    if (failed && delivery.refused.empty() && box->overrun) failed = too_slow();
  }
};

Completions::Completions(const asio::any_io_executor& executor, const Parts& parts,
                         const CompletionLimits& limits, std::string fingerprint)
    : executor_(executor),
      model_(parts.model),
      loop_(parts.loop),
      book_(parts.book),
      metrics_(parts.metrics),
      workers_(parts.workers),
      recorder_(parts.recorder),
      limits_(limits),
      fingerprint_(std::move(fingerprint)),
      kept_(executor, limits.kept) {}

std::string Completions::new_id(const Ask& ask) {
  // Whoever could guess an id could ask for what it stands for, where there are no keys.
  std::string id = ask.api == Api::anthropic      ? "msg_"
                   : ask.api == Api::responses    ? "resp_"
                   : ask.kind == AskKind::chat    ? "chatcmpl-"
                   : ask.kind == AskKind::vectors ? "embd-"
                   : ask.kind == AskKind::scores  ? "rerank-"
                                                  : "cmpl-";
  for (const std::byte byte : random_bytes<16>()) id += fmt::format("{:02x}", unsigned(byte));
  return id;
}

void Completions::refuse_if_full(uint32_t answers) const {
  const uint32_t open = *open_answers_;
  if (answers > limits_.open_answers)
    bad_field("n", "'n' and the prompts ask for {} answers, but the server takes {} at once", answers,
              limits_.open_answers);
  if (open + answers > limits_.open_answers) {
    throw ApiError(
        429, "", "queue_full",
        fmt::format("{} answers run or wait already, and {} more would be too many; try again later", open,
                    answers));
  }
}

void Completions::set_deadline(Ask& ask) const {
  const double seconds = std::min(limits_.request_seconds, ask.deadline_ms.value_or(1e12) / 1000);
  ask.request.deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

asio::awaitable<void> Completions::answer(Exchange& exchange, Ask ask, std::optional<ForkPoint> fork) {
  const uint32_t answers = ask.answers();
  refuse_if_full(answers);
  set_deadline(ask);
  Run run;
  run.head = {ask.kind, new_id(ask), seconds_since_1970(), model_.name, fingerprint_};
  run.ask = std::move(ask);
  run.writer = make_answer_writer(run.head, run.ask, model_);
  run.begin(model_);
  if (run.ask.prompt_only) {
    co_await send_prompts(exchange, run);
    co_return;
  }
  run.box = std::make_shared<Box>(executor_);
  run.box->joins = !run.ask.wants_tokens();
  if (run.ask.stream) run.box->most_bytes = limits_.unread_bytes;
  co_await this->run(exchange, run, fork);
}

// A request's place among those that can be cancelled. One that is given up ends, whatever of it still runs.
class Completions::Listing {
 public:
  Listing(Completions& all, const Run& run) : all_(all), run_(run) {
    place_ = all.open_.emplace(run.head.id, Open{{}, run.ask.request.client}).first;
  }
  ~Listing() {
    all_.open_.erase(place_);
    if (!started_ || run_.done()) return;
    try {
      all_.loop_.cancel(run_.ticket);
    } catch (const std::bad_alloc&) {  // then it is computed for nobody
    }
  }
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;

  void start(EngineLoop::Ticket ticket) {
    place_->second.ticket = ticket;
    started_ = true;
  }

 private:
  Completions& all_;
  const Run& run_;
  std::map<std::string, Open>::iterator place_;
  bool started_ = false;
};

// A stream that can be read again, as long as its answer is on its way.
class Completions::Keeping {
 public:
  Keeping(Completions& all, Run& run) : all_(all), run_(run) {
    if (!run.ask.stream || !run.ask.resume) return;
    const auto abandon = [&all, ticket = run.ticket] { all.loop_.cancel(ticket); };
    run.kept =
        all.kept_.begin(run.head.id, run.ask.request.client, std::string(run.writer->stream_type()), abandon);
    if (run.kept) run.reader = std::make_shared<KeptStreams::Reader>(all.kept_, run.kept);
  }
  ~Keeping() {
    if (run_.kept) all_.kept_.end(run_.head.id);
  }
  Keeping(const Keeping&) = delete;
  Keeping& operator=(const Keeping&) = delete;

 private:
  Completions& all_;
  const Run& run_;
};

// A reader that comes back knows the stream by the id in its head: who leaves before that has come never will.
void Completions::when_gone(Exchange& exchange, const Run& run) {
  exchange.when_gone([this, &exchange, ticket = run.ticket, reader = run.reader] {
    if (reader && exchange.responded())
      reader->leave();
    else
      loop_.cancel(ticket);
  });
}

void Completions::begin(Run& run, Listing& listing, const std::optional<ForkPoint>& fork) {
  *open_answers_ += run.ask.answers();
  try {
    run.ticket = start(run.ask, run.head.id, fork, run.box);
  } catch (...) {
    *open_answers_ -= run.ask.answers();
    throw;
  }
  listing.start(run.ticket);
  run.box->ticket = run.ticket.value;
}

asio::awaitable<void> Completions::run(Exchange& exchange, Run& run, const std::optional<ForkPoint>& fork) {
  exchange.add_header("X-Request-Id", run.head.id);
  Listing listing(*this, run);
  begin(run, listing, fork);
  const Keeping keeping(*this, run);
  when_gone(exchange, run);
  if (run.ask.stream) {
    co_await stream(exchange, run);
  } else {
    co_await collect(exchange, run);
  }
}

bool Completions::cancel(const std::string& id, const Viewer& viewer) {
  const auto found = open_.find(id);
  if (found == open_.end() || !viewer.sees(found->second.client)) return false;
  loop_.cancel(found->second.ticket);
  return true;
}

asio::awaitable<void> Completions::send_prompts(Exchange& exchange, Run& run) {
  std::vector<WholeAnswer> answers = run.prompts_alone(model_);
  if (!run.ask.stream) {
    const auto write = [&] { return dump(run.writer->whole(std::move(answers), run.usage, nullptr)); };
    HttpResponse response;
    response.body = co_await workers_.write_reply(write);
    co_await exchange.respond(std::move(response));
    co_return;
  }
  HttpResponse all = stream_head(run.writer->stream_type());
  for (const WholeAnswer& answer : answers) {
    run.writer->part(answer.part, all.body);
    run.writer->end(answer.part.choice, answer.end, all.body);
  }
  run.writer->done(run.usage, nullptr, all.body);
  co_await exchange.respond(std::move(all));
}

asio::awaitable<Completions::Gathered> Completions::gather(Exchange& exchange, Ask ask) {
  const std::vector<std::vector<TokenId>> prompts = std::exchange(ask.prompts, {});
  const size_t at_once = std::min(kGatheredAtOnce, size_t(limits_.open_answers));
  refuse_if_full(uint32_t(std::min(prompts.size(), at_once)));
  set_deadline(ask);
  const ResponseHead head{ask.kind, new_id(ask), seconds_since_1970(), model_.name, fingerprint_};
  exchange.add_header("X-Request-Id", head.id);
  Gathered all;
  for (size_t first = 0; first < prompts.size(); first += at_once) {
    Run run;
    run.head = head;
    run.ask = ask;
    const auto from = prompts.begin() + ptrdiff_t(first);
    run.ask.prompts.assign(from, from + ptrdiff_t(std::min(at_once, prompts.size() - first)));
    run.box = std::make_shared<Box>(executor_);
    run.box->joins = false;
    Listing listing(*this, run);
    begin(run, listing, std::nullopt);
    when_gone(exchange, run);
    std::vector<WholeAnswer> answers = co_await take_all(run);
    std::ranges::move(answers, std::back_inserter(all.answers));
    all.usage.prompt_tokens += run.usage.prompt_tokens;
    all.usage.cached_tokens += run.usage.cached_tokens;
  }
  co_return all;
}

asio::awaitable<std::vector<WholeAnswer>> Completions::take_all(Run& run) {
  std::vector<WholeAnswer> answers(run.ask.answers());
  for (uint32_t i = 0; i < answers.size(); ++i) {
    answers[i].part.choice = i;
  }
  while (!run.done()) {
    std::vector<Delivery> deliveries = co_await run.box->take();
    for (Delivery& delivery : deliveries) {
      WholeAnswer& whole = answers[delivery.index];
      if (run.take_score(delivery)) continue;
      if (!delivery.vector.empty()) {
        whole.vector = std::move(delivery.vector);
        continue;
      }
      if (delivery.token) {
        run.read(delivery.index, delivery.token->text, whole.part.events);
        if (run.ask.wants_tokens()) whole.part.tokens.push_back(*delivery.token);
        continue;
      }
      run.settle(delivery);
      if (delivery.answer) whole.end = run.end(delivery.index, *delivery.answer, whole.part.events);
    }
  }
  if (run.failed) throw *run.failed;
  co_return answers;
}

asio::awaitable<void> Completions::collect(Exchange& exchange, Run& run) {
  std::vector<WholeAnswer> answers = co_await take_all(run);
  run.put_echoes(answers, model_);
  const auto write = [&] {
    return dump(run.writer->whole(std::move(answers), run.usage, run.report(run.head.id)));
  };
  HttpResponse response;
  response.body = co_await workers_.write_reply(write);
  co_await exchange.respond(std::move(response));
}

Clock::time_point Completions::next_sign_of_life(const AnswerWriter& writer) const {
  if (writer.keep_alive().empty()) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(limits_.keep_alive_seconds));
}

asio::awaitable<void> Completions::stream(Exchange& exchange, Run& run) {
  AnswerWriter& writer = *run.writer;
  std::vector<size_t> offsets(run.ask.answers(), 0);
  std::set<uint32_t> begun;
  bool heard = true;  // the client is still there
  std::string events;

  const auto begin_choice = [&](uint32_t index) {
    if (!begun.insert(index).second) return;
    writer.begin(index, events);
    if (!run.ask.echo) return;
    const AnswerPart part = run.echoed(index, model_);
    offsets[index] = count_characters(part.events[0].text);
    writer.part(part, events);
  };
  // Tokens of one answer that have come since the last write go together: a slow reader gets fewer, larger events.
  const auto add_part = [&](AnswerPart& part, size_t characters) {
    if (!part.empty()) writer.part(part, events);
    offsets[part.choice] += characters;
    part = {};
  };

  while (!run.done()) {
    const Clock::time_point latest = heard ? next_sign_of_life(writer) : Clock::time_point::max();
    const std::vector<Delivery> deliveries = co_await run.box->take(latest);
    if (deliveries.empty()) events += writer.keep_alive();
    AnswerPart part;
    size_t characters = 0;
    for (const Delivery& delivery : deliveries) {
      if (!heard && !run.keeps()) {
        if (!delivery.token) run.settle(delivery);
        continue;
      }
      if (run.take_score(delivery)) continue;
      if (delivery.index != part.choice) add_part(part, std::exchange(characters, 0));
      part.choice = delivery.index;
      if (delivery.token) {
        begin_choice(delivery.index);
        if (part.empty()) part.text_offset = offsets[delivery.index] + characters;
        run.read(delivery.index, delivery.token->text, part.events);
        characters += count_characters(delivery.token->text);
        if (run.ask.wants_tokens()) part.tokens.push_back(*delivery.token);
        continue;
      }
      run.settle(delivery);
      const bool whole = delivery.answer && !failure_of(*delivery.answer);
      AnswerEnd end;
      if (delivery.answer) end = run.end(delivery.index, *delivery.answer, part.events);
      if (whole) begin_choice(delivery.index);
      add_part(part, std::exchange(characters, 0));
      if (whole) writer.end(delivery.index, end, events);
    }
    add_part(part, characters);
    if (run.failed && !exchange.responded()) throw *run.failed;
    if (!exchange.responded()) {
      heard = co_await exchange.begin_stream(stream_head(writer.stream_type()));
    }
    if (run.keeps()) kept_.add(*run.kept, events);
    if (heard && !events.empty()) heard = co_await exchange.write(std::exchange(events, {}));
    events.clear();
    if (heard) continue;
    if (run.keeps())
      run.reader->leave();
    else
      loop_.cancel(run.ticket);
  }
  if (!heard && !run.keeps()) co_return;
  if (run.failed) {
    writer.failed(*run.failed, events);
  } else {
    writer.done(run.usage, run.report(run.head.id), events);
  }
  if (run.keeps()) kept_.add(*run.kept, events);
  if (heard) heard = co_await exchange.write(std::move(events));
  if (heard) co_await exchange.end_stream();
}

}  // namespace quire
