#include "runner/runner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backend/device_lost.h"
#include "base/check.h"
#include "runner/step_message.h"

namespace quire {
namespace {

constexpr size_t kAsideBytes = size_t(64)
                               << 20;  // that are one thing to wait for: about a millisecond of a bus

KvMemory pages_of(Backend& backend, const ModelSpec& spec, const KvLayout& layout) {
  const auto rotate = [&backend, &spec, places = layout.places, groups = layout.groups](
                          std::byte* keys, uint32_t layer, std::span<const uint32_t> back) {
    const GqaSpec& attention = *spec.layers[layer].attention();
    if (!attention.rope) return;
    const RopeSpec& rope = spec.ropes[*attention.rope];
    const KvLayout::Place& place = places[layer].front();
    backend.rotate_keys({.keys = keys,
                         .layer = &groups[place.group].layers[place.slot],
                         .back = back,
                         .inverse_frequencies = rope.inverse_frequencies,
                         .pairing = rope.pairing});
  };
  return KvMemory(
      [&backend](size_t bytes) { return backend.allocate(bytes); },
      [&backend](std::byte* to, const std::byte* from, size_t bytes) { backend.copy(to, from, bytes); },
      rotate);
}

}  // namespace

// A step on its way: all that the backend may still read or write.
struct Runner::Flight {
  StepHandle id;
  StepInput input;
  std::vector<KvGroupView> views;
  std::vector<SampleParams> params;
  std::shared_ptr<const std::vector<SampleResult>> before;  // what the step before draws
  std::shared_ptr<std::vector<SampleResult>> draws;
  StepOutput output;
  Backend::Mark mark = 0;
};

Runner::Runner(const RunnerModel& model, const KvLayout& layout, std::span<const uint32_t> pages_per_group)
    : model_(model),
      memory_(layout, pages_per_group, pages_of(model.backend->side(Side::device), *model.spec, layout),
              pages_of(model.backend->side(Side::host), *model.spec, layout)),
      decoder_(*model.spec, *model.weights, *model.backend, model.ranks) {
  CHECK(model.ranks == nullptr || model.ranks->place() == model.spec->place);
  if (leads()) model.ranks->tell(pages_message(pages_per_group));
}

Runner::~Runner() {
  abandon();
}

template <class Work>
void Runner::unless_lost(Work&& work) {
  if (is_lost_) return;
  try {
    work();
  } catch (const DeviceLost&) {
    is_lost_ = true;
    throw;
  }
}

void Runner::wait(Backend::Mark mark) {
  unless_lost([&] { model_.backend->wait(mark); });
  reached_ = mark;
}

void Runner::settle() {
  Backend::Mark mark = reached_;
  unless_lost([&] { mark = model_.backend->mark(); });
  wait(mark);
}

// The others are in the middle of the step, and wait for what will not come.
void Runner::end_ranks() {
  try {
    throw;
  } catch (const std::exception& problem) {
    model_.ranks->give_up(fmt::format("a step has failed, and with it all ranks: {}", problem.what()));
  }
}

void Runner::tell_moves(const KvMoves& moves) {
  if (leads() && !moves.empty()) model_.ranks->tell(moves_message(moves));
}

StepHandle Runner::launch(StepInput input) {
  auto flight = std::make_unique<Flight>();
  flight->id = StepHandle{next_++};
  flight->input = std::move(input);
  flight->output.vocab = model_.spec->vocab;
  start(std::exchange(flight->input.moves, {}), std::exchange(flight->input.aside, {}));
  flights_.push_back(std::move(flight));
  try {
    compute(*flights_.back());
    flights_.back()->mark = model_.backend->mark();
  } catch (...) {
    if (model_.ranks != nullptr) end_ranks();
    model_.backend->forget_step();
    try {
      settle();
    } catch (const DeviceLost&) {  // whoever asks for the next step hears of it
    }
    flights_.pop_back();
    throw;
  }
  return flights_.back()->id;
}

void Runner::compute(Flight& flight) {
  StepInput& input = flight.input;
  flight.views = memory_.view(input.tables);
  const std::span<float> values = flight.output.values = std::move(input.values);
  for (const Expectation& one : input.expectations) decoder_.expect(one, layout(), flight.views, values);
  if (input.tokens.empty()) return;
  if (!input.drawn.empty()) {
    flight.before = last_draws_;
    CHECK(flight.before != nullptr);
    model_.backend->feed_drawn(input.tokens, input.drawn, *flight.before);
  }
  if (leads()) model_.ranks->tell(step_message(input));
  if (input.report_hidden == StepInput::Hidden::all)
    flight.output.hidden.resize(input.tokens.size() * model_.spec->dim);
  const Rows logits =
      decoder_.forward(input.batch(), layout(), flight.views, {input.taps, values, input.columns},
                       input.layers, {input.hidden, flight.output.hidden});
  if (!input.draws.empty()) draw(flight, logits);
  if (input.report != StepInput::Report::logits || logits.rows == 0) return;
  flight.output.logits.resize(logits.rows * logits.width);
  model_.backend->copy(reinterpret_cast<std::byte*>(flight.output.logits.data()),
                       reinterpret_cast<const std::byte*>(logits.data),
                       flight.output.logits.size() * sizeof(float));
}

void Runner::draw(Flight& flight, const Rows& logits) {
  const StepInput& input = flight.input;
  CHECK(input.draws.size() <= logits.rows);
  const auto part = [](const auto& list, Draw::Range range) {
    return std::span(list).subspan(range.begin, range.count);
  };
  flight.params.reserve(input.draws.size());
  flight.draws = std::make_shared<std::vector<SampleResult>>(input.draws.size());
  last_draws_ = flight.draws;
  for (size_t i = 0; i < input.draws.size(); ++i) {
    const Draw& draw = input.draws[i];
    SampleParams& params = flight.params.emplace_back(draw.how);
    params.logits = {logits.row(i), logits.width};
    params.seen = part(input.seen, draw.seen);
    params.logit_bias = part(input.logit_bias, draw.logit_bias);
    params.watched = part(input.watched, draw.watched);
    params.allowed = part(input.allowed, draw.allowed);
  }
  model_.backend->sample(flight.params, *flight.draws);
}

StepOutput Runner::collect(StepHandle step) {
  CHECK(!flights_.empty() && flights_.front()->id == step);
  wait(flights_.front()->mark);
  const std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.pop_front();
  if (flight->draws) flight->output.draws = *flight->draws;
  return std::move(flight->output);
}

void Runner::make(const KvMoves& moves) {
  CHECK(moves.after == 0);
  tell_moves(moves);
  memory_.make(moves);
  wait(model_.backend->mark());
}

void Runner::start(KvMoves moves, KvMoves aside) {
  if (moves.empty() && moves.after == 0 && aside.empty()) return;
  CHECK(!leads() || aside.empty());
  tell_moves(moves);
  if (moves.after > 0) {
    const auto is_before = [&](const Aside& one) {
      return one.made.moves.list.front().ticket <= moves.after;
    };
    const auto last = std::find_if(asides_.rbegin(), asides_.rend(), is_before);
    if (last != asides_.rend()) model_.backend->order_after_aside(last->mark);
  }
  Made& made = made_.emplace_back();
  memory_.make(moves);
  made.moves = std::move(moves);
  made.mark = model_.backend->mark();
  start_aside(std::move(aside));
}

void Runner::start_aside(KvMoves moves) {
  for (auto from = moves.list.begin(); from != moves.list.end();) {
    std::vector<ByteCopy> copies;
    size_t bytes = 0;
    auto to = from;
    for (; to != moves.list.end() && (bytes == 0 || bytes + to->bytes <= kAsideBytes); ++to) {
      const PageMemory::Ends ends = memory_.ends_of(*to);
      bytes += to->bytes;
      if (layout().groups[to->group].side == Side::host) {
        // Whoever computes at once has these pages: now is as good as any later time.
        model_.backend->side(Side::host).copy(ends.to, ends.from, to->bytes);
        continue;
      }
      // What lies together at both ends is one copy.
      if (!copies.empty() && copies.back().to + copies.back().bytes == ends.to &&
          copies.back().from + copies.back().bytes == ends.from) {
        copies.back().bytes += to->bytes;
      } else {
        copies.push_back({ends.to, ends.from, to->bytes});
      }
    }
    asides_.push_back(
        {.mark = 0, .made = {.moves = {.list = {from, to}, .held = {}, .back = {}}, .bytes = bytes}});
    try {
      asides_.back().mark = model_.backend->copy_aside(copies);
    } catch (...) {
      asides_.pop_back();
      throw;
    }
    from = to;
  }
}

std::optional<Runner::MadeAside> Runner::take_made_aside() {
  if (asides_.empty()) return std::nullopt;
  const std::optional<double> seconds = model_.backend->aside_seconds(asides_.front().mark);
  if (!seconds) return std::nullopt;
  MadeAside made = std::move(asides_.front().made);
  asides_.pop_front();
  made.seconds = *seconds;
  return made;
}

void Runner::wait_for_aside() {
  if (!asides_.empty()) model_.backend->wait_aside(asides_.front().mark);
}

void Runner::wait_for_asides() {
  if (!asides_.empty()) model_.backend->wait_aside(asides_.back().mark);
}

KvMoves Runner::take_made() {
  KvMoves taken;
  while (!made_.empty() && made_.front().mark <= reached_) {
    KvMoves& moves = made_.front().moves;
    if (taken.empty() && taken.held.empty()) {
      taken = std::move(moves);
    } else {
      taken.list.insert(taken.list.end(), moves.list.begin(), moves.list.end());
      taken.held.insert(taken.held.end(), moves.held.begin(), moves.held.end());
    }
    made_.pop_front();
  }
  return taken;
}

void Runner::drain() {
  settle();
  unless_lost([&] { wait_for_asides(); });
  flights_.clear();
  last_draws_.reset();
}

void Runner::abandon() {
  try {
    drain();
  } catch (const DeviceLost&) {
    drain();
  } catch (const std::exception&) {
    flights_.clear();  // what cannot be waited for is not wanted either
    last_draws_.reset();
  }
  made_.clear();
  asides_.clear();
}

}  // namespace quire
