#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quire {

// The engine as it is after a step, in numbers.
struct EngineFigures {
  uint32_t running = 0, waiting = 0;  // sequences
  uint64_t preemptions = 0, steps = 0;
  uint64_t pages = 0, held_pages = 0, cached_pages = 0;  // of all groups
  uint32_t page_tokens = 0;                              // the steps in which prefixes are found
  uint64_t evicted_pages = 0, restored_pages = 0;        // ever
  double unused_share = 0;
  std::optional<HostTier::Stats> host;  // nothing: there is none
  std::optional<DiskTier::Stats> disk;
  std::optional<RemoteTier::Stats> remote;
  std::optional<DeviceMemory> device;  // as it was lately, if somebody asked
};
EngineFigures figures_of(const Engine& engine);

// The KV cache at one moment, as plain data that may leave the engine's thread: who holds which page and what happened, not
// yet joined. Of a large cache the first pages and holders.
struct CacheView {
  static constexpr size_t kMostPages = 16384;  // of a group
  static constexpr size_t kMostHeld = 65536;   // pages of all holders together
  static constexpr uint64_t kMostEvents = 512;
  static constexpr uint32_t kNoPage = UINT32_MAX;  // the window has passed it

  // A sequence that runs, or a pin.
  struct Holder {
    SequenceId id;
    bool pin = false;
    std::string client;
    uint32_t rows = 0;                         // that are computed
    std::vector<std::vector<uint32_t>> pages;  // by group, in the order of their positions
  };
  struct Pin {
    SequenceId id;
    uint32_t tokens = 0;
    std::string client;
    std::optional<double> seconds_left;
  };
  struct Group {
    uint32_t window = 0, page_tokens = 0;
    bool is_state = false;  // a page is one state, after the last of its node's tokens
    size_t layers = 0, page_bytes = 0;
    KvCache::GroupStats stats;
    uint64_t in_host = 0, on_disk = 0;
    std::vector<KvCache::PageState> pages;
  };

  KvCache::Stats stats;
  uint32_t page_tokens = 0;
  size_t bytes_per_token = 0;
  double unused_share = 0;
  std::vector<Group> groups;
  std::vector<Holder> holders;
  std::vector<Pin> pins;
  std::vector<KvCache::DocumentState> documents;
  std::optional<HostTier::Stats> host;
  std::optional<DiskTier::Stats> disk;
  std::optional<RemoteTier::Stats> remote;
  std::string remote_place = {};               // where that is
  std::optional<DeviceMemory> device;          // nothing: the memory is the host's
  uint64_t events_total = 0, first_event = 0;  // the number of the first that is told
  std::array<uint64_t, kKvEventKinds> event_counts{};
  std::vector<KvEvent> events;
};
// Events from the `since`th on. It allocates some vectors whatever the number of pages is: engine thread only.
CacheView view_cache(const Engine& engine, uint64_t since);

// How much of a prompt is cached, and what the rest would cost.
struct LookupView {
  PrefixMatch match;
  TierMatch in_host, on_disk, in_store;
  double host_ms = 0;   // to bring what is in the host's memory
  double store_ms = 0;  // to fetch what is known to be in the store
  StepCost rest;
  std::vector<StepRecord> steps;                       // the last
  std::optional<Engine::DocumentMatch> document = {};  // that it begins with, pruned
};
// `pruning`: of the document that the prompt begins with, if it has one.
LookupView view_lookup(const Engine& engine, const SaltedTokens& prompt,
                       const std::optional<PruningOptions>& pruning = {});

}  // namespace quire
