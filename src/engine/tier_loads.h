#pragma once

#include <memory>
#include <utility>

#include "engine/disk_loads.h"
#include "engine/host_loads.h"
#include "engine/remote_loads.h"

namespace quire {

// Who waits for pages of which tier: one asks here, whatever tiers there are. A sequence waits for one at a time, the fastest first.
// Engine thread only.
class TierLoads {
 public:
  void add(std::unique_ptr<HostLoads> loads) { host_ = std::move(loads); }
  void add(std::unique_ptr<DiskLoads> loads) { disk_ = std::move(loads); }
  void add(std::unique_ptr<RemoteLoads> loads) { remote_ = std::move(loads); }

  // As each tier's: whether the sequence waits for one of them.
  bool begin(Sequence& sequence, double compute_ms) {
    const auto waits_for = [&](auto& loads) { return loads && loads->begin(sequence, compute_ms); };
    return waits_for(host_) || waits_for(disk_) || waits_for(remote_);
  }
  void forget(const Sequence& sequence) {
    each([&](auto& loads) { loads.forget(sequence); });
  }
  void forget_all() {
    each([](auto& loads) { loads.forget_all(); });
  }
  void advance() {
    each([](auto& loads) { loads.advance(); });
  }
  // The host's are asked for after a step is planned; the others ask for themselves.
  void ask_for_more() {
    if (host_) host_->ask_for_more();
  }
  bool any() const { return (host_ && host_->any()) || any_from_files(); }
  // From the disk or a store: threads of their own bring them.
  bool any_from_files() const { return (disk_ && disk_->any()) || (remote_ && remote_->any()); }
  // Nothing else is to be done: waits a little for one of these.
  void wait_for_files() {
    if (disk_ && disk_->any()) return disk_->wait();
    if (remote_ && remote_->any()) remote_->wait();
  }

 private:
  void each(const auto& what) {
    if (host_) what(*host_);
    if (disk_) what(*disk_);
    if (remote_) what(*remote_);
  }

  std::unique_ptr<HostLoads> host_;  // null: there is no such tier
  std::unique_ptr<DiskLoads> disk_;
  std::unique_ptr<RemoteLoads> remote_;
};

}  // namespace quire
