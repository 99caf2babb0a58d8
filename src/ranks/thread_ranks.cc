#include "ranks/thread_ranks.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/check.h"
#include "base/error.h"

namespace quire {
namespace {

// Where they meet. Any thread.
struct Meeting {
  explicit Meeting(uint32_t count) : places(count), heard(count) {}

  // Until all are here.
  void wait_for_all(std::unique_lock<std::mutex>& lock) {
    const uint64_t round = rounds;
    if (++here == places.size()) {
      here = 0;
      ++rounds;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return rounds != round || !failure.empty(); });
    if (rounds == round) throw Error("{}", failure);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::byte*> places;                         // by rank: what it gathers into
  std::vector<std::deque<std::vector<std::byte>>> heard;  // by rank: what it has not heard yet
  uint32_t here = 0;
  uint64_t rounds = 0;
  std::string failure;
};

class ThreadRank : public Ranks {
 public:
  ThreadRank(std::shared_ptr<Meeting> meeting, uint32_t rank) : meeting_(std::move(meeting)), rank_(rank) {}
  ~ThreadRank() override {
    if (rank_ == 0) send({});
  }

  uint32_t rank() const override { return rank_; }
  uint32_t count() const override { return uint32_t(meeting_->places.size()); }

  std::vector<std::byte> hear() override {
    CHECK(rank_ > 0);
    std::unique_lock lock(meeting_->mutex);
    auto& own = meeting_->heard[rank_];
    meeting_->changed.wait(lock, [&] { return !own.empty() || !meeting_->failure.empty(); });
    if (own.empty()) throw Error("{}", meeting_->failure);
    std::vector<std::byte> message = std::move(own.front());
    own.pop_front();
    return message;
  }

  void give_up(const std::string& why) override {
    {
      const std::lock_guard lock(meeting_->mutex);
      if (meeting_->failure.empty()) meeting_->failure = why;
    }
    meeting_->changed.notify_all();
    throw Error("{}", why);
  }

 protected:
  void send(std::span<const std::byte> message) override {
    {
      const std::lock_guard lock(meeting_->mutex);
      for (size_t r = 1; r < meeting_->heard.size(); ++r)
        meeting_->heard[r].emplace_back(message.begin(), message.end());
    }
    meeting_->changed.notify_all();
  }

  void exchange(std::span<std::byte> all, std::span<const size_t> pieces, To to) override {
    std::unique_lock lock(meeting_->mutex);
    meeting_->places[rank_] = all.data();
    meeting_->wait_for_all(lock);
    if (to == To::all || rank_ == 0) {
      lock.unlock();
      size_t at = 0;
      for (uint32_t r = 0; r < pieces.size(); at += pieces[r++]) {
        if (r != rank_) std::memcpy(all.data() + at, meeting_->places[r] + at, pieces[r]);
      }
      lock.lock();
    }
    meeting_->wait_for_all(lock);  // what others still read must stay
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  uint32_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Ranks>> make_thread_ranks(uint32_t count) {
  const auto meeting = std::make_shared<Meeting>(count);
  std::vector<std::unique_ptr<Ranks>> ranks;
  for (uint32_t r = 0; r < count; ++r) ranks.push_back(std::make_unique<ThreadRank>(meeting, r));
  return ranks;
}

}  // namespace quire
