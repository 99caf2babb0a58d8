#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"
#include "kv/tiers/host_tier.h"

// How pages go to the host's memory, beside what is computed or because their room is needed now, and come back beside it.

namespace quire {
namespace {

constexpr size_t kMostAheadBytes = size_t(256) << 20;  // that are asked for at once: a few ms of a bus

}  // namespace

void KvCache::evict_to(HostTier& tier, std::vector<uint32_t> ahead) {
  CHECK(ahead.size() == pools_.size());
  host_ = &tier;
  ahead_ = std::move(ahead);
}

void KvCache::store_in_host(uint32_t node_page, PageId page, PrefixNodeId id) {
  const uint32_t group = layout_.node_pages[node_page].group;
  const HostCopy known = std::exchange(host_copies_[group][page.value], {});
  if (const HostTier::Copy copy{known.slot, known.stamp}; host_->still_has(group, copy)) {
    host_->left(group, copy);
    if (known.ticket > asides_made_) moves_.after = std::max(moves_.after, known.ticket);
    return;
  }
  const std::vector<TokenId> prefix = tokens_up_to(id);
  const HostTier::Place place = host_->store(node_page, {prefix, index_.node(id).salt});
  if (place.stored == HostTier::Stored::already_there) host_->left(group, place.copy);
  if (place.stored != HostTier::Stored::to_be_brought) return;
  moves_.list.push_back({.group = group,
                         .bytes = page_bytes(group),
                         .from = place_of(group, page),
                         .host_to = place.bytes,
                         .host_slot = place.copy.slot});
  record(KvEventKind::kept, group, page, layout_.page_index(node_page, index_.node(id).depth), {});
}

void KvCache::copy_ahead() {
  if (host_ == nullptr) return;
  for (uint32_t g = 0; g < pools_.size(); ++g) {
    const uint32_t free = pools_[g]->free_pages();
    if (free >= ahead_[g]) continue;
    std::vector<PageId> next = pools_[g]->least_recently_used(ahead_[g] - free);
    next.resize(std::min(next.size(), std::max<size_t>(1, kMostAheadBytes / page_bytes(g))));
    std::ranges::sort(next, {}, &PageId::value);  // those that lie together may find slots that do
    for (const PageId page : next) {
      if (!copy_ahead(g, page)) break;
    }
  }
  host_->write_behind();
}

bool KvCache::copy_ahead(uint32_t group, PageId page) {
  HostCopy& known = host_copies_[group][page.value];
  if (host_->still_has(group, {known.slot, known.stamp})) return true;
  const auto [id, node_page] = published_as_[group][page.value];
  const PrefixIndex::Node& node = index_.node(id);
  if (node.tokens.size() < node_tokens() || node.salt.pruned != 0) return true;
  const std::vector<TokenId> prefix = tokens_up_to(id);
  const HostTier::Place place = host_->store(node_page, {prefix, node.salt});
  if (place.stored == HostTier::Stored::dropped) return false;
  known = {.slot = place.copy.slot, .stamp = place.copy.stamp};
  if (place.stored == HostTier::Stored::already_there) return true;
  known.ticket = ++asides_asked_;
  aside_.list.push_back({.group = group,
                         .bytes = page_bytes(group),
                         .from = place_of(group, page),
                         .host_to = place.bytes,
                         .host_slot = place.copy.slot,
                         .ticket = known.ticket});
  record(KvEventKind::kept, group, page, layout_.page_index(node_page, node.depth), {});
  return true;
}

std::vector<PrefixNodeId> KvCache::add_path(const SaltedTokens& tokens) {
  std::vector<PrefixNodeId> path;
  PrefixNodeId at = index_.root_or_add(tokens.salt);
  for (size_t i = 0; i < tokens.size(); i += node_tokens()) {
    const auto of_node = tokens.tokens.subspan(i, node_tokens());
    const auto known = index_.child(at, of_node);
    path.push_back(at = known ? *known : index_.add(at, of_node));
  }
  return path;
}

uint64_t KvCache::ticket_of_arriving(PrefixNodeId node, uint32_t node_page) const {
  if (index_.node(node).holders == 0) return 0;
  const auto found = std::ranges::find_if(
      arriving_, [&](const Arriving& one) { return one.node == node && one.node_page == node_page; });
  return found == arriving_.end() ? 0 : found->ticket;
}

bool KvCache::make_room_for(const HostCopy& copy, uint32_t group, uint64_t use, std::vector<PageRef>& room) {
  if (!host_->still_has(group, {copy.slot, copy.stamp})) return false;
  host_->begin_read(group, copy.slot);  // first: what has to go may be stored in its place
  std::optional<PageRef> taken = take_unused(group, use);
  if (taken) {
    room.push_back(*std::move(taken));
  } else {
    host_->end_read(group, copy.slot, HostTier::Read::given_up);
  }
  return taken.has_value();
}

KvCache::Bringing KvCache::bring_from_host(const SaltedTokens& tokens, std::span<const TierMatch::Page> pages,
                                           uint64_t use) {
  CHECK(options_.sharing && host_ != nullptr && !pages.empty());
  const SaltedTokens prefix = tokens.first(size_t(pages.back().node + 1) * node_tokens());
  const std::vector<std::vector<HostTier::Copy>> copies = host_->copies_along(prefix);
  const std::vector<PrefixNodeId> path = add_path(prefix);
  index_.hold(path.back());  // and with it all before it, whatever is evicted meanwhile
  std::vector<Wanted> wanted;
  std::vector<std::vector<PageRef>> room(pools_.size());
  Bringing bringing;
  for (const TierMatch::Page& page : pages) {
    const uint32_t g = layout_.node_pages[page.page].group;
    const PrefixNodeId node = path[page.node];
    const uint64_t on_its_way = ticket_of_arriving(node, page.page);
    bringing.ticket = std::max(bringing.ticket, on_its_way);
    if (on_its_way == 0 && !index_.node(node).pages[page.page]) {
      if (page.node >= copies.size()) break;
      const HostTier::Copy& there = copies[page.node][page.page];
      const HostCopy copy{.slot = there.slot, .stamp = there.stamp};
      if (!make_room_for(copy, g, use, room[g])) break;
      wanted.push_back({g, page.page, node, copy});
    }
    ++bringing.pages;
  }
  if (!wanted.empty()) bringing.ticket = send_for(wanted, room, use);
  index_.drop(path.back());
  return bringing;
}

uint64_t KvCache::send_for(std::vector<Wanted>& wanted, std::vector<std::vector<PageRef>>& room,
                           uint64_t use) {
  // Neighbours to neighbours, so that several may be one copy.
  std::ranges::sort(wanted, {}, [](const Wanted& one) { return std::tuple(one.group, one.copy.slot); });
  for (auto& of_group : room) {
    std::ranges::sort(of_group, std::greater(), [](const PageRef& page) { return page.id().value; });
  }
  for (const Wanted& one : wanted) {
    PageRef page = std::move(room[one.group].back());
    room[one.group].pop_back();
    aside_.list.push_back({.group = one.group,
                           .bytes = page_bytes(one.group),
                           .to = place_of(one.group, page.id()),
                           .host_from = host_->bytes_of(one.group, one.copy.slot),
                           .host_slot = one.copy.slot,
                           .ticket = ++asides_asked_});
    index_.hold(one.node);
    bytes_arriving_ += page_bytes(one.group);
    arriving_.push_back({asides_asked_, one.node, one.node_page, std::move(page), one.copy, use});
  }
  return asides_asked_;
}

void KvCache::arrive(uint64_t ticket) {
  CHECK(!arriving_.empty() && arriving_.front().ticket == ticket);
  const Arriving one = std::move(arriving_.front());
  arriving_.pop_front();
  const uint32_t group = layout_.node_pages[one.node_page].group;
  bytes_arriving_ -= page_bytes(group);
  host_->end_read(group, one.copy.slot);
  if (!index_.node(one.node).pages[one.node_page]) {  // or it was computed meanwhile
    publish_as(one.node, one.node_page, one.page.id(), one.use);
    host_copies_[group][one.page.id().value] = one.copy;
    record(KvEventKind::fetched, group, one.page.id(),
           layout_.page_index(one.node_page, index_.node(one.node).depth), {});
  }
  index_.drop(one.node);
}

KvMoves KvCache::take_aside() {
  on_their_way_ += aside_.list.size();
  return std::exchange(aside_, {});
}

void KvCache::moved_aside(const KvMoves& made) {
  CHECK(made.list.size() <= on_their_way_);
  for (const KvMove& move : made.list) {
    CHECK(move.ticket > asides_made_);
    asides_made_ = move.ticket;
    if (move.host_from != nullptr) {
      arrive(move.ticket);
    } else {
      host_->filled(move.group, move.host_slot);
    }
  }
  on_their_way_ -= made.list.size();
}

}  // namespace quire
