#include "engine/engine.h"

// Bytes of pages on their way between the device, the host's memory and the disk.

namespace quire {

void Engine::move_aside() {
  if (!host_) return;
  host_loads_->ask_for_more();
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
  const bool from_disk = loads_ && loads_->any();
  if (kv_.pages_arriving() == 0 && !from_disk) return false;
  settle_moves();
  if (kv_.pages_arriving() > 0) {
    runner_.wait_for_aside();
    take_made();
  } else if (from_disk) {
    loads_->wait();
  }
  return true;
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
