#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace quire {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;  // one past the last
  bool operator==(const ByteRange&) const = default;
};

// What a chat template rendered. The bytes in `plain` came from a message and not from the template: special
// tokens spelled there are plain text, so that a user cannot forge a turn. Ranges are sorted and do not
// touch.
struct MarkedText {
  std::string text;
  std::vector<ByteRange> plain;
};

}  // namespace quire
