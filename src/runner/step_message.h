#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runner/step_input.h"

namespace quire {

// What rank 0's runner tells those of other ranks, in the order in which they do it. All are processes of one program on machines of one
// kind: numbers go as they are in memory.
enum class MessageKind : uint8_t { pages, moves, step };

std::vector<std::byte> pages_message(std::span<const uint32_t> pages_per_group);
// REQUIRES: of bytes alone, from page to page.
std::vector<std::byte> moves_message(const KvMoves& moves);
// Of a step what others need to compute their rows: not how tokens are drawn. REQUIRES: all its tokens are known, and nothing is asked for
// but logits and hidden rows; no states, no unequal heads.
std::vector<std::byte> step_message(const StepInput& step);

MessageKind kind_of(std::span<const std::byte> message);
// Throw Error if the message is cut, or of another kind.
std::vector<uint32_t> read_pages(std::span<const std::byte> message);
KvMoves read_moves(std::span<const std::byte> message);
StepInput read_step(std::span<const std::byte> message);

}  // namespace quire
