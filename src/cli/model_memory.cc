// How the memory that there is becomes a context and pages.
#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/model_options.h"
#include "cli/tell.h"
#include "engine/memory_plan.h"
#include "kv/kv_cache.h"
#include "model/placement.h"
#include "ranks/open_ranks.h"

namespace quire::cli {
namespace {

constexpr Side kSides[] = {Side::device, Side::host};

// What each side has left for pages. Of one that has no layers nothing is asked.
struct Spare {
  size_t bytes[2] = {SIZE_MAX, SIZE_MAX};
  size_t of(Side side) const { return bytes[size_t(side)]; }
};

// The most bytes of all pages with which no side gets more than it has.
size_t most_kv_bytes(const KvLayout& layout, const Spare& spare, size_t wanted,
                     const EngineOptions& options) {
  const uint32_t chunk = std::min(options.prefill_chunk, options.context);
  const auto fits = [&](size_t bytes) {
    const std::vector<uint32_t> pages = pages_within(layout, bytes, chunk, options.max_sequences);
    return std::ranges::all_of(kSides,
                               [&](Side side) { return kv_bytes_on(side, layout, pages) <= spare.of(side); });
  };
  if (fits(wanted)) return wanted;
  size_t most = 0, too_many = wanted;
  while (most + (size_t(1) << 20) < too_many) {
    const size_t middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

}  // namespace

void ModelOptions::fit_memory(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                              EngineOptions& options) const {
  const size_t told = parse_size(memory), limit = told > grammar_bytes ? told - grammar_bytes : 0;
  const uint32_t asked = options.context;
  const auto plan = [&] { return plan_memory(file, spec, options, backend); };
  while (!context && options.context > kPageTokens && plan().total() > limit) options.context -= kPageTokens;
  if (const MemoryPlan least = plan(); least.total() > limit) {
    throw Error(
        "--memory {} is too little: {} of weights, {} of KV cache for {} tokens and {} of scratch are {}",
        memory, human_bytes(least.weights), human_bytes(least.kv), options.context,
        human_bytes(least.scratch), human_bytes(least.total()));
  }
  if (options.context < asked)
    tell(fmt::format("context limited to {} tokens by --memory {}", options.context, memory));
}

void ModelOptions::share_memory(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                                EngineOptions& options) const {
  options.max_sequences = max_sequences;
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats));
  const auto pages_of = [&](uint32_t sequences) {
    std::vector<uint32_t> pages =
        pages_for(layout, options.context, std::min(prefill_chunk, options.context), sequences);
    if (layout.has_states() && sequences > 1) pages[*layout.states] += kStatesKept;
    return pages;
  };
  options.kv_bytes = kv_bytes(layout, pages_of(1));
  Spare spare;
  size_t beside = 0;  // on the device
  for (const Side side : kSides) {
    if (side == Side::host && !is_split(spec)) continue;
    const MemoryPlan rest = plan_memory(file, spec, options, backend, side);
    const Backend& own = backend.side(side);
    if (side == Side::device) beside = rest.weights + rest.scratch;
    // Of what is left beside the weights: others live in a host's memory too, and few in a GPU's.
    const double spared = own.traits().memory == MemoryKind::host ? 0.8 : 0.94;
    const bool is_told = side == Side::device && !memory.empty();
    // Ranks on one machine have its memory together.
    size_t given = is_told ? parse_size(memory) : own.available_memory() / (ranks ? ranks_here() : 1);
    // What answers keep to is in the host's memory, beside pages that are there too.
    if (own.traits().memory == MemoryKind::host && given > 0)
      given = given > grammar_bytes ? given - grammar_bytes : 1;
    size_t& left = spare.bytes[size_t(side)];
    left = given > rest.weights + rest.scratch ? given - rest.weights - rest.scratch : 0;
    if (!is_told)
      left = given == 0 ? kv_bytes_on(side, layout, pages_of(max_sequences)) : size_t(spared * double(left));
    if (!kv_memory.empty()) left = std::min(is_told ? left : SIZE_MAX, parse_size(kv_memory));
  }
  const auto one_fits = [&] {
    return std::ranges::all_of(
        kSides, [&](Side side) { return kv_bytes_on(side, layout, pages_of(1)) <= spare.of(side); });
  };
  const uint32_t asked = options.context;
  while (!context && options.context > kPageTokens && !one_fits()) options.context -= kPageTokens;
  if (!one_fits()) {
    const bool on_device = backend.traits().memory != MemoryKind::host;
    throw Error("there are {} for the KV cache beside {} of weights and scratch, but {} tokens need {}{}",
                human_bytes(std::min(spare.of(Side::device), spare.of(Side::host))), human_bytes(beside),
                options.context, human_bytes(kv_bytes(layout, pages_of(1))),
                on_device ? "; " + told_free(backend) : "");
  }
  if (options.context < asked)
    tell(fmt::format("context limited to {} tokens by the memory there is", options.context));
  // States that are asked for come out of what there is, whatever the sequences need.
  const uint32_t sequences = layout.has_states() ? std::max(max_sequences, 2u) : max_sequences;
  size_t wanted = kv_bytes(layout, pages_of(sequences)) + options.state_bytes;
  if (!kv_memory.empty()) wanted = std::min(wanted, parse_size(kv_memory));
  options.kv_bytes = is_split(spec) ? most_kv_bytes(layout, spare, wanted, options)
                                    : std::min(spare.of(Side::device), wanted);
}

std::string ModelOptions::told_free(const Backend& backend) {
  const size_t free = backend.available_memory(), total = backend.total_memory();
  constexpr size_t kNoticed = size_t(1) << 30;  // a driver has some of a GPU's for itself
  std::string told =
      fmt::format("{} has {} free of {}", backend.traits().device, human_bytes(free), human_bytes(total));
  if (total > free + kNoticed)
    told += fmt::format(
        "; other programs have {} (nvidia-smi lists them; a server takes all it finds unless --kv-memory "
        "says less)",
        human_bytes(total - free));
  return told;
}

void ModelOptions::tell_plan(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                             const EngineOptions& options) {
  const BackendTraits traits = backend.side(Side::device).traits();
  const MemoryPlan plan = plan_memory(file, spec, options, backend);
  const MemoryPlan host =
      is_split(spec) ? plan_memory(file, spec, options, backend, Side::host) : MemoryPlan{};
  const KvRoom room = kv_room(spec, options.kv_formats, options.context, plan.kv + host.kv);
  tell(fmt::format("{} ({}), {} free: weights {}, KV cache {} for {} tokens, scratch {}", traits.device,
                   traits.description, human_bytes(backend.available_memory()), human_bytes(plan.weights),
                   human_bytes(plan.kv), room.tokens, human_bytes(plan.scratch)));
  if (!is_split(spec)) return;
  tell(fmt::format("cpu, {} free: weights {}, KV cache {} of the same tokens, scratch {}",
                   human_bytes(backend.side(Side::host).available_memory()), human_bytes(host.weights),
                   human_bytes(host.kv), human_bytes(host.scratch)));
}

}  // namespace quire::cli
