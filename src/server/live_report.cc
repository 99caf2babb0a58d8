#include "server/live_report.h"

#include <algorithm>
#include <map>
#include <set>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr uint64_t kMostListed = 512;  // steps

// What the viewer's own requests and pins have of a page.
struct PageUse {
  std::set<std::string> requests = {};
  bool pinned = false;
  uint32_t shares = 0;
  uint32_t index = 0;
  uint32_t tokens = 0;  // rows that are computed
};

// By page: who holds it, and what is in it. Pages that the viewer has no part in are left out.
std::map<uint32_t, PageUse> page_uses(const KvLook& look, const Viewer& viewer, uint32_t group) {
  std::map<uint32_t, PageUse> uses;
  const uint32_t page_tokens = look.cache.groups[group].page_tokens;
  for (const CacheView::Holder& holder : look.cache.holders) {
    if (!viewer.sees(holder.client)) continue;
    const RequestEntry* entry = holder.pin ? nullptr : look.names.entry_of(holder.id);
    for (uint32_t i = 0; i < holder.pages[group].size(); ++i) {
      const uint32_t page = holder.pages[group][i];
      if (page == CacheView::kNoPage) continue;
      PageUse& use = uses[page];
      if (entry == nullptr) use.pinned = true;
      if (entry != nullptr) use.requests.insert(entry->id);
      ++use.shares;
      const bool is_state =
          look.cache.groups[group].is_state;  // a page of no position: it is where its holder is
      use.index = is_state ? holder.rows / page_tokens : i;
      use.tokens =
          is_state ? page_tokens
                   : std::max(use.tokens,
                              std::min(page_tokens, holder.rows - std::min(holder.rows, i * page_tokens)));
    }
  }
  return uses;
}

// One that is not the viewer's own: nothing of it but that it is there.
OrderedJson foreign_page(const KvCache::PageState& page) {
  return {{"page", page.page.value},
          {"state", page.shares > 0 ? "held" : "cached"},
          {"shares", page.shares > 0 ? 1 : 0},
          {"requests", OrderedJson::array()},
          {"index", 0},
          {"tokens", 0},
          {"age_ms", 0},
          {"pinned", false},
          {"own", false}};
}

OrderedJson page_map(const KvLook& look, uint32_t group, const ReportFor& report) {
  const Viewer& viewer = report.viewer;
  const std::map<uint32_t, PageUse> uses = page_uses(look, viewer, group);
  OrderedJson map = OrderedJson::array();
  for (const KvCache::PageState& page : look.cache.groups[group].pages) {
    const auto found = uses.find(page.page.value);
    const bool own_salt = viewer.salt_key != 0 && page.salt.key == viewer.salt_key;
    if (found == uses.end() && !own_salt && !viewer.sees_all()) {
      map.push_back(foreign_page(page));
      continue;
    }
    PageUse use{.index = page.index, .tokens = page.tokens};
    if (found != uses.end()) use = found->second;
    map.push_back(
        {{"page", page.page.value},
         {"state", page.shares > 0 ? "held" : "cached"},
         {"shares", viewer.sees_all() ? page.shares : std::max(use.shares, page.shares > 0 ? 1u : 0u)},
         {"requests", use.requests},
         {"index", use.index},
         {"tokens", std::max(use.tokens, page.tokens)},
         {"age_ms", milliseconds_between(page.used, report.now)},
         {"pinned", use.pinned}});
    if (!viewer.sees_all()) map.back()["own"] = true;
  }
  return map;
}

// With keys only what happened to the viewer's own requests is listed; how much happened in all is counted.
OrderedJson events_json(const KvLook& look, const ReportFor& report) {
  OrderedJson counts = OrderedJson::object(), last = OrderedJson::array();
  for (size_t kind = 0; kind < kKvEventKinds; ++kind)
    counts[std::string(name(KvEventKind(kind)))] = look.cache.event_counts[kind];
  uint64_t number = look.cache.first_event;
  for (const KvEvent& event : look.cache.events) {
    const uint64_t n = number++;
    const RequestEntry* entry = look.names.entry_of(event.sequence);
    if (!report.viewer.sees_all() && (entry == nullptr || !report.viewer.sees(entry->client))) continue;
    last.push_back({{"n", n},
                    {"at_ms", look.names.moment(event.time)},
                    {"kind", name(event.kind)},
                    {"group", event.group},
                    {"page", event.page.value},
                    {"index", event.index},
                    {"request", entry == nullptr ? OrderedJson() : OrderedJson(entry->id)}});
  }
  return {{"total", look.cache.events_total}, {"counts", std::move(counts)}, {"last", std::move(last)}};
}

std::string bound_of(const MachineLimits& limits, const StepCost& cost, double ms) {
  const double memory = limits.memory_ms(cost), arithmetic = limits.arithmetic_ms(cost);
  if (ms <= 0 || std::max(memory, arithmetic) < 0.2 * ms) return "neither";
  return memory > arithmetic ? "memory" : "arithmetic";
}

// How many times longer than the machine's limits allow such steps have taken lately: the median of those with about
// so many tokens, or of all.
double slowness(const std::vector<StepRecord>& steps, const MachineLimits& limits, uint32_t tokens) {
  std::vector<double> alike, all;
  for (const StepRecord& step : steps) {
    const double least = limits.least_ms(step.cost);
    if (least <= 0) continue;
    const uint32_t count = step.prompt_tokens + step.stream_tokens;
    all.push_back(step.ms / least);
    if (count <= 3 * tokens && tokens <= 3 * count) alike.push_back(step.ms / least);
  }
  std::vector<double>& chosen = alike.size() >= 3 ? alike : all;
  if (chosen.empty()) return 2;
  const auto middle = chosen.begin() + ptrdiff_t(chosen.size() / 2);
  std::nth_element(chosen.begin(), middle, chosen.end());
  return *middle;
}

OrderedJson host_json(const HostTier::Stats& host) {
  return {{"capacity_bytes", host.capacity_bytes},
          {"used_bytes", host.used_bytes},
          {"pages", host.pages},
          {"stored_pages", host.stored_pages},
          {"loaded_pages", host.loaded_pages},
          {"kept_pages", host.kept_pages},
          {"replaced_pages", host.replaced_pages},
          {"dropped_pages", host.dropped_pages},
          {"move_gb_s", host.bytes_per_s / 1e9}};
}

OrderedJson device_json(const DeviceMemory& device) {
  return {{"total_bytes", device.total},   {"weights_bytes", device.weights},
          {"kv_bytes", device.kv},         {"workspace_bytes", device.workspace},
          {"other_bytes", device.other()}, {"free_bytes", device.free}};
}

OrderedJson disk_json(const DiskTier::Stats& disk) {
  return {{"capacity_bytes", disk.capacity_bytes},
          {"used_bytes", disk.used_bytes},
          {"pages", disk.pages},
          {"written_pages", disk.written_pages},
          {"read_pages", disk.read_pages},
          {"dropped_pages", disk.dropped_pages},
          {"replaced_pages", disk.replaced_pages},
          {"failed_writes", disk.failed_writes},
          {"failed_reads", disk.failed_reads},
          {"read_gb_s", disk.read_bytes_per_s / 1e9}};
}

// Where it is and what it complains of is the operator's alone.
OrderedJson remote_json(const RemoteTier::Stats& remote, const std::string& place, const Viewer& viewer) {
  OrderedJson faults = OrderedJson::object();
  for (size_t fault = 1; fault < kPageFaults; ++fault)
    faults[std::string(name(PageFault(fault)))] = remote.faults[fault];
  const bool sees_all = viewer.sees_all();
  return {{"place", sees_all ? OrderedJson(place) : OrderedJson()},
          {"readable", remote.readable},
          {"writable", remote.writable},
          {"problem", remote.problem.empty() || !sees_all ? OrderedJson() : OrderedJson(remote.problem)},
          {"known_pages", remote.known_pages},
          {"queued_bytes", remote.queued_bytes},
          {"sent_pages", remote.sent_pages},
          {"there_pages", remote.there_pages},
          {"dropped_pages", remote.dropped_pages},
          {"refused_pages", remote.refused_pages},
          {"hit_pages", remote.hit_pages},
          {"missed_pages", remote.missed_pages},
          {"faults", std::move(faults)},
          {"failures", remote.failures},
          {"read_gb_s", remote.read_bytes_per_s / 1e9},
          {"round_trip_ms", remote.round_trip_s * 1000}};
}

}  // namespace

KvLook look_at_kv(const Engine& engine, const RequestBook& book, uint64_t since) {
  return {view_cache(engine, since), book.names()};
}

RequestsLook look_at_requests(const Engine& engine, const RequestBook& book, uint64_t since) {
  RequestsLook look{.book = book.view(engine), .load = engine.load(), .steps = {}};
  look.steps_total = engine.steps().total();
  look.first_step = std::max(since, look.steps_total - std::min(look.steps_total, kMostListed));
  look.steps = engine.steps().since(look.first_step);
  return look;
}

OrderedJson kv_report(const KvLook& look, const ReportFor& report) {
  const CacheView& cache = look.cache;
  OrderedJson groups = OrderedJson::array(), pins = OrderedJson::array();
  for (uint32_t g = 0; g < cache.groups.size(); ++g) {
    const CacheView::Group& group = cache.groups[g];
    groups.push_back({{"window", group.window},
                      {"page_tokens", group.page_tokens},
                      {"layers", group.layers},
                      {"page_bytes", group.page_bytes},
                      {"pages", group.stats.pages},
                      {"held", group.stats.held},
                      {"cached", group.stats.cached},
                      {"free", group.stats.free},
                      {"in_host", group.in_host},
                      {"on_disk", group.on_disk},
                      {"map", page_map(look, g, report)}});
    if (group.is_state) groups.back()["kind"] = "states";
  }
  uint64_t foreign_pins = 0, foreign_tokens = 0;
  for (const CacheView::Pin& pin : cache.pins) {
    if (report.viewer.sees(pin.client)) {
      pins.push_back({{"pin", pin.id.value}, {"tokens", pin.tokens}});
      if (pin.seconds_left) pins.back()["ttl_seconds"] = *pin.seconds_left;
    } else {
      ++foreign_pins;
      foreign_tokens += pin.tokens;
    }
  }
  OrderedJson documents = OrderedJson::array();
  for (const KvCache::DocumentState& document : cache.documents) {
    const bool is_own = report.viewer.salt_key != 0 && document.salt.key == report.viewer.salt_key;
    if (!is_own && !report.viewer.sees_all()) continue;
    documents.push_back({{"name", document.name},
                         {"rows", document.rows},
                         {"pages", document.pages},
                         {"bytes", document.bytes}});
  }
  OrderedJson json = {{"now_ms", look.names.moment(report.now)},
                      {"page_tokens", cache.page_tokens},
                      {"capacity_bytes", cache.stats.capacity_bytes},
                      {"held_bytes", cache.stats.held_bytes},
                      {"cached_bytes", cache.stats.cached_bytes},
                      {"shared_bytes", cache.stats.shared_bytes},
                      {"unused_share", cache.unused_share},
                      {"bytes_per_token", cache.bytes_per_token},
                      {"groups", std::move(groups)},
                      {"pins", std::move(pins)},
                      {"documents", std::move(documents)},
                      {"device", cache.device ? device_json(*cache.device) : OrderedJson()},
                      {"host", cache.host ? host_json(*cache.host) : OrderedJson()},
                      {"disk", cache.disk ? disk_json(*cache.disk) : OrderedJson()},
                      {"remote", cache.remote ? remote_json(*cache.remote, cache.remote_place, report.viewer)
                                              : OrderedJson()},
                      {"events", events_json(look, report)}};
  if (!report.viewer.sees_all()) json["others"] = {{"pins", foreign_pins}, {"pinned_tokens", foreign_tokens}};
  return json;
}

OrderedJson requests_report(const RequestsLook& look, RateMeter& meter, const ReportFor& report) {
  const MachineLimits& limits = meter.limits();
  OrderedJson steps = OrderedJson::array();
  uint64_t number = look.first_step;
  for (const StepRecord& step : look.steps) {
    steps.push_back({{"n", number++},
                     {"at_ms", look.book.moment(step.begin)},
                     {"ms", step.ms},
                     {"runs", step.runs},
                     {"prompt_tokens", step.prompt_tokens},
                     {"stream_tokens", step.stream_tokens},
                     {"draft_tokens", step.draft_tokens},
                     {"gops", step.cost.ops() / 1e9},
                     {"gbytes", step.cost.bytes() / 1e9},
                     {"bound", bound_of(limits, step.cost, step.ms)}});
  }
  const RateMeter::Rates rates = meter.rates(report.now);
  const bool busy = std::max(rates.bandwidth_share, rates.arithmetic_share) >= 0.2;
  const char* bound = !busy                                            ? "neither"
                      : rates.bandwidth_share > rates.arithmetic_share ? "memory"
                                                                       : "arithmetic";
  return {{"now_ms", look.book.moment(report.now)},
          {"running", look.load.running},
          {"waiting", look.load.waiting},
          {"requests", book_json(look.book, report.viewer, report.now)},
          {"steps", {{"total", look.steps_total}, {"last", std::move(steps)}}},
          {"machine",
           {{"read_gb_s", limits.read_gb_s},
            {"int8_gops", limits.int8_gops},
            {"f32_gflops", limits.f32_gflops},
            {"bf16_gflops", limits.bf16_gflops}}},
          {"rates",
           {{"answer_tok_s", rates.answer_tok_s},
            {"prompt_tok_s", rates.prompt_tok_s},
            {"bandwidth_share", rates.bandwidth_share},
            {"arithmetic_share", rates.arithmetic_share},
            {"bound", bound}}}};
}

OrderedJson lookup_report(const LookupView& look, std::span<const TokenId> prompt,
                          const MachineLimits& limits, const Tokenizer& tokenizer) {
  const PrefixMatch& match = look.match;
  const uint32_t tokens = uint32_t(prompt.size());
  const uint32_t computed = tokens - std::min(tokens, match.tokens);
  OrderedJson report = {
      {"prompt_tokens", tokens},
      {"cached_tokens", match.tokens},
      {"computed_tokens", tokens - match.tokens},
      {"host_tokens", look.in_host.tokens - look.in_host.memory_tokens},
      {"host_bytes", look.in_host.bytes},
      {"host_ms", look.host_ms},
      {"disk_tokens", look.on_disk.tokens - look.on_disk.memory_tokens},
      {"remote_tokens", look.in_store.tokens - look.in_store.memory_tokens},
      {"remote_bytes", look.in_store.bytes},
      {"remote_ms", look.store_ms},
      {"why", match.miss.text()},
      {"diverges_at", nullptr},
      {"diverges_text", nullptr},
      {"predicted_ttft_ms", limits.least_ms(look.rest) * slowness(look.steps, limits, computed)}};
  if (look.document) {
    const DocumentKey& key = look.document->key;
    report["document"] = {
        {"name", key.name}, {"tokens", key.tokens}, {"rows", key.rows}, {"cached", look.document->is_cached}};
  }
  if (match.miss.why == PrefixMiss::Why::state) {
    report["state_at"] = match.tokens;
    report["known_tokens"] = match.miss.known;
  } else if (match.miss.why != PrefixMiss::Why::nothing && match.tokens < tokens) {
    const uint32_t at = match.miss.position, first = at - std::min(at, 8u), last = std::min(tokens, at + 8);
    const auto text = [&](uint32_t from, uint32_t to) {
      return replace_broken_utf8(tokenizer.decode(prompt.subspan(from, to - from), Tokenizer::Special::keep));
    };
    report["diverges_at"] = at;
    report["diverges_text"] = text(first, at) + "|" + text(at, last);
  }
  return report;
}

}  // namespace quire
