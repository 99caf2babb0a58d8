#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ranks/row_share.h"

namespace quire {

// The processes that compute one model together, seen by one of them. Rank 0 decides and says what is to be done; all do it, each the
// rows that are its own, and hand each other what they have made. Nothing is ever added up on the way, so that the bits are those of one
// process. One thread at a time.
class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t count() const = 0;
  RankPlace place() const { return {rank(), count()}; }
  bool leads() const { return rank() == 0; }

  // Rank 0's: a message to all others. REQUIRES: it is not empty.
  void tell(std::span<const std::byte> message);
  // The others': waits for the next. Empty: rank 0 has left, and there are no more.
  virtual std::vector<std::byte> hear() = 0;

  // Who gets what is gathered.
  enum class To : uint8_t { all, first };
  // `all` has a piece of each rank, one after the other, of so many bytes each. One's own is there; this brings those of the others.
  void gather(std::span<std::byte> all, std::span<const size_t> pieces, To to);

  // One cannot go on, and without it the others cannot either: ends all of them.
  [[noreturn]] virtual void give_up(const std::string& why) = 0;

  // What has come and gone so far.
  struct Traffic {
    uint64_t messages = 0, message_bytes = 0;
    uint64_t gathers = 0, gathered_bytes = 0;  // received from others
    double gather_seconds = 0;                 // with the time that was waited for the slowest
  };
  const Traffic& traffic() const { return traffic_; }

 protected:
  virtual void send(std::span<const std::byte> message) = 0;
  virtual void exchange(std::span<std::byte> all, std::span<const size_t> pieces, To to) = 0;

 private:
  Traffic traffic_;
};

}  // namespace quire
