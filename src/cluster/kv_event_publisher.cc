#include "cluster/kv_event_publisher.h"

#include <algorithm>
#include <exception>

#include "cluster/block_messages.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

// How often it looks. The engine's thread wakes nobody: that would cost it more than all the rest.
constexpr milliseconds kLook{10}, kLookWhileReplaying{1};
constexpr size_t kMostEvents = 1024;  // of a batch
constexpr size_t kMostReplays = 64;   // at a time
constexpr int kReplayedInARow = 64;   // batches, before it looks what is new
constexpr int kMostWaiting = 10'000;  // batches for a reader who is slow; then he misses some

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

KvEventPublisher::KvEventPublisher(const KvEventOptions& options, uint32_t block_tokens)
    : options_(options),
      feed_(block_tokens, options.queued_events),
      socket_(context_, ZmqSocket::Kind::publish, {.most_waiting = kMostWaiting}),
      log_(options.kept_batches, options.kept_bytes) {
  socket_.bind(options.address);
  address_ = socket_.address();
  if (!options.replay_address.empty()) {
    replay_socket_ = std::make_unique<ZmqSocket>(context_, ZmqSocket::Kind::router, ZmqSocket::Options{});
    replay_socket_->bind(options.replay_address);
    replay_address_ = replay_socket_->address();
  }
  thread_ = std::thread([this] { run(); });
}

KvEventPublisher::~KvEventPublisher() {
  stopping_ = true;
  thread_.join();
}

KvEventPublisher::Stats KvEventPublisher::stats() const {
  return {.batches = batches_, .events = events_, .dropped = feed_.dropped()};
}

// ---- the thread --------------------------------------------------------------------------------------------------

void KvEventPublisher::run() {
  while (!stopping_) {
    try {
      publish();
      look(replays_.empty() ? kLook : kLookWhileReplaying);
    } catch (const std::exception&) {  // want of memory, or a socket that failed once
      lost_ = true;
      std::this_thread::sleep_for(kLook);
    }
  }
  try {
    publish();
    const BlockEvent all_gone;
    send({&all_gone, 1});
  } catch (const std::exception&) {  // nobody can be told
  }
}

void KvEventPublisher::look(milliseconds most) {
  if (!replay_socket_) return std::this_thread::sleep_for(most);
  if (replay_socket_->wait(most)) take_requests();
  go_on_with_replays();
}

// ---- what is new -------------------------------------------------------------------------------------------------

std::vector<BlockEvent> KvEventPublisher::take_events() {
  std::vector<BlockEvent> events;
  if (lost_) events.push_back({});
  // Whatever fails from here on, what was taken and not sent is lost.
  lost_ = true;
  while (events.size() < kMostEvents) {
    std::optional<BlockEvent> event = feed_.take();
    if (!event) break;
    events.push_back(*std::move(event));
  }
  return events;
}

void KvEventPublisher::publish() {
  while (true) {
    const std::vector<BlockEvent> events = take_events();
    if (!events.empty()) send(events);
    lost_ = false;
    if (events.size() < kMostEvents) return;
  }
}

void KvEventPublisher::send(std::span<const BlockEvent> events) {
  log_.add(batch_message(events, feed_.block_tokens(), seconds_now()));
  const std::string number = number_bytes(log_.end() - 1);
  const std::string_view frames[] = {options_.topic, number, log_.at(log_.end() - 1)};
  socket_.send(frames);
  ++batches_;
  events_ += events.size();
}

// ---- what was missed ---------------------------------------------------------------------------------------------

// [reader, "", number of the first batch]
void KvEventPublisher::take_requests() {
  for (size_t i = 0; i < kMostReplays; ++i) {
    const std::optional<ZmqMessage> request = replay_socket_->receive();
    if (!request) return;
    if (request->size() != 3 || !request->at(1).empty()) continue;
    const std::optional<uint64_t> first = number_from(request->at(2));
    if (!first) continue;
    std::erase_if(replays_, [&](const Replay& replay) { return replay.reader == request->at(0); });
    if (replays_.size() == kMostReplays) replays_.pop_front();
    replays_.push_back({request->at(0), *first});
  }
}

void KvEventPublisher::go_on_with_replays() {
  std::erase_if(replays_, [&](Replay& replay) { return !go_on_with(replay); });
}

bool KvEventPublisher::go_on_with(Replay& replay) {
  for (int i = 0; i < kReplayedInARow; ++i) {
    replay.next = std::max(replay.next, log_.begin());
    const bool at_end = replay.next >= log_.end();
    const std::string number = number_bytes(at_end ? kEndOfReplay : replay.next);
    const std::string_view batch = at_end ? std::string_view() : log_.at(replay.next);
    const std::string_view frames[] = {replay.reader, {}, number, batch};
    const ZmqSocket::Sent sent = replay_socket_->send(frames);
    if (sent == ZmqSocket::Sent::full) return true;
    if (sent == ZmqSocket::Sent::gone || at_end) return false;
    ++replay.next;
  }
  return true;
}

}  // namespace quire
