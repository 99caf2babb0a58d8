#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "base/clock.h"
#include "kv/layout/kv_layout.h"
#include "kv/tiers/tier_slots.h"

namespace quire {

struct DiskTierOptions {
  std::string folder;
  size_t bytes = 0;  // of the file, at most
  size_t queue_bytes =
      size_t(64) << 20;  // of pages that wait to be written, beside one that is larger; more are dropped
};

// As pwrite(2) and pread(2). Others: for tests, disks that fail.
struct DiskIo {
  std::function<ssize_t(int file, const void* data, size_t bytes, off_t at)> write;
  std::function<ssize_t(int file, void* data, size_t bytes, off_t at)> read;
};

// Full pages that were evicted from memory, in a file, until they are wanted again or the file is full: then those go
// that were used longest ago. A page is found by all tokens up to its end, compared one by one, under their salt. Its checksum is kept in
// memory and not beside it: bytes that are not those that were written are noticed, and the page is forgotten.
//
// The file has no name from the moment it is open, so that it goes with the process however that ends. Nothing in it is
// ever read by another.
//
// A thread of its own writes and reads, in the order in which it was asked; all else is for the engine's thread, which
// never waits for the disk.
class DiskTier {
 public:
  // Throws Error if there is no such folder, no file can be made in it, or not one page fits.
  DiskTier(const KvLayout& layout, const DiskTierOptions& options, DiskIo io = {});
  ~DiskTier();  // what is still to be written is not needed any more
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  using Ticket = uint64_t;
  // Keeps a page: which of its node (KvLayout::node_pages), and all tokens up to the node's end. Of one that is queued the bytes are to be brought to `bytes`; it is written
  // when they are there, and what is asked for later comes after it.
  enum class Stored : uint8_t { queued, already_there, dropped };
  struct Place {
    Stored stored = Stored::dropped;
    Ticket ticket = 0;
    std::byte* bytes = nullptr;
  };
  [[nodiscard]] Place store(uint32_t node_page, const SaltedTokens& prefix);
  void filled(Ticket stored);
  // The same of bytes that are there and are not copied: they must stay as they are until `take_written` has the ticket, which it
  // has of every page that was queued.
  [[nodiscard]] Place store_from(const std::byte* bytes, uint32_t node_page, const SaltedTokens& prefix);
  std::vector<Ticket> take_written();
  // Whether a page of so many bytes would be queued now.
  bool has_room_for(size_t bytes);

  std::vector<std::vector<bool>> pages_along(const SaltedTokens& tokens) const {
    return slots_.pages_along(tokens);
  }
  void touch_along(const SaltedTokens& tokens) { slots_.touch_along(tokens); }
  void tell(BlockListener* listener) { slots_.tell(listener); }

  // Asks for a page; nothing if it is not there any more.
  std::optional<Ticket> read(uint32_t node_page, const SaltedTokens& prefix);
  struct Arrival {
    Ticket ticket = 0;
    std::unique_ptr<std::byte[]> bytes;  // null: it could not be read, and is forgotten
  };
  // What was read since, in the order in which it was asked for.
  std::vector<Arrival> take_arrivals();
  // Until something was read or written, but no longer than `most`.
  void wait(std::chrono::milliseconds most);

  struct Stats {
    uint64_t capacity_bytes = 0, used_bytes = 0, queued_bytes = 0;
    uint64_t pages = 0;
    uint64_t written_pages = 0, written_bytes = 0, read_pages = 0, read_bytes = 0;
    uint64_t dropped_pages = 0;   // the queue was full
    uint64_t replaced_pages = 0;  // the file was full
    uint64_t failed_writes = 0, failed_reads = 0;
    double read_bytes_per_s = 0;
  };
  Stats stats();
  uint64_t pages_of(uint32_t group) const { return slots_.uses(group).size(); }
  // How long it takes until so many bytes are here, after all that was asked for before.
  double seconds_to_read(size_t bytes);
  // A rate that looks bad is not measured any more, as nobody reads: each time that happens it is believed a little less.
  void doubt_rate();

  // Nothing is found any more, and what was asked for never arrives. Allocates nothing. REQUIRES: nobody is about to bring bytes.
  void forget_all();

  void check_invariants() const;

 private:
  using Bytes = std::unique_ptr<std::byte[]>;
  struct Group {
    uint64_t begin = 0;               // in the file
    std::vector<Ticket> written_by;   // by slot
    std::vector<uint64_t> checksums;  // by slot; the worker's. 0: nothing good is there
  };
  enum class Kind : uint8_t { write, read };
  struct Job {
    Kind kind = Kind::write;
    uint32_t group = 0, slot = 0;
    Ticket ticket = 0;
    Ticket written_by = 0;
    Bytes bytes;
    const std::byte* borrowed = nullptr;  // of a write: another's bytes instead
    bool filled = true;                   // of a write: its bytes are there
    bool forgotten = false;               // nobody asks what became of it, but for the lender of its bytes
    bool good = false;
    double seconds = 0;
  };

  Place add(uint32_t node_page, const SaltedTokens& prefix, const std::byte* borrowed);
  size_t bytes_of(const Job& job) const { return slots_.page_bytes(job.group); }
  void push(Job job);
  void give_to_worker();  // those before which none waits for its bytes
  void settle();          // takes over what the worker has done
  void count(const Job& job);
  void learn_rate(const Job& job);

  void work();
  void write(Job& job);
  void read(Job& job);

  TierSlots slots_;
  DiskTierOptions options_;
  DiskIo io_;
  int file_ = -1;
  std::vector<Group> groups_;
  Ticket next_ticket_ = 1;
  Stats stats_;
  double seconds_per_byte_;
  bool rate_is_measured_ = false;
  std::vector<Arrival> arrivals_;
  std::list<Job> waiting_;  // from the first write on whose bytes are not there
  std::list<Job> written_;  // from bytes that were lent

  std::mutex mutex_;
  std::condition_variable wake_, done_something_;
  std::list<Job> jobs_, done_;
  uint64_t queued_bytes_ = 0;  // of jobs that are not done
  uint64_t queued_write_bytes_ = 0;
  bool stopping_ = false;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace quire
