#include "engine/cache_view.h"

#include <algorithm>

namespace quire {
namespace {

// Adds a holder with its pages, as far as there is room for them in the view.
class Holders {
 public:
  Holders(CacheView& view, const KvLayout& layout) : view_(view), layout_(layout) {}

  void add(SequenceId id, bool pin, const std::string& client, const PageTable& table, uint32_t rows) {
    size_t pages = 0;
    for (uint32_t g = 0; g < table.groups(); ++g) pages += table.pages(g).size();
    if (pages > left_) return;
    left_ -= pages;
    CacheView::Holder& holder = view_.holders.emplace_back();
    holder.id = id;
    holder.pin = pin;
    holder.client = client;
    holder.rows = rows;
    holder.pages.resize(table.groups());
    for (uint32_t g = 0; g < table.groups(); ++g) {
      holder.pages[g].reserve(table.pages(g).size());
      for (const auto& page : table.pages(g))
        holder.pages[g].push_back(page ? page->id().value : CacheView::kNoPage);
      if (!layout_.groups[g].is_state) continue;
      for (const PageTable::State& state : table.states()) holder.pages[g].push_back(state.page.id().value);
    }
  }

 private:
  CacheView& view_;
  const KvLayout& layout_;
  size_t left_ = CacheView::kMostHeld;
};

CacheView::Group view_group(const Engine& engine, uint32_t g) {
  const KvGroupLayout& layout = engine.kv().layout().groups[g];
  CacheView::Group group;
  group.window = layout.is_state ? 0 : layout.window;
  group.is_state = layout.is_state;
  group.page_tokens = layout.page_tokens;
  group.layers = layout.layers.size();
  group.page_bytes = layout.page_bytes;
  group.stats = engine.kv().group_stats(g);
  group.in_host = engine.host() == nullptr ? 0 : engine.host()->pages_of(g);
  group.on_disk = engine.disk() == nullptr ? 0 : engine.disk()->pages_of(g);
  group.pages = engine.kv().pages_in_use(g, CacheView::kMostPages);
  return group;
}

}  // namespace

EngineFigures figures_of(const Engine& engine) {
  EngineFigures figures;
  const Engine::Load load = engine.load();
  figures.running = load.running;
  figures.waiting = load.waiting;
  figures.preemptions = load.preemptions;
  figures.steps = engine.steps().total();
  figures.page_tokens = engine.kv().node_tokens();
  for (uint32_t g = 0; g < engine.kv().layout().groups.size(); ++g) {
    const KvCache::GroupStats stats = engine.kv().group_stats(g);
    figures.pages += stats.pages;
    figures.held_pages += stats.held;
    figures.cached_pages += stats.cached;
  }
  figures.evicted_pages = engine.kv().events().count(KvEventKind::evicted);
  figures.restored_pages = engine.kv().events().count(KvEventKind::restored);
  figures.unused_share = engine.unused_share();
  if (engine.host() != nullptr) figures.host = engine.host()->stats();
  if (engine.disk() != nullptr) figures.disk = engine.disk()->stats();
  if (engine.remote() != nullptr) figures.remote = engine.remote()->stats();
  return figures;
}

CacheView view_cache(const Engine& engine, uint64_t since) {
  const KvCache& kv = engine.kv();
  CacheView view;
  view.stats = kv.stats();
  view.page_tokens = kv.node_tokens();
  view.bytes_per_token = kv.layout().bytes_per_token();
  view.unused_share = engine.unused_share();
  for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) view.groups.push_back(view_group(engine, g));
  Holders holders(view, kv.layout());
  for (const SequenceView& sequence : engine.running())
    holders.add(sequence.id(), false, sequence.client(), sequence.table(), sequence.computed());
  for (const auto& [id, pin] : engine.pins()) {
    holders.add(id, true, pin.terms.client, pin.table, pin.tokens());
    CacheView::Pin& told = view.pins.emplace_back();
    told.id = id;
    told.tokens = pin.tokens();
    told.client = pin.terms.client;
    if (pin.terms.until) told.seconds_left = milliseconds_between(engine.now(), *pin.terms.until) / 1000;
  }
  view.documents = kv.documents();
  if (engine.host() != nullptr) view.host = engine.host()->stats();
  view.device = engine.device_memory();
  if (engine.disk() != nullptr) view.disk = engine.disk()->stats();
  if (engine.remote() != nullptr) {
    view.remote = engine.remote()->stats();
    view.remote_place = engine.remote()->place();
  }
  view.events_total = kv.events().total();
  for (size_t kind = 0; kind < kKvEventKinds; ++kind)
    view.event_counts[kind] = kv.events().count(KvEventKind(kind));
  view.first_event = std::max(since, view.events_total - std::min(view.events_total, CacheView::kMostEvents));
  view.events = kv.events().since(view.first_event);
  return view;
}

LookupView view_lookup(const Engine& engine, const SaltedTokens& prompt,
                       const std::optional<PruningOptions>& pruning) {
  LookupView view;
  view.match = engine.lookup(prompt);
  view.in_host = engine.kv().lookup_in_host(prompt);
  view.on_disk = engine.kv().lookup_on_disk(prompt);
  if (engine.host() != nullptr) view.host_ms = 1000 * engine.host()->seconds_to_move(view.in_host.bytes);
  view.in_store = engine.kv().lookup_in_store(prompt);
  if (engine.remote() != nullptr)
    view.store_ms = 1000 * engine.remote()->seconds_to_read(view.in_store.bytes);
  if (pruning) view.document = engine.lookup_document(prompt, *pruning);
  const bool begins_after = view.document && view.document->is_cached;
  view.rest = engine.prompt_cost(uint32_t(prompt.tokens.size()),
                                 begins_after ? view.document->key.tokens : view.match.tokens);
  view.steps = engine.steps().last(CacheView::kMostEvents);
  return view;
}

}  // namespace quire
