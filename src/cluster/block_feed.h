#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include <boost/lockfree/spsc_queue.hpp>

#include "kv/prefix/block_news.h"

namespace quire {

// What happened to a block, as it is handed on.
struct BlockEvent {
  enum class Kind : uint8_t { stored, removed, cleared };
  Kind kind = Kind::cleared;
  BlockPlace place = BlockPlace::memory;
  uint64_t hash = 0;
  std::optional<uint64_t> parent = {};
  std::vector<TokenId> tokens = {};  // of one that was stored

  bool operator==(const BlockEvent&) const = default;
};

// Hands what happens to blocks from the engine's thread to one other, which takes it when it likes. The engine's thread never
// waits and allocates nothing: where there is no room left, events are dropped and counted, and in their place one is read that
// says that all is cleared: what the reader then knows is too little, never wrong. It has room again when half of it is free.
class BlockFeed : public BlockListener {
 public:
  // Room for so many events, of blocks of so many tokens.
  BlockFeed(uint32_t block_tokens, size_t events);

  // The engine's thread.
  void stored(const StoredBlock& block) noexcept override;
  void removed(uint64_t hash, BlockPlace place) noexcept override;
  void cleared() noexcept override;

  // The other.
  std::optional<BlockEvent> take();

  // Any thread.
  uint32_t block_tokens() const { return block_tokens_; }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Note {
    BlockEvent::Kind kind = BlockEvent::Kind::cleared;
    BlockPlace place = BlockPlace::memory;
    bool has_parent = false;
    uint64_t hash = 0, parent = 0;
  };
  // Whether there is room for one more event, beside the one that says that others were dropped.
  bool make_room() noexcept;

  uint32_t block_tokens_;
  size_t events_;
  boost::lockfree::spsc_queue<Note> notes_;
  boost::lockfree::spsc_queue<TokenId> tokens_;  // of the notes of stored blocks; never full before those are
  bool dropping_ = false;                        // the engine's thread only
  std::atomic<uint64_t> dropped_ = 0;
};

}  // namespace quire
