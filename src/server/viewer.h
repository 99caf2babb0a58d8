#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace quire {

// Who looks at the server's state. Without API keys everybody sees everything; with them a client sees what is its own,
// and of the rest how much there is.
struct Viewer {
  std::optional<std::string> client = {};  // nothing: there are no keys
  uint64_t salt_key = 0;  // of the pages that are its own although nobody holds them; 0: keys share them

  bool sees_all() const { return !client.has_value(); }
  bool sees(const std::string& owner) const { return sees_all() || *client == owner; }
};

}  // namespace quire
