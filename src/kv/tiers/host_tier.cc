#include "kv/tiers/host_tier.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace quire {
namespace {

constexpr double kFirstBus = 1 / 20e9;               // seconds per byte: a bus of the last ten years
constexpr double kNewestMove = 0.1;                  // of the average: the weight of a rate just measured
constexpr size_t kWorthMeasuring = size_t(1) << 20;  // of fewer bytes the time is that of asking
// Of a group's slots: those that are written to the disk before they are needed, of few slots and of many.
constexpr uint32_t kWrittenShare = 4, kMostWritten = 64;

}  // namespace

HostTier::HostTier(const KvLayout& layout, size_t bytes, const Allocate& allocate)
    : slots_(layout, bytes, BlockPlace::host), seconds_per_byte_(kFirstBus) {
  if (slots_.capacity_bytes() == 0)
    throw Error("{} bytes of host memory are too few: a page of {} tokens needs {}", bytes,
                layout.node_tokens, TierSlots::node_bytes(layout));
  for (uint32_t g = 0; g < slots_.groups(); ++g) {
    Group& group = groups_.emplace_back();
    group.states.resize(slots_.slots(g));
    group.memory = allocate(slots_.slots(g) * slots_.page_bytes(g));
    CHECK(group.memory.size() == slots_.slots(g) * slots_.page_bytes(g));
    CHECK(group.memory.kind() != MemoryKind::device);
  }
  size_t slots = 0;
  for (const Group& group : groups_) slots += group.states.size();
  leaving_.reserve(slots);  // each at most once: whatever fails, a slot can be told to be on its way
}

std::optional<HostTier::Copy> HostTier::find(uint32_t node_page, const SaltedTokens& prefix) const {
  const auto slot = slots_.find(node_page, prefix);
  if (!slot) return std::nullopt;
  return Copy{*slot, groups_[slots_.group_of(node_page)].states[*slot].stamp};
}

void HostTier::forget(uint32_t group, uint32_t slot) {
  SlotState& state = groups_[group].states[slot];
  state.stamp = 0;
  state.on_disk = false;
  slots_.forget(group, slot);
}

bool HostTier::make_free(uint32_t group) {
  if (slots_.has_free(group)) return true;
  for (const uint32_t slot : slots_.uses(group)) {
    if (groups_[group].states[slot].is_busy()) continue;
    forget(group, slot);
    ++stats_.replaced_pages;
    return true;
  }
  return false;
}

HostTier::Place HostTier::store(uint32_t node_page, const SaltedTokens& prefix) {
  const uint32_t g = slots_.group_of(node_page);
  if (const auto known = find(node_page, prefix)) {
    slots_.touch(g, known->slot);
    return {.stored = Stored::already_there, .copy = *known};
  }
  if (!make_free(g)) {
    ++stats_.dropped_pages;
    return {};
  }
  const uint32_t slot = slots_.take(node_page, prefix);
  SlotState& state = groups_[g].states[slot];
  state.stamp = next_stamp_++;
  state.filling = true;
  ++stats_.stored_pages;
  stats_.stored_bytes += slots_.page_bytes(g);
  return {.stored = Stored::to_be_brought,
          .copy = {slot, state.stamp},
          .bytes = groups_[g].memory.data() + size_t(slot) * slots_.page_bytes(g)};
}

void HostTier::filled(uint32_t group, uint32_t slot) {
  CHECK(groups_[group].states[slot].filling);
  groups_[group].states[slot].filling = false;
}

void HostTier::begin_read(uint32_t group, uint32_t slot) {
  SlotState& state = groups_[group].states[slot];
  CHECK(state.stamp != 0);
  ++state.readers;
}

void HostTier::end_read(uint32_t group, uint32_t slot, Read read) {
  CHECK(groups_[group].states[slot].readers > 0);
  --groups_[group].states[slot].readers;
  if (read == Read::given_up) return;
  ++stats_.loaded_pages;
  stats_.loaded_bytes += slots_.page_bytes(group);
}

std::vector<std::vector<HostTier::Copy>> HostTier::copies_along(const SaltedTokens& salted) const {
  std::vector<std::vector<Copy>> copies;
  const PrefixIndex& tree = slots_.tree();
  std::optional<PrefixNodeId> at = tree.root(salted.salt);
  std::span<const TokenId> tokens = salted.tokens;
  for (const uint32_t count = slots_.node_tokens(); at && tokens.size() >= count;) {
    at = tree.child(*at, tokens.first(count));
    if (!at) break;
    std::vector<Copy>& of_node = copies.emplace_back();
    for (uint32_t n = 0; n < slots_.node_pages(); ++n) {
      const auto& slot = tree.node(*at).pages[n];
      of_node.push_back(slot ? Copy{slot->value, groups_[slots_.group_of(n)].states[slot->value].stamp}
                             : Copy{});
    }
    tokens = tokens.subspan(count);
  }
  return copies;
}

// ---- to the disk -------------------------------------------------------------------------------------------------

void HostTier::take_back_written() {
  for (const DiskTier::Ticket ticket : disk_->take_written()) {
    const auto found = std::ranges::find(leaving_, ticket, &Leaving::ticket);
    CHECK(found != leaving_.end());
    SlotState& state = groups_[found->group].states[found->slot];
    state.leaving = false;
    // It was withheld when everything was forgotten.
    if (state.stamp == 0) slots_.give_back(found->group, found->slot);
    leaving_.erase(found);
  }
}

bool HostTier::write(uint32_t g, uint32_t slot) {
  if (!disk_->has_room_for(slots_.page_bytes(g))) return false;
  const std::vector<TokenId> tokens = slots_.tokens_of(g, slot);
  const DiskTier::Place place =
      disk_->store_from(bytes_of(g, slot), slots_.slot(g, slot).node_page, {tokens, slots_.salt_of(g, slot)});
  if (place.stored == DiskTier::Stored::dropped) return false;
  SlotState& state = groups_[g].states[slot];
  state.on_disk = true;
  if (place.stored == DiskTier::Stored::already_there) return true;
  state.leaving = true;
  leaving_.push_back({place.ticket, g, slot});
  return true;
}

void HostTier::write_behind() {
  if (disk_ == nullptr) return;
  take_back_written();
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const uint32_t slots = slots_.slots(g);
    const uint32_t wanted = std::min(slots / kWrittenShare + 1, kMostWritten);
    const uint32_t untaken = slots - uint32_t(slots_.uses(g).size());
    uint32_t ahead = untaken;
    for (auto slot = slots_.uses(g).begin(); slot != slots_.uses(g).end() && ahead < wanted;
         ++slot, ++ahead) {
      const SlotState& state = groups_[g].states[*slot];
      if (!state.on_disk && !state.is_busy() && !write(g, *slot)) return;
    }
  }
}

// ---- figures -----------------------------------------------------------------------------------------------------

HostTier::Stats HostTier::stats() const {
  Stats stats = stats_;
  stats.capacity_bytes = slots_.capacity_bytes();
  stats.used_bytes = slots_.used_bytes();
  stats.pages = slots_.pages();
  stats.bytes_per_s = 1 / seconds_per_byte_;
  return stats;
}

void HostTier::learn_rate(size_t bytes, double seconds) {
  if (bytes < kWorthMeasuring || seconds <= 0) return;
  const double measured = seconds / double(bytes);
  seconds_per_byte_ =
      rate_is_measured_ ? (1 - kNewestMove) * seconds_per_byte_ + kNewestMove * measured : measured;
  rate_is_measured_ = true;
}

void HostTier::forget_all() {
  slots_.forget_all();
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    for (uint32_t slot = 0; slot < groups_[g].states.size(); ++slot) {
      SlotState& state = groups_[g].states[slot];
      const bool leaving = state.leaving;
      state = {};
      if (!leaving) continue;
      // The disk's thread still reads it.
      state.leaving = true;
      slots_.withhold(g, slot);
    }
  }
}

void HostTier::check_invariants() const {
  slots_.check_invariants();
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    for (uint32_t slot = 0; slot < groups_[g].states.size(); ++slot) {
      const SlotState& state = groups_[g].states[slot];
      CHECK((state.stamp != 0) == slots_.is_taken(g, slot));
      CHECK(state.stamp != 0 || (!state.filling && state.readers == 0));
      const bool is_listed = std::ranges::any_of(
          leaving_, [&](const Leaving& one) { return one.group == g && one.slot == slot; });
      CHECK(state.leaving == is_listed);
    }
  }
}

}  // namespace quire
