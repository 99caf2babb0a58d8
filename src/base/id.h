#pragma once

#include <compare>
#include <cstdint>

namespace quire {

// Ids of different things cannot be mixed up.
template <class Tag>
struct Id {
  uint32_t value = 0;
  auto operator<=>(const Id&) const = default;
};

using TokenId = uint32_t;  // a plain number: it is what files, templates and users hold

}  // namespace quire
