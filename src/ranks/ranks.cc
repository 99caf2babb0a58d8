#include "ranks/ranks.h"

#include "base/check.h"
#include "base/clock.h"

namespace quire {

void Ranks::tell(std::span<const std::byte> message) {
  CHECK(leads() && !message.empty());
  send(message);
  ++traffic_.messages;
  traffic_.message_bytes += message.size();
}

void Ranks::gather(std::span<std::byte> all, std::span<const size_t> pieces, To to) {
  CHECK(pieces.size() == count());
  const Clock::time_point begin = Clock::now();
  exchange(all, pieces, to);
  traffic_.gather_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  ++traffic_.gathers;
  if (to == To::all || leads()) traffic_.gathered_bytes += all.size() - pieces[rank()];
}

}  // namespace quire
