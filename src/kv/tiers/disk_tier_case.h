#pragma once

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "kv/tiers/disk_tier.h"

// A folder for a disk tier, and pages to store there.

namespace quire {

class DiskTierTest : public testing::Test {
 protected:
  using Tokens = std::vector<TokenId>;
  static constexpr uint32_t kTokens = 4;

  DiskTierTest() { std::filesystem::create_directories(folder_); }
  ~DiskTierTest() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "the file has no name";
    std::filesystem::remove_all(folder_);
  }

  static KvLayout layout(uint32_t window = 0) {
    const KvLayerShape full{.kv_heads = 2, .key_dim = 4, .value_dim = 2};
    KvLayerShape other = full;
    other.window = window;
    other.kv_heads = window > 0 ? 1 : 2;
    return make_kv_layout(std::vector{full, other}, kTokens);
  }
  size_t page_bytes(uint32_t group = 0) const { return layout_.groups[group].page_bytes; }
  std::unique_ptr<DiskTier> make(size_t pages = 16, DiskIo io = {}, size_t queue_bytes = 1 << 20) {
    size_t bytes = 0;
    for (const KvGroupLayout& group : layout_.groups) bytes += group.page_bytes;
    return std::make_unique<DiskTier>(
        layout_, DiskTierOptions{.folder = folder_, .bytes = pages * bytes, .queue_bytes = queue_bytes},
        std::move(io));
  }
  static Tokens counted(uint32_t n, uint32_t from = 0) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), from);
    return tokens;
  }
  std::vector<std::byte> random_page(uint32_t group = 0) {
    std::vector<std::byte> page(page_bytes(group));
    for (std::byte& b : page) b = std::byte(random_());
    return page;
  }
  static DiskTier::Stored store(DiskTier& tier, const Tokens& prefix, const std::vector<std::byte>& page,
                                uint32_t group = 0) {
    const DiskTier::Place place = tier.store(group, prefix);
    if (place.stored != DiskTier::Stored::queued) return place.stored;
    std::memcpy(place.bytes, page.data(), page.size());
    tier.filled(place.ticket);
    return place.stored;
  }
  static void wait_until_done(DiskTier& tier) {
    while (tier.stats().queued_bytes > 0) tier.wait(std::chrono::milliseconds(10));
  }
  // Nothing: it is not there, or could not be read.
  std::optional<std::vector<std::byte>> load(DiskTier& tier, const SaltedTokens& prefix, uint32_t group = 0) {
    const auto ticket = tier.read(group, prefix);
    if (!ticket) return std::nullopt;
    return load_next(tier, *ticket, group);
  }
  std::optional<std::vector<std::byte>> load_next(DiskTier& tier, DiskTier::Ticket ticket,
                                                  uint32_t group = 0) {
    while (true) {
      for (DiskTier::Arrival& arrival : tier.take_arrivals()) {
        EXPECT_EQ(arrival.ticket, ticket);
        if (!arrival.bytes) return std::nullopt;
        return std::vector(arrival.bytes.get(), arrival.bytes.get() + page_bytes(group));
      }
      tier.wait(std::chrono::milliseconds(10));
    }
  }

  KvLayout layout_ = layout();
  std::mt19937 random_{5};
  std::string folder_ = testing::TempDir() + "/quire_disk_tier_" + std::to_string(::getpid());
};
}  // namespace quire
