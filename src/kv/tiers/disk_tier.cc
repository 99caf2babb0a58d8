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
    : node_pages_(layout.node_pages),
      node_tokens_(layout.node_tokens),
      options_(options),
      io_(std::move(io)),
      tree_(layout.node_pages.size(), layout.node_tokens, 0),
      seconds_per_byte_(kFirstGuess) {
  if (!io_.write) io_.write = ::pwrite;
  if (!io_.read) io_.read = ::pread;
  uint64_t node_bytes = 0, begin = 0;
  for (uint32_t n = 0; n < node_pages_.size(); ++n) node_bytes += layout.node_page_bytes(n);
  const uint64_t nodes = std::min<uint64_t>(options_.bytes / node_bytes, UINT32_MAX / node_tokens_);
  if (nodes == 0)
    throw Error("{} bytes of disk are too few: a page of {} tokens needs {}", options_.bytes, node_tokens_,
                node_bytes);
  for (const KvGroupLayout& layout_of : layout.groups) {
    Group& group = groups_.emplace_back();
    const uint64_t slots = nodes * (node_tokens_ / layout_of.page_tokens);
    group.page_bytes = layout_of.page_bytes;
    group.begin = begin;
    group.slots.resize(slots);
    group.checksums.resize(slots);
    group.free.reserve(slots);
    for (uint64_t slot = slots; slot-- > 0;) group.free.push_back(uint32_t(slot));
    begin += slots * group.page_bytes;
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

std::optional<PrefixNodeId> DiskTier::find(const SaltedTokens& prefix) const {
  std::optional<PrefixNodeId> at = tree_.root(prefix.salt);
  for (size_t i = 0; at && i < prefix.size(); i += node_tokens_)
    at = tree_.child(*at, prefix.tokens.subspan(i, node_tokens_));
  return at;
}

PrefixNodeId DiskTier::find_or_add(const SaltedTokens& prefix) {
  PrefixNodeId at = tree_.root_or_add(prefix.salt);
  for (size_t i = 0; i < prefix.size(); i += node_tokens_) {
    const auto tokens = prefix.tokens.subspan(i, node_tokens_);
    const auto next = tree_.child(at, tokens);
    at = next ? *next : tree_.add(at, tokens);
  }
  return at;
}

void DiskTier::touch(Group& group, uint32_t slot) {
  group.uses.splice(group.uses.end(), group.uses, group.slots[slot].place);
}

void DiskTier::forget(uint32_t g, uint32_t slot) {
  Group& group = groups_[g];
  const uint32_t node_page = group.slots[slot].node_page;
  const PrefixNodeId node = std::exchange(group.slots[slot].node, PrefixIndex::kRoot);
  group.uses.erase(group.slots[slot].place);
  group.free.push_back(slot);
  tree_.node(node).pages[node_page].reset();
  tree_.prune(node);
  --stats_.pages;
  stats_.used_bytes -= group.page_bytes;
}

DiskTier::Place DiskTier::store(uint32_t node_page, const SaltedTokens& prefix) {
  CHECK(prefix.size() > 0 && prefix.size() % node_tokens_ == 0);
  settle();
  const uint32_t g = node_pages_[node_page].group;
  Group& group = groups_[g];
  if (const auto known = find(prefix); known && tree_.node(*known).pages[node_page]) {
    touch(group, tree_.node(*known).pages[node_page]->value);
    return {.stored = Stored::already_there};
  }
  {
    const std::lock_guard lock(mutex_);
    if (queued_write_bytes_ + group.page_bytes > options_.queue_bytes) {
      ++stats_.dropped_pages;
      return {};
    }
  }
  if (group.free.empty()) {
    forget(g, group.uses.front());
    ++stats_.replaced_pages;
  }
  const uint32_t index = group.free.back();
  group.free.pop_back();
  Slot& slot = group.slots[index];
  slot.node = find_or_add(prefix);
  slot.node_page = node_page;
  slot.written_by = next_ticket_++;
  slot.place = group.uses.insert(group.uses.end(), index);
  tree_.node(slot.node).pages[node_page] = PageId{index};
  ++stats_.pages;
  stats_.used_bytes += group.page_bytes;
  Bytes bytes = std::make_unique_for_overwrite<std::byte[]>(group.page_bytes);
  const Place place{.stored = Stored::queued, .ticket = slot.written_by, .bytes = bytes.get()};
  push({.kind = Kind::write,
        .group = g,
        .slot = index,
        .ticket = slot.written_by,
        .written_by = slot.written_by,
        .bytes = std::move(bytes),
        .filled = false});
  return place;
}

void DiskTier::filled(Ticket stored) {
  const auto found = std::ranges::find(waiting_, stored, &Job::ticket);
  CHECK(found != waiting_.end());
  found->filled = true;
  give_to_worker();
}

std::vector<std::vector<bool>> DiskTier::pages_along(const SaltedTokens& salted) const {
  std::vector<std::vector<bool>> pages;
  std::optional<PrefixNodeId> at = tree_.root(salted.salt);
  std::span<const TokenId> tokens = salted.tokens;
  for (; at && tokens.size() >= node_tokens_; tokens = tokens.subspan(node_tokens_)) {
    at = tree_.child(*at, tokens.first(node_tokens_));
    if (!at) break;
    std::vector<bool>& has = pages.emplace_back();
    for (const auto& slot : tree_.node(*at).pages) has.push_back(slot.has_value());
  }
  return pages;
}

void DiskTier::touch_along(const SaltedTokens& tokens) {
  const size_t known = pages_along(tokens).size();
  if (known == 0) return;
  PrefixNodeId at = *find(tokens.first(known * node_tokens_));
  for (; at != PrefixIndex::kRoot; at = tree_.node(at).parent) {
    for (size_t n = 0; n < node_pages_.size(); ++n) {
      if (const auto& slot = tree_.node(at).pages[n]) touch(groups_[node_pages_[n].group], slot->value);
    }
  }
}

std::optional<DiskTier::Ticket> DiskTier::read(uint32_t node_page, const SaltedTokens& prefix) {
  settle();
  const auto node = find(prefix);
  if (!node || tree_.is_root(*node) || !tree_.node(*node).pages[node_page]) return std::nullopt;
  const uint32_t g = node_pages_[node_page].group, slot = tree_.node(*node).pages[node_page]->value;
  const Ticket ticket = next_ticket_++;
  push({.kind = Kind::read,
        .group = g,
        .slot = slot,
        .ticket = ticket,
        .written_by = groups_[g].slots[slot].written_by,
        .bytes = nullptr});
  return ticket;
}

void DiskTier::forget_all() {
  tree_.forget_all();
  for (Group& group : groups_) {
    group.uses.clear();
    group.free.clear();
    for (uint32_t slot = uint32_t(group.slots.size()); slot-- > 0;) {
      group.slots[slot] = {};
      group.free.push_back(slot);
    }
  }
  arrivals_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (const Job& job : waiting_) {
      const size_t bytes = groups_[job.group].page_bytes;
      queued_bytes_ -= bytes;
      if (job.kind == Kind::write) queued_write_bytes_ -= bytes;
    }
  }
  waiting_.clear();
  stats_.pages = stats_.used_bytes = 0;
}

// ---- what was done -----------------------------------------------------------------------------------------------

void DiskTier::settle() {
  std::list<Job> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  for (Job& job : done) {
    const size_t bytes = groups_[job.group].page_bytes;
    const bool is_write = job.kind == Kind::write;
    if (job.good) {
      (is_write ? stats_.written_pages : stats_.read_pages) += 1;
      (is_write ? stats_.written_bytes : stats_.read_bytes) += bytes;
      if (!is_write) learn_rate(job);
    } else {
      ++(is_write ? stats_.failed_writes : stats_.failed_reads);
      // Unless the slot has been given to another page meanwhile.
      const Slot& slot = groups_[job.group].slots[job.slot];
      if (slot.node != PrefixIndex::kRoot && slot.written_by == job.written_by) forget(job.group, job.slot);
    }
    if (!is_write) arrivals_.push_back({job.ticket, job.good ? std::move(job.bytes) : nullptr});
  }
}

void DiskTier::learn_rate(const Job& job) {
  const double measured = job.seconds / double(groups_[job.group].page_bytes);
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

void DiskTier::wait(std::chrono::milliseconds most) {
  if (!arrivals_.empty()) return;
  std::unique_lock lock(mutex_);
  done_something_.wait_for(lock, most, [&] { return !done_.empty(); });
}

DiskTier::Stats DiskTier::stats() {
  settle();
  stats_.read_bytes_per_s = 1 / seconds_per_byte_;
  const std::lock_guard lock(mutex_);
  stats_.queued_bytes = queued_bytes_;
  return stats_;
}

double DiskTier::seconds_to_read(size_t bytes) {
  const std::lock_guard lock(mutex_);
  return double(bytes + queued_bytes_) * seconds_per_byte_;
}

void DiskTier::check_invariants() const {
  tree_.check_invariants();
  uint64_t pages = 0, bytes = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    CHECK(group.free.size() + group.uses.size() == group.slots.size());
    for (uint32_t slot : group.uses) {
      const PrefixIndex::Node& node = tree_.node(group.slots[slot].node);
      CHECK(node.alive && node.pages[group.slots[slot].node_page] == PageId{slot});
      CHECK(node_pages_[group.slots[slot].node_page].group == g);
    }
    for (uint32_t slot : group.free) CHECK(group.slots[slot].node == PrefixIndex::kRoot);
    pages += group.uses.size();
    bytes += group.uses.size() * group.page_bytes;
  }
  CHECK(pages == stats_.pages && bytes == stats_.used_bytes && bytes <= options_.bytes);
}

// ---- the worker --------------------------------------------------------------------------------------------------

void DiskTier::push(Job job) {
  const size_t bytes = groups_[job.group].page_bytes;
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
    const size_t bytes = groups_[job.group].page_bytes;
    lock.lock();
    queued_bytes_ -= bytes;
    if (job.kind == Kind::write) queued_write_bytes_ -= bytes;
    done_.splice(done_.end(), now);
    done_something_.notify_all();
  }
}

void DiskTier::write(Job& job) {
  Group& group = groups_[job.group];
  const uint64_t at = group.begin + uint64_t(job.slot) * group.page_bytes;
  uint64_t& checksum = group.checksums[job.slot];
  checksum = 0;
  size_t done = 0;
  while (done < group.page_bytes) {
    const ssize_t put = io_.write(file_, job.bytes.get() + done, group.page_bytes - done, off_t(at + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    done += size_t(put);
  }
  job.good = done == group.page_bytes;
  if (job.good) checksum = checksum_of(job.bytes.get(), group.page_bytes, job.written_by);
  job.bytes.reset();
}

void DiskTier::read(Job& job) {
  Group& group = groups_[job.group];
  const uint64_t at = group.begin + uint64_t(job.slot) * group.page_bytes;
  const uint64_t checksum = group.checksums[job.slot];
  if (checksum == 0) return;  // its write has failed
  job.bytes.reset(new (std::nothrow) std::byte[group.page_bytes]);
  if (!job.bytes) return;
  size_t done = 0;
  while (done < group.page_bytes) {
    const ssize_t got = io_.read(file_, job.bytes.get() + done, group.page_bytes - done, off_t(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += size_t(got);
  }
  job.good =
      done == group.page_bytes && checksum_of(job.bytes.get(), group.page_bytes, job.written_by) == checksum;
}

}  // namespace quire
