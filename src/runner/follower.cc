#include "runner/follower.h"

#include <optional>

#include "base/error.h"
#include "runner/step_message.h"

namespace quire {

void follow(const RunnerModel& model, const KvLayout& layout) {
  std::optional<Runner> runner;
  while (true) {
    const std::vector<std::byte> message = model.ranks->hear();
    if (message.empty()) return;
    const MessageKind kind = kind_of(message);
    if (kind == MessageKind::pages) {
      const std::vector<uint32_t> pages = read_pages(message);
      if (pages.size() != layout.groups.size())
        throw Error("rank 0 has {} groups of pages and this rank {}", pages.size(), layout.groups.size());
      runner.reset();
      runner.emplace(model, layout, pages);
      continue;
    }
    if (!runner) throw Error("rank 0 has sent a step before it had any pages");
    if (kind == MessageKind::moves) {
      runner->make(read_moves(message));
    } else {
      runner->collect(runner->launch(read_step(message)));
    }
    runner->take_made();
  }
}

}  // namespace quire
