#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
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
// its way keeps it alive. The executor must be that of a single thread. Whoever puts something in never waits, and is
// never told that there was no memory for it: that is for the coroutine to hear.
template <class T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The first thing needs no memory any more.
  explicit Mailbox(const asio::any_io_executor& executor) : bell_(executor) { things_.reserve(1); }

  void put(T thing) noexcept {
    put_bounded(std::move(thing), 0, SIZE_MAX, [](T&, T&) { return false; });
  }

  // The same for one who may be too slow: joined to the last thing that waits if `join(last, thing)` can, else counted as
  // `bytes`. False: more than `most_bytes` wait already, and it was left out.
  template <class Join>
  bool put_bounded(T thing, size_t bytes, size_t most_bytes, Join join) noexcept {
    bool ring = false;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_bytes_ > most_bytes) return false;
      try {
        if (things_.empty() || !join(things_.back(), thing)) things_.push_back(std::move(thing));
        waiting_bytes_ += bytes;
      } catch (const std::bad_alloc&) {
        lost_ = true;
      }
      ring = !std::exchange(rung_, true);  // one wake-up is enough for all that come until then
    }
    if (ring) wake();
    return true;
  }
  // Something that should have come never will: there was no memory for it.
  void lose() noexcept {
    {
      const std::lock_guard lock(mutex_);
      lost_ = true;
    }
    wake();
  }

  // All that came since, at least one; none if nothing has come by then. Throws std::bad_alloc if something was lost.
  asio::awaitable<std::vector<T>> take(Time latest = Time::max()) {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (lost_) throw std::bad_alloc();
        if (!things_.empty()) {
          rung_ = false;
          waiting_bytes_ = 0;
          co_return std::exchange(things_, {});
        }
      }
      const Time now = std::chrono::steady_clock::now();
      if (now >= latest) co_return std::vector<T>();
      boost::system::error_code rung;
      bell_.expires_after(std::min<Time::duration>(kLook, latest - now));
      co_await bell_.async_wait(asio::redirect_error(asio::use_awaitable, rung));
    }
  }

 private:
  static constexpr std::chrono::seconds kLook{1};  // for the case that there was no memory to ring

  void wake() noexcept {
    try {
      asio::post(bell_.get_executor(), [self = this->shared_from_this()] { self->bell_.cancel(); });
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(mutex_);
      rung_ = false;
    }
  }

  std::mutex mutex_;
  std::vector<T> things_;
  size_t waiting_bytes_ = 0;
  bool rung_ = false, lost_ = false;
  asio::steady_timer bell_;  // cancelling it wakes the coroutine
};

}  // namespace quire
