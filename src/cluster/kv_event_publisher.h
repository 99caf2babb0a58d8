#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cluster/batch_log.h"
#include "cluster/block_feed.h"
#include "cluster/zmq.h"

namespace quire {

struct KvEventOptions {
  std::string address;         // where batches are published: tcp://HOST:PORT or ipc://PATH
  std::string replay_address;  // where those who missed some may ask; empty: nowhere
  std::string topic;
  // For tests: what is kept and what waits.
  size_t queued_events = size_t(1) << 15;
  size_t kept_batches = 10'000, kept_bytes = size_t(64) << 20;
};

// Tells routers which blocks of this server's cache are where. A thread of its own takes what the engine's thread says and publishes
// it in numbered batches; whoever missed some may ask for the last of them again. The first batch says that nothing is there,
// as does one after events were lost, and the last.
class KvEventPublisher {
 public:
  // Throws Error if an address is wrong or taken, or ZeroMQ is not installed. `block_tokens`: of the cache's nodes.
  KvEventPublisher(const KvEventOptions& options, uint32_t block_tokens);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // For the engine, which must end first.
  BlockListener& listener() { return feed_; }

  // Any thread.
  const std::string& address() const { return address_; }  // with the ports that were found
  const std::string& replay_address() const { return replay_address_; }
  const std::string& topic() const { return options_.topic; }
  struct Stats {
    uint64_t batches = 0;  // sent
    uint64_t events = 0;   // in them
    uint64_t dropped = 0;  // events that found no room on their way
  };
  Stats stats() const;

 private:
  struct Replay {
    std::string reader;
    uint64_t next = 0;
  };

  void run();
  void look(std::chrono::milliseconds most);
  void publish();
  std::vector<BlockEvent> take_events();
  void send(std::span<const BlockEvent> events);
  void take_requests();
  void go_on_with_replays();
  // False: there is no more to send, or nobody to send it to.
  bool go_on_with(Replay& replay);

  KvEventOptions options_;
  BlockFeed feed_;
  // The thread's.
  ZmqContext context_;
  ZmqSocket socket_;
  std::unique_ptr<ZmqSocket> replay_socket_;  // null: nobody may ask
  std::string address_, replay_address_;
  BatchLog log_;
  std::deque<Replay> replays_;
  bool lost_ = true;  // what readers know may be wrong

  std::atomic<uint64_t> batches_ = 0, events_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace quire
