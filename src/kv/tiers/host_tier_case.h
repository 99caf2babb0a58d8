#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kv/host_kv.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/kv_export.h"

namespace quire {

using HostTokens = std::vector<TokenId>;
using HostPage = std::vector<std::byte>;
constexpr uint32_t kTokensOfAPage = 4;

inline HostTokens ascending(uint32_t n, uint32_t from = 0) {
  HostTokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

inline KvLayout layout_with_window(uint32_t window) {
  const KvLayerShape full{.kv_heads = 2, .key_dim = 4, .value_dim = 2};
  KvLayerShape other = full;
  other.window = window;
  other.kv_heads = window > 0 ? 1 : 2;
  return make_kv_layout(std::vector{full, other}, kTokensOfAPage);
}

class HostTierTest : public testing::Test {
 protected:
  std::unique_ptr<HostTier> make(uint32_t pages = 16) const {
    return std::make_unique<HostTier>(layout_, pages * TierSlots::node_bytes(layout_),
                                      [](size_t bytes) { return Buffer(bytes); });
  }
  HostPage random_page(uint32_t group = 0) {
    HostPage page(layout_.groups[group].page_bytes);
    for (std::byte& b : page) b = std::byte(random_());
    return page;
  }
  static HostTier::Stored store(HostTier& tier, const SaltedTokens& prefix, const HostPage& page,
                                uint32_t group = 0) {
    const HostTier::Place place = tier.store(group, prefix);
    if (place.stored != HostTier::Stored::to_be_brought) return place.stored;
    std::memcpy(place.bytes, page.data(), page.size());
    tier.filled(group, place.copy.slot);
    return place.stored;
  }
  // Nothing: it is not there.
  HostPage load(HostTier& tier, const SaltedTokens& prefix, uint32_t group = 0) const {
    const auto copy = tier.find(group, prefix);
    if (!copy) return {};
    tier.begin_read(group, copy->slot);
    const std::byte* bytes = tier.bytes_of(group, copy->slot);
    HostPage page(bytes, bytes + layout_.groups[group].page_bytes);
    tier.end_read(group, copy->slot);
    return page;
  }

  KvLayout layout_ = layout_with_window(6);
  std::mt19937 random_{7};
};

}  // namespace quire
