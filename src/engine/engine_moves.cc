#include "engine/engine.h"

// Bytes of pages on their way between the device, the host's memory, the disk and a store.

namespace quire {

void Engine::move_aside() {
  if (!host_) return;
  loads_.ask_for_more();
  kv_.copy_ahead();
}

void Engine::start_moves() {
  runner_.start(kv_.take_moves(), kv_.take_aside());
  take_made();
}

void Engine::settle_moves() {
  start_moves();
  runner_.settle();
  take_made();
}

void Engine::take_made() {
  kv_.moved(runner_.take_made());
  while (const auto made = runner_.take_made_aside()) {
    kv_.moved_aside(made->moves);
    host_->learn_rate(made->bytes, made->seconds);
  }
}

bool Engine::wait_for_tiers() {
  if (kv_.pages_arriving() == 0 && !loads_.any_from_files()) return false;
  settle_moves();
  if (kv_.pages_arriving() > 0) {
    runner_.wait_for_aside();
    take_made();
  } else {
    loads_.wait_for_files();
  }
  return true;
}

bool Engine::idle() const {
  return scheduler_.idle() && flights_.empty() && handing_over_.empty() && !(remote_ && kv_.has_moves());
}

void Engine::tell_handed_over() {
  const Clock::time_point now = options_.now();
  if (handing_over_.empty()) return;
  const bool is_lost = !remote_->is_writable() || !lost_.empty();
  while (!handing_over_.empty()) {
    HandingOver& first = handing_over_.front();
    const bool done = !is_lost && remote_->is_done(first.sent);
    if (!done && !is_lost && now < first.until) return;
    if (done) first.answer.hand_over = remote_->hand_over({first.prompt.tokens, first.prompt.salt});
    answers_.emplace_back(first.id, std::move(first.answer));
    handing_over_.pop_front();
  }
}

MakeMoves Engine::make_moves() {
  return [this](const KvMoves& moves) {
    settle_moves();
    runner_.wait_for_asides();  // which bring pages to the host tier
    take_made();
    runner_.make(moves);
  };
}

}  // namespace quire
