#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace quire {

namespace asio = boost::asio;

// Things that any thread puts in and one coroutine takes out, in order. Make it with make_shared: a wake-up that is on
// its way keeps it alive. The executor must be that of a single thread.
template <class T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  explicit Mailbox(const asio::any_io_executor& executor) : bell_(executor) {}

  void put(T thing) {
    {
      const std::lock_guard lock(mutex_);
      things_.push_back(std::move(thing));
      if (std::exchange(rung_, true)) return;  // one wake-up is enough for all that come until then
    }
    asio::post(bell_.get_executor(), [self = this->shared_from_this()] { self->bell_.cancel(); });
  }

  // All that came since, at least one.
  asio::awaitable<std::vector<T>> take() {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (!things_.empty()) {
          rung_ = false;
          co_return std::exchange(things_, {});
        }
      }
      boost::system::error_code rung;
      bell_.expires_at(asio::steady_timer::time_point::max());
      co_await bell_.async_wait(asio::redirect_error(asio::use_awaitable, rung));
    }
  }

 private:
  std::mutex mutex_;
  std::vector<T> things_;
  bool rung_ = false;
  asio::steady_timer bell_;  // never expires: cancelling it wakes the coroutine
};

}  // namespace quire
