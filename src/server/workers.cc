#include "server/workers.h"

#include "base/memory.h"

namespace quire {
namespace {

constexpr size_t kManyBytes = 1 << 20;  // of a reply whose tree is worth giving back

}  // namespace

Workers::Workers(asio::io_context& io, std::function<void(Lane)> before_work)
    : io_(io), before_work_(std::move(before_work)), pools_{1, 1, 1, 1} {}

Workers::~Workers() {
  for (asio::thread_pool& pool : pools_) {
    pool.stop();
    pool.join();
  }
}

void Workers::begin(Lane lane) {
  {
    const std::lock_guard lock(mutex_);
    ++busy_;
  }
  if (before_work_) before_work_(lane);
}

void Workers::end(Lane lane) noexcept {
  // The trees of large requests and replies are millions of small pieces, which the allocator would keep.
  if (lane == Lane::large) return_free_memory();
  const std::lock_guard lock(mutex_);
  --busy_;
  idle_.notify_all();
}

asio::awaitable<std::string> Workers::write_reply(std::function<std::string()> write) {
  const auto work = [&write] {
    std::string text = std::exchange(write, nullptr)();
    if (text.size() > kManyBytes) return_free_memory();
    return text;
  };
  std::string text = co_await run(Lane::replies, work);
  co_return text;
}

bool Workers::finish_by(Clock::time_point latest) {
  for (asio::thread_pool& pool : pools_) pool.stop();
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, latest, [&] { return busy_ == 0; });
}

}  // namespace quire
