#include "cluster/block_feed.h"

#include "base/check.h"

namespace quire {

BlockFeed::BlockFeed(uint32_t block_tokens, size_t events)
    : block_tokens_(block_tokens), events_(events), notes_(events), tokens_(events * block_tokens) {
  CHECK(block_tokens > 0 && events >= 2);
}

bool BlockFeed::make_room() noexcept {
  const size_t room = notes_.write_available();
  if (dropping_ && room < events_ / 2) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  dropping_ = false;
  if (room >= 2) return true;
  // The last place is for this.
  notes_.push(Note{});
  dropping_ = true;
  dropped_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void BlockFeed::stored(const StoredBlock& block) noexcept {
  CHECK(block.tokens.size() == block_tokens_);
  if (!make_room()) return;
  // First the tokens: whoever sees the note finds them.
  tokens_.push(block.tokens.data(), block.tokens.size());
  notes_.push(Note{.kind = BlockEvent::Kind::stored,
                   .place = block.place,
                   .has_parent = block.parent.has_value(),
                   .hash = block.hash,
                   .parent = block.parent.value_or(0)});
}

void BlockFeed::removed(uint64_t hash, BlockPlace place) noexcept {
  if (make_room()) notes_.push(Note{.kind = BlockEvent::Kind::removed, .place = place, .hash = hash});
}

void BlockFeed::cleared() noexcept {
  if (make_room()) notes_.push(Note{});
}

std::optional<BlockEvent> BlockFeed::take() {
  if (notes_.read_available() == 0) return std::nullopt;
  const Note note = notes_.front();
  BlockEvent event{.kind = note.kind, .place = note.place, .hash = note.hash};
  if (note.has_parent) event.parent = note.parent;
  if (note.kind == BlockEvent::Kind::stored) {
    event.tokens.resize(block_tokens_);  // before anything is taken: it may throw
    CHECK(tokens_.pop(event.tokens.data(), block_tokens_) == block_tokens_);
  }
  notes_.pop();
  return event;
}

}  // namespace quire
