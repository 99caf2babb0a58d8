#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace quire {

// How much of what looking at requests takes is for each key, so that none can take another's. Without keys everybody shares
// one part.
struct KeyQuota {
  size_t keys = 0;

  // At most `most` for each, and no more than `in_all` together, but for one that everybody has.
  size_t of_each(size_t most, size_t in_all) const {
    return std::max<size_t>(1, std::min(most, in_all / std::max<size_t>(1, keys)));
  }
  // Whose part a client takes from.
  std::string owner(const std::string& client) const { return keys == 0 ? std::string() : client; }
};

}  // namespace quire
