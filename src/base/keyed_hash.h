#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

using HashSecret = std::array<std::byte, 16>;

// SipHash-2-4: whoever does not know the secret can neither tell the hash of a text nor find one that has a given hash, however
// many other pairs there are to see. Any thread.
uint64_t keyed_hash(const HashSecret& secret, std::span<const std::byte> bytes);

}  // namespace quire
