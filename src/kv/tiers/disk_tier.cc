#include "kv/tiers/disk_tier.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/error.h"

namespace quire {
namespace {

constexpr double kFirstGuess = 1 / 500e6;  // seconds per byte: any disk that is worth it
constexpr double kNewest = 0.1;            // of the average: the weight of a byte rate just measured

// Open, without a name, readable by its owner only.
int open_nameless(const std::string& folder) {
  if (const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR); file >= 0)
    return file;
  // A file system that has no such files: for a moment it has a name, which one that is killed then would leave.
  std::string path = folder + "/.kv-disk-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) throw Error("cannot make a file in {} for evicted pages: {}", folder, std::strerror(errno));
  ::unlink(path.c_str());
  return file;
}

// Of a page that ticket `seed` wrote: an earlier page of the slot does not pass for it.
uint64_t checksum_of(const std::byte* bytes, size_t size, uint64_t seed) {
  const uint64_t sum = XXH3_64bits_withSeed(bytes, size, seed);
  return sum == 0 ? 1 : sum;  // 0 says that nothing good is there
}

}  // namespace

DiskTier::DiskTier(const KvLayout& layout, const DiskTierOptions& options, DiskIo io)
    : slots_(layout, options.bytes, BlockPlace::disk),
      options_(options),
      io_(std::move(io)),
      seconds_per_byte_(kFirstGuess) {
  if (!io_.write) io_.write = ::pwrite;
  if (!io_.read) io_.read = ::pread;
  if (slots_.capacity_bytes() == 0)
    throw Error("{} bytes of disk are too few: a page of {} tokens needs {}", options_.bytes,
                layout.node_tokens, TierSlots::node_bytes(layout));
  uint64_t begin = 0;
  for (uint32_t g = 0; g < slots_.groups(); ++g) {
    Group& group = groups_.emplace_back();
    group.begin = begin;
    group.written_by.resize(slots_.slots(g));
    group.checksums.resize(slots_.slots(g));
    begin += slots_.slots(g) * slots_.page_bytes(g);
  }
  stats_.capacity_bytes = begin;
  file_ = open_nameless(options_.folder);
  worker_ = std::thread([this] { work(); });
}

DiskTier::~DiskTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  worker_.join();
  ::close(file_);
}

// ---- what is where -----------------------------------------------------------------------------------------------

bool DiskTier::has_room_for(size_t bytes) {
  const std::lock_guard lock(mutex_);
  // A page that is larger than the queue waits beside it, if no other one does.
  if (bytes > options_.queue_bytes) return queued_write_bytes_ <= options_.queue_bytes;
  return queued_write_bytes_ + bytes <= options_.queue_bytes;
}

DiskTier::Place DiskTier::store(uint32_t node_page, const SaltedTokens& prefix) {
  return add(node_page, prefix, nullptr);
}

DiskTier::Place DiskTier::store_from(const std::byte* bytes, uint32_t node_page, const SaltedTokens& prefix) {
  return add(node_page, prefix, bytes);
}

DiskTier::Place DiskTier::add(uint32_t node_page, const SaltedTokens& prefix, const std::byte* borrowed) {
  settle();
  const uint32_t g = slots_.group_of(node_page);
  if (const auto known = slots_.find(node_page, prefix)) {
    slots_.touch(g, *known);
    return {.stored = Stored::already_there};
  }
  if (!has_room_for(slots_.page_bytes(g))) {
    ++stats_.dropped_pages;
    return {};
  }
  if (!slots_.has_free(g)) {
    slots_.forget(g, slots_.uses(g).front());
    ++stats_.replaced_pages;
  }
  const uint32_t slot = slots_.take(node_page, prefix);
  const Ticket ticket = groups_[g].written_by[slot] = next_ticket_++;
  Bytes bytes =
      borrowed != nullptr ? nullptr : std::make_unique_for_overwrite<std::byte[]>(slots_.page_bytes(g));
  const Place place{.stored = Stored::queued, .ticket = ticket, .bytes = bytes.get()};
  push({.kind = Kind::write,
        .group = g,
        .slot = slot,
        .ticket = ticket,
        .written_by = ticket,
        .bytes = std::move(bytes),
        .borrowed = borrowed,
        .filled = borrowed != nullptr});
  return place;
}

void DiskTier::filled(Ticket stored) {
  const auto found = std::ranges::find(waiting_, stored, &Job::ticket);
  CHECK(found != waiting_.end());
  found->filled = true;
  give_to_worker();
}

std::optional<DiskTier::Ticket> DiskTier::read(uint32_t node_page, const SaltedTokens& prefix) {
  settle();
  const auto slot = slots_.find(node_page, prefix);
  if (!slot) return std::nullopt;
  const uint32_t g = slots_.group_of(node_page);
  const Ticket ticket = next_ticket_++;
  push({.kind = Kind::read,
        .group = g,
        .slot = *slot,
        .ticket = ticket,
        .written_by = groups_[g].written_by[*slot],
        .bytes = nullptr});
  return ticket;
}

void DiskTier::forget_all() {
  slots_.forget_all();
  arrivals_.clear();
  const std::lock_guard lock(mutex_);
  for (Job& job : waiting_) {
    job.forgotten = true;
    queued_bytes_ -= bytes_of(job);
    if (job.kind == Kind::write) queued_write_bytes_ -= bytes_of(job);
  }
  // Whoever lent bytes gets them back.
  waiting_.remove_if([](const Job& job) { return job.borrowed == nullptr; });
  done_.splice(done_.end(), waiting_);
}

// ---- what was done -----------------------------------------------------------------------------------------------

void DiskTier::settle() {
  std::list<Job> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  // First what takes no memory: bytes that were lent go back whatever happens.
  for (auto job = done.begin(); job != done.end();) {
    const auto one = job++;
    if (!one->forgotten) count(*one);
    if (one->borrowed != nullptr) written_.splice(written_.end(), done, one);
  }
  for (Job& job : done) {
    if (job.kind == Kind::read) arrivals_.push_back({job.ticket, job.good ? std::move(job.bytes) : nullptr});
  }
}

void DiskTier::count(const Job& job) {
  const bool is_write = job.kind == Kind::write;
  if (job.good) {
    (is_write ? stats_.written_pages : stats_.read_pages) += 1;
    (is_write ? stats_.written_bytes : stats_.read_bytes) += bytes_of(job);
    if (!is_write) learn_rate(job);
    return;
  }
  ++(is_write ? stats_.failed_writes : stats_.failed_reads);
  // Unless the slot has been given to another page meanwhile.
  if (slots_.is_taken(job.group, job.slot) && groups_[job.group].written_by[job.slot] == job.written_by)
    slots_.forget(job.group, job.slot);
}

void DiskTier::learn_rate(const Job& job) {
  const double measured = job.seconds / double(bytes_of(job));
  seconds_per_byte_ = rate_is_measured_ ? (1 - kNewest) * seconds_per_byte_ + kNewest * measured : measured;
  rate_is_measured_ = true;
}

void DiskTier::doubt_rate() {
  if (seconds_per_byte_ > kFirstGuess) seconds_per_byte_ = std::max(0.98 * seconds_per_byte_, kFirstGuess);
}

std::vector<DiskTier::Arrival> DiskTier::take_arrivals() {
  settle();
  return std::exchange(arrivals_, {});
}

std::vector<DiskTier::Ticket> DiskTier::take_written() {
  settle();
  std::vector<Ticket> tickets;
  tickets.reserve(written_.size());
  for (const Job& job : written_) tickets.push_back(job.ticket);
  written_.clear();
  return tickets;
}

void DiskTier::wait(std::chrono::milliseconds most) {
  if (!arrivals_.empty()) return;
  std::unique_lock lock(mutex_);
  done_something_.wait_for(lock, most, [&] { return !done_.empty(); });
}

DiskTier::Stats DiskTier::stats() {
  settle();
  stats_.read_bytes_per_s = 1 / seconds_per_byte_;
  stats_.pages = slots_.pages();
  stats_.used_bytes = slots_.used_bytes();
  const std::lock_guard lock(mutex_);
  stats_.queued_bytes = queued_bytes_;
  return stats_;
}

double DiskTier::seconds_to_read(size_t bytes) {
  const std::lock_guard lock(mutex_);
  return double(bytes + queued_bytes_) * seconds_per_byte_;
}

void DiskTier::check_invariants() const {
  slots_.check_invariants();
  CHECK(slots_.used_bytes() <= options_.bytes);
  for (uint32_t g = 0; g < slots_.groups(); ++g)
    CHECK(slots_.has_free(g) || slots_.uses(g).size() == slots_.slots(g));
}

// ---- the worker --------------------------------------------------------------------------------------------------

void DiskTier::push(Job job) {
  const size_t bytes = bytes_of(job);
  const bool is_write = job.kind == Kind::write;
  waiting_.push_back(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    queued_bytes_ += bytes;
    if (is_write) queued_write_bytes_ += bytes;
  }
  give_to_worker();
}

void DiskTier::give_to_worker() {
  const auto first = std::ranges::find(waiting_, false, &Job::filled);
  if (first == waiting_.begin()) return;
  {
    const std::lock_guard lock(mutex_);
    jobs_.splice(jobs_.end(), waiting_, waiting_.begin(), first);
  }
  wake_.notify_one();
}

void DiskTier::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    std::list<Job> now;  // a job moves from list to list, which takes no memory
    now.splice(now.end(), jobs_, jobs_.begin());
    Job& job = now.front();
    lock.unlock();
    const Clock::time_point begin = Clock::now();
    if (job.kind == Kind::write) {
      write(job);
    } else {
      read(job);
    }
    job.seconds = milliseconds_between(begin, Clock::now()) / 1000;
    const size_t bytes = bytes_of(job);
    lock.lock();
    queued_bytes_ -= bytes;
    if (job.kind == Kind::write) queued_write_bytes_ -= bytes;
    done_.splice(done_.end(), now);
    done_something_.notify_all();
  }
}

void DiskTier::write(Job& job) {
  Group& group = groups_[job.group];
  const size_t page_bytes = bytes_of(job);
  const uint64_t at = group.begin + uint64_t(job.slot) * page_bytes;
  uint64_t& checksum = group.checksums[job.slot];
  checksum = 0;
  const std::byte* bytes = job.borrowed != nullptr ? job.borrowed : job.bytes.get();
  size_t done = 0;
  while (done < page_bytes) {
    const ssize_t put = io_.write(file_, bytes + done, page_bytes - done, off_t(at + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    done += size_t(put);
  }
  job.good = done == page_bytes;
  if (job.good) checksum = checksum_of(bytes, page_bytes, job.written_by);
  job.bytes.reset();
}

void DiskTier::read(Job& job) {
  Group& group = groups_[job.group];
  const size_t page_bytes = bytes_of(job);
  const uint64_t at = group.begin + uint64_t(job.slot) * page_bytes;
  const uint64_t checksum = group.checksums[job.slot];
  if (checksum == 0) return;  // its write has failed
  job.bytes.reset(new (std::nothrow) std::byte[page_bytes]);
  if (!job.bytes) return;
  size_t done = 0;
  while (done < page_bytes) {
    const ssize_t got = io_.read(file_, job.bytes.get() + done, page_bytes - done, off_t(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += size_t(got);
  }
  job.good = done == page_bytes && checksum_of(job.bytes.get(), page_bytes, job.written_by) == checksum;
}

}  // namespace quire
