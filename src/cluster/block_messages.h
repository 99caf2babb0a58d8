#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cluster/block_feed.h"

namespace quire {

// Events of blocks in the bytes that routers read: vLLM's format, msgpack. A batch is [time, [event, ...], 0], events are maps.
// What follows on each other, a block and its child at the same place, or removals from one, is one event.
//
// `block_tokens`: of a block. `seconds`: since 1970. Throws bad_alloc only.
std::string batch_message(std::span<const BlockEvent> events, uint32_t block_tokens, double seconds);

// What a reader calls a place.
std::string_view medium_of(BlockPlace place);

// Numbers of batches as they travel: eight bytes, the highest first.
std::string number_bytes(uint64_t number);
std::optional<uint64_t> number_from(std::string_view bytes);
inline constexpr uint64_t kEndOfReplay = UINT64_MAX;  // -1 to those who read it with a sign

}  // namespace quire
