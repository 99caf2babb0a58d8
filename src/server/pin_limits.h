#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace quire {

// What one client may keep pinned: an API key, or without keys all together.
struct PinLimits {
  uint32_t pins = 64;
  std::optional<uint64_t> tokens =
      {};  // nothing: with keys an equal part of half the pages; without, no limit
  std::optional<double> most_seconds = {};  // nothing: with keys a day; without, no limit

  static constexpr double kUsualSeconds = 3600, kMostSeconds = 86'400;

  // How long a pin lasts; nothing: until it is unpinned. Throws ApiError if more is asked for than there is.
  std::optional<double> seconds(std::optional<double> asked, size_t keys) const;
  // Nothing: as many as there are.
  std::optional<uint64_t> tokens_of_each(const KvCache& kv, size_t keys) const;
};

// A pin, or why there is none. Engine thread only.
struct PinOutcome {
  Engine::Pin pin;
  std::string refused = {};  // the limit that it would have gone over
};
PinOutcome pin_within(Engine& engine, const SaltedTokens& prompt, const PinTerms& terms, uint32_t most_pins,
                      std::optional<uint64_t> most_tokens);

}  // namespace quire
