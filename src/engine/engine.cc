#include "engine/engine.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "backend/device_lost.h"
#include "base/check.h"
#include "base/error.h"
#include "engine/answer_constraint.h"
#include "engine/memory_plan.h"

namespace quire {
namespace {

EngineOptions settled(EngineOptions options, const ModelSpec& spec) {
  if (options.context == 0) options.context = spec.context;
  if (spec.learned_positions && options.context > spec.context) {
    throw Error("a context of {} tokens was asked for, but the model has positions for {} only",
                options.context, spec.context);
  }
  if (options.prefill_chunk == 0) throw Error("a prefill chunk must have at least one token");
  // Without a cache every step computes whole sequences.
  if (!options.kv_cache) options.prefill_chunk = options.context;
  options.prefill_chunk = std::min(options.prefill_chunk, options.context);
  return options;
}

KvCache make_cache(const ModelSpec& spec, const EngineOptions& options, const Drafter* drafter) {
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats), options.page_tokens);
  return KvCache(layout, kv_pages(layout, options),
                 {.sharing = options.sharing && options.kv_cache,
                  .way_back = drafter != nullptr || options.pipeline > 1});
}

}  // namespace

Engine::Engine(const EngineModel& model, const EngineOptions& options, std::unique_ptr<Drafter> drafter)
    : model_(model),
      options_(settled(options, *model.spec)),
      kv_(make_cache(*model.spec, options_, drafter.get())),
      runner_(model.runner_model(), kv_.layout(), kv_.pages_per_group()),
      scheduler_({.max_sequences = options_.max_sequences, .prefill_chunk = options_.prefill_chunk}, kv_,
                 loads_),
      costs_(*model.weights, *model.backend),
      budget_(options_.itl_target_ms,
              options_.kv_cache ? options_.prefill_chunk : options_.context * options_.max_sequences),
      pace_(options_.draft_tokens),
      drafter_(options_.kv_cache ? std::move(drafter) : nullptr),
      positions_end_(why_positions_end(*model.spec, model.backend->traits())) {
  if (options_.kv_cache) {
    const size_t drawn = size_t(options_.max_sequences) * (1 + (drafter_ ? options_.draft_tokens : 0));
    runner_.reserve(std::min(options_.prefill_chunk, options_.context) + drawn,
                    drawn + PromptScore::kMostRows);
  }
  if (options_.sharing && options_.kv_cache) add_tiers();
  if (model.ranks != nullptr && (host_ || disk_ || remote_))
    throw Error("pages of a model that ranks have divided stay in their memory: there is no other tier");
}

Engine::~Engine() {
  runner_.abandon();  // nothing may reach the tiers' memory any more
}

void Engine::add_tiers() {
  if (options_.host_bytes > 0) {
    host_ = std::make_unique<HostTier>(kv_.layout(), options_.host_bytes,
                                       [this](size_t bytes) { return model_.backend->allocate_host(bytes); });
    loads_.add(std::make_unique<HostLoads>(kv_, *host_, options_.host_patience));
    // What a step may need; but where there are few pages most are worth more than their room.
    std::vector<uint32_t> ahead = pages_for(kv_.layout(), options_.prefill_chunk, options_.prefill_chunk, 1);
    for (uint32_t g = 0; g < ahead.size(); ++g)
      ahead[g] = std::min(ahead[g] + options_.max_sequences, kv_.group_stats(g).pages / 4);
    kv_.evict_to(*host_, std::move(ahead));
  }
  if (options_.disk_bytes > 0) add_disk();
  if (options_.remote.store != nullptr) add_remote();
}

void Engine::add_disk() {
  disk_ = std::make_unique<DiskTier>(
      kv_.layout(), DiskTierOptions{.folder = options_.disk_folder, .bytes = options_.disk_bytes},
      options_.disk_io);
  loads_.add(std::make_unique<DiskLoads>(kv_, *disk_, options_.disk_patience));
  kv_.evict_to(*disk_);
  if (host_) host_->write_to(*disk_);
}

void Engine::add_remote() {
  RemoteTierOptions remote = options_.remote;
  KvIdentity identity = options_.kv_identity;
  identity.model_name.clear();  // for people: the same weights may have several
  remote.identity = describe(identity, kv_.layout());
  remote_ = std::make_unique<RemoteTier>(kv_.layout(), std::move(remote));
  loads_.add(std::make_unique<RemoteLoads>(kv_, *remote_, options_.remote_patience));
  kv_.send_to(*remote_);
}

template <class Work>
std::invoke_result_t<Work> Engine::guarded(Work&& work) {
  try {
    try {
      return work();
    } catch (const DeviceLost&) {
      throw;
    } catch (...) {
      recover();
      throw;
    }
  } catch (const DeviceLost& lost) {
    give_up(lost.what());
    throw;
  }
}

void Engine::add(Request request, std::optional<SequenceId> lead, SequenceId id) {
  std::ranges::sort(request.stop_tokens);
  PageTable table = kv_.make_table(id, request.salt);
  auto sequence =
      std::make_unique<Sequence>(id, std::move(request), std::move(table), model_.tokenizer, options_.now());
  sequence->lead = lead;
  if (const auto& grammar = sequence->request.grammar) {
    const std::vector<TokenId> none;
    sequence->constraint = std::make_shared<AnswerConstraint>(
        grammar, sequence->request.ignore_end ? none : model_.end_tokens, model_.spec->vocab);
  }
  if (auto& pruning = sequence->request.pruning) {
    if (pruning->is_shared) pruning->multiple = kv_.node_tokens();
    const uint32_t scored = pruning->scored > 0 ? pruning->scored : uint32_t(sequence->tokens.size());
    if (pruning->kept_of(scored) < scored) {
      sequence->prune.scorer =
          make_scorer(*pruning, *model_.spec, kv_.layout(), scored, model_.repeat_request);
      sequence->answer.account.kept = {
          {pruning->policy, double(pruning->kept_of(scored)) / scored, pruning->measured}};
      sequence->prune.document = document_key({sequence->tokens, sequence->request.salt}, *pruning);
      if (sequence->prune.document) sequence->answer.account.kept->document = sequence->prune.document->name;
    }
  }
  if (const auto& budget = sequence->request.budget) {
    sequence->budget = std::make_unique<BudgetRun>(*budget, *model_.spec, kv_.layout(), options_.context,
                                                   positions_end_.empty());
    sequence->answer.account.budget_rows = sequence->budget->rows();
    sequence->answer.account.budget_step = sequence->budget->step();
  }
  scheduler_.add(std::move(sequence));
}

SequenceId Engine::submit(Request request) {
  check(request);
  const SequenceId id{next_id_++};
  add(std::move(request), std::nullopt, id);
  return id;
}

std::vector<SequenceId> Engine::submit_choices(const Request& request, uint32_t count) {
  check(request);
  std::vector<SequenceId> ids;
  for (uint32_t choice = 0; choice < count; ++choice) ids.push_back(SequenceId{next_id_++});
  try {
    for (uint32_t choice = 0; choice < count; ++choice) {
      Request one = request;
      one.choice = choice;
      if (choice > 0) one.on_prompt_score = nullptr;  // the prompt is the same
      add(std::move(one), choice == 0 ? std::nullopt : std::optional(ids.front()), ids[choice]);
    }
  } catch (...) {
    for (SequenceId id : ids) cancel(id);  // all or none
    throw;
  }
  return ids;
}

std::optional<SequenceId> Engine::fork(SequenceId from, uint32_t at, Request request) {
  const Sequence* parent = scheduler_.find(from);
  if (parent == nullptr || at == 0 || at > parent->tokens.size()) return std::nullopt;
  request.prompt.assign(parent->tokens.begin(), parent->tokens.begin() + at);
  request.salt = parent->request.salt;
  check(request);
  const SequenceId id{next_id_++};
  add(std::move(request), from, id);
  return id;
}

std::optional<Engine::DocumentMatch> Engine::lookup_document(const SaltedTokens& prompt,
                                                             const PruningOptions& options) const {
  PruningOptions shared = options;
  shared.multiple = kv_.node_tokens();
  std::optional<DocumentKey> key = document_key(prompt, shared);
  if (!key) return std::nullopt;
  const bool is_cached = kv_.lookup_document({prompt.tokens.first(key->tokens), key->salt}).has_value();
  return DocumentMatch{*std::move(key), is_cached};
}

StepCost Engine::prompt_cost(uint32_t tokens, uint32_t cached) const {
  StepCost cost;
  for (uint32_t done = cached; done < tokens;) {
    const uint32_t count = std::min(options_.prefill_chunk, tokens - done);
    cost += costs_.step({.tokens = count, .depth = done, .logit_rows = done + count == tokens ? 1u : 0u},
                        kv_.layout());
    done += count;
  }
  return cost;
}

Engine::Pin Engine::pin(const SaltedTokens& prompt, PinTerms terms) {
  return guarded([&] {
    const SequenceId id{next_id_++};
    const Pinned& pinned = pins_.emplace(id, Pinned{kv_.pin(prompt, id), std::move(terms)}).first->second;
    return Pin{id, pinned.tokens()};
  });
}

bool Engine::unpin(SequenceId pin) {
  const auto found = pins_.find(pin);
  if (found == pins_.end()) return false;
  guarded([&] {
    kv_.release(found->second.table, {}, 0, KvCache::Reason::forgotten);
    pins_.erase(found);
  });
  return true;
}

void Engine::unpin_all() {
  while (!pins_.empty()) unpin(pins_.begin()->first);
}

void Engine::end_overdue_pins() {
  const Clock::time_point now = options_.now();
  std::vector<SequenceId> overdue;
  for (const auto& [id, pinned] : pins_) {
    if (pinned.terms.until && *pinned.terms.until <= now) overdue.push_back(id);
  }
  for (SequenceId id : overdue) unpin(id);
}

void Engine::cancel(SequenceId id) {
  guarded([&] { end(id, KvCache::Reason::finished); });
}

void Engine::end(SequenceId id, KvCache::Reason reason) {
  if (auto sequence = scheduler_.remove(id)) {
    kv_.release(sequence->table, sequence->tokens, sequence->computed, reason);
    forget_drafts(id);
  }
}

void Engine::forget_drafts(SequenceId id) {
  pace_.forget(id);
  if (drafter_) drafter_->forget(id);
}

void Engine::end_overdue() {
  end_overdue_pins();
  const Clock::time_point now = options_.now();
  std::vector<SequenceId> overdue;
  for (const auto* list : {&scheduler_.running(), &scheduler_.waiting()}) {
    for (const auto& sequence : *list) {
      if (sequence->request.deadline && *sequence->request.deadline <= now) overdue.push_back(sequence->id);
    }
  }
  for (SequenceId id : overdue) {
    auto sequence = scheduler_.remove(id);
    sequence->answer.finish_reason = FinishReason::deadline;
    finish(std::move(sequence));
  }
}

bool Engine::step() {
  if (!lost_.empty()) throw DeviceLost("{}", lost_);
  return guarded([&] { return compute_step(); });
}

void Engine::give_up(const char* why) {
  lost_ = why;
  being_computed_.clear();
  flights_.clear();
  wants_to_wait_ = false;
  runner_.abandon();
  scheduler_.drop_all();
  pins_.clear();
  if (drafter_) drafter_->forget_all();
  pace_.forget_all();
  kv_.forget_everything();
  tell_handed_over();
}

void Engine::recover() {
  const std::vector<SequenceId> served = std::exchange(being_computed_, {});
  flights_.clear();
  wants_to_wait_ = false;
  try {
    runner_.drain();
    take_made();
    for (SequenceId id : served) end(id, KvCache::Reason::forgotten);
    if (!served.empty() && kv_.moves_on_their_way() == 0) return;
  } catch (const DeviceLost&) {
    throw;
  } catch (const std::exception&) {
    // There is no memory even for that, or the device does not answer.
  }
  // It may be anywhere in what it was changing: only what is empty can be trusted.
  runner_.abandon();
  scheduler_.drop_running();
  pins_.clear();
  if (drafter_) drafter_->forget_all();
  pace_.forget_all();
  kv_.forget_everything();
}

std::optional<Answer> Engine::take_answer(SequenceId id) {
  const auto found =
      std::find_if(answers_.begin(), answers_.end(), [&](const auto& a) { return a.first == id; });
  if (found == answers_.end()) return std::nullopt;
  Answer answer = std::move(found->second);
  answers_.erase(found);
  return answer;
}

Answer Engine::run(Request request) {
  const SequenceId id = submit(std::move(request));
  while (true) {
    CHECK(step());
    if (auto answer = take_answer(id)) return *std::move(answer);
  }
}

Engine::Load Engine::load() const {
  return {uint32_t(scheduler_.running().size()), uint32_t(scheduler_.waiting().size()),
          scheduler_.preemptions()};
}

std::optional<SequenceView> Engine::sequence(SequenceId id) const {
  const Sequence* found = scheduler_.find(id);
  return found == nullptr ? std::nullopt : std::optional<SequenceView>(*found);
}

std::vector<SequenceView> Engine::running() const {
  std::vector<SequenceView> views;
  views.reserve(scheduler_.running().size());
  for (const auto& sequence : scheduler_.running()) views.emplace_back(*sequence);
  return views;
}

double Engine::unused_share() const {
  size_t held = 0, used = 0;
  for (const auto& sequence : scheduler_.running()) {
    for (uint32_t g = 0; g < sequence->table.groups(); ++g) {
      const KvGroupLayout& group = kv_.layout().groups[g];
      if (group.is_state) continue;  // one is all used
      const uint32_t first = uint32_t(sequence->table.pages(g).size()) - sequence->table.held_pages(g);
      held += sequence->table.held_pages(g) * group.page_bytes;
      const uint32_t rows = sequence->computed + sequence->table.row_shift(g);
      used += (rows - std::min(rows, first * group.page_tokens)) * group.bytes_per_token();
    }
  }
  return held == 0 ? 0 : 1 - double(used) / double(held);
}

std::optional<DeviceMemory> Engine::device_memory() const {
  const Backend& device = model_.backend->side(Side::device);
  if (device.traits().memory != MemoryKind::device || !lost_.empty()) return std::nullopt;
  DeviceMemory memory{.total = device.total_memory(),
                      .free = device.available_memory(),
                      .weights = model_.weights->device_bytes,
                      .workspace = runner_.workspace_bytes()};
  for (uint32_t g = 0; g < kv_.layout().groups.size(); ++g) {
    const KvGroupLayout& group = kv_.layout().groups[g];
    if (group.side == Side::device) memory.kv += kv_.group_stats(g).pages * group.page_bytes;
  }
  return memory;
}

void Engine::check_invariants() const {
  kv_.check_invariants();
  if (host_) host_->check_invariants();
  if (disk_) disk_->check_invariants();
  if (remote_) remote_->check_invariants();
  scheduler_.check_invariants();
}

}  // namespace quire
