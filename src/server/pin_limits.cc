#include "server/pin_limits.h"

#include <algorithm>

#include "openai/api_error.h"

namespace quire {

std::optional<double> PinLimits::seconds(std::optional<double> asked, size_t keys) const {
  const std::optional<double> most = most_seconds ? most_seconds
                                     : keys > 0   ? std::optional(kMostSeconds)
                                                  : std::nullopt;
  if (asked && most && *asked > *most)
    bad_field("ttl_seconds", "'ttl_seconds' is {}, but a pin may last {} at most (--max-pin-seconds)", *asked,
              *most);
  if (asked) return asked;
  return most ? std::optional(std::min(*most, kUsualSeconds)) : std::nullopt;
}

std::optional<uint64_t> PinLimits::tokens_of_each(const KvCache& kv, size_t keys) const {
  if (tokens || keys == 0) return tokens;
  uint64_t room = UINT64_MAX;
  for (uint32_t g = 0; g < kv.layout().groups.size(); ++g)
    if (!kv.layout().groups[g].is_state)
      room = std::min<uint64_t>(room, uint64_t(kv.group_stats(g).pages) * kv.layout().groups[g].page_tokens);
  return room / 2 / keys;
}

PinOutcome pin_within(Engine& engine, const SaltedTokens& prompt, const PinTerms& terms, uint32_t most_pins,
                      std::optional<uint64_t> most_tokens) {
  engine.end_overdue_pins();
  uint64_t pins = 0, tokens = 0;
  for (const auto& [id, pinned] : engine.pins()) {
    if (pinned.terms.client != terms.client) continue;
    ++pins;
    tokens += pinned.tokens();
  }
  if (pins >= most_pins)
    return {{}, fmt::format("{} prefixes are pinned already, as many as may be: give one up first", pins)};
  const Engine::Pin pin = engine.pin(prompt, terms);
  const bool too_many = most_tokens && tokens + pin.tokens > *most_tokens;
  if (pin.tokens == 0 || too_many) engine.unpin(pin.id);
  if (!too_many) return {pin};
  return {
      {},
      fmt::format("{} tokens are pinned already, and {} more would be over the {} that may be: give some up "
                  "first",
                  tokens, pin.tokens, *most_tokens)};
}

}  // namespace quire
