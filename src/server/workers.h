#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/clock.h"
#include "server/mailbox.h"

namespace quire {

// Threads for what would hold up the streams: understanding requests, writing replies, saving snapshots. Each lane is one
// thread, so that only large things wait for large ones.
class Workers {
 public:
  enum class Lane { small, large, replies, saves };

  // `before_work` is called before each piece of work, on its thread: for tests.
  explicit Workers(asio::io_context& io, std::function<void(Lane)> before_work = nullptr);
  // Waits for whoever is at work.
  ~Workers();

  // Belongs to the io_context's thread; `work` runs on the lane's.
  template <class Work>
  asio::awaitable<std::invoke_result_t<Work>> run(Lane lane, Work work);

  // The text that `write` makes of a tree, which is gone by then.
  asio::awaitable<std::string> write_reply(std::function<std::string()> write);

  // Drops what has not begun, and says whether all that had is done by then.
  bool finish_by(Clock::time_point latest);

  // Bytes that take long enough to understand or to write that others would notice.
  static Lane lane_for(size_t bytes) { return bytes > kLarge ? Lane::large : Lane::small; }

 private:
  static constexpr size_t kLarge = 64 << 10;

  asio::thread_pool& pool(Lane lane) { return pools_[size_t(lane)]; }
  // A piece of work has one until it is done or dropped.
  class Token {
   public:
    explicit Token(std::shared_ptr<std::atomic<bool>> done) : done_(std::move(done)) {}
    ~Token() {
      *done_ = true;
      done_->notify_all();
    }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;

   private:
    std::shared_ptr<std::atomic<bool>> done_;
  };
  // Work sees what belongs to whoever wants it done: if that one cannot wait for it as a coroutine does, for want of
  // memory, its thread waits.
  class Waiting {
   public:
    explicit Waiting(std::shared_ptr<std::atomic<bool>> done) : done_(std::move(done)) {}
    ~Waiting() { done_->wait(false); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    std::shared_ptr<std::atomic<bool>> done_;
  };
  void begin(Lane lane);
  void end(Lane lane) noexcept;

  asio::io_context& io_;
  const std::function<void(Lane)> before_work_;
  std::mutex mutex_;
  std::condition_variable idle_;
  uint32_t busy_ = 0;
  std::array<asio::thread_pool, 4> pools_;  // by lane
};

template <class Work>
asio::awaitable<std::invoke_result_t<Work>> Workers::run(Lane lane, Work work) {
  struct Outcome {
    std::optional<std::invoke_result_t<Work>> result;
    std::exception_ptr problem;
  };
  const auto box = std::make_shared<Mailbox<Outcome>>(io_.get_executor());
  const auto done = std::make_shared<std::atomic<bool>>(false);
  {
    auto token = std::make_shared<Token>(done);
    auto job = [this, lane, box, token, &work] {
      Outcome outcome;
      try {
        begin(lane);
        outcome.result.emplace(work());
      } catch (...) {
        outcome.problem = std::current_exception();
      }
      end(lane);
      box->put(std::move(outcome));
    };
    token.reset();
    asio::post(pool(lane), std::move(job));
  }
  const Waiting waiting(done);
  std::vector<Outcome> outcomes = co_await box->take();
  if (outcomes.front().problem) std::rethrow_exception(outcomes.front().problem);
  co_return std::move(*outcomes.front().result);
}

}  // namespace quire
