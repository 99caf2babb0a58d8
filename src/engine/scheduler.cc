#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire {
namespace {

// A sequence that has waited this many steps counts as one priority higher, and so on: nobody waits for ever.
constexpr uint64_t kStepsPerPriority = 2000;
constexpr double kPromptWeight = 1, kAnswerWeight = 2;  // an answer's token costs a whole read of the weights

using List = std::vector<std::unique_ptr<Sequence>>;

std::unique_ptr<Sequence> take(List& list, const Sequence* sequence) {
  const auto found = std::ranges::find_if(list, [&](const auto& s) { return s.get() == sequence; });
  if (found == list.end()) return nullptr;
  std::unique_ptr<Sequence> taken = std::move(*found);
  list.erase(found);
  return taken;
}

void insert_by_arrival(List& list, std::unique_ptr<Sequence> sequence) {
  const auto place = std::ranges::find_if(list, [&](const auto& s) { return s->id > sequence->id; });
  list.insert(place, std::move(sequence));
}

}  // namespace

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  const std::string& client = sequence->request.client;
  if (idle()) served_.clear();  // names of clients come from outside: they must not pile up
  // One that comes back after a pause does not get what it missed.
  double least = 0;
  bool any = false, here = false;
  for (const List* list : {&running_, &waiting_}) {
    for (const auto& other : *list) {
      here |= other->request.client == client;
      const double served = served_[other->request.client];
      least = any ? std::min(least, served) : served;
      any = true;
    }
  }
  if (!here) served_[client] = std::max(served_[client], least);
  sequence->waiting_since = step_;
  insert_by_arrival(waiting_, std::move(sequence));
}

int64_t Scheduler::rank(const Sequence& sequence) const {
  return sequence.request.priority + int64_t((step_ - sequence.waiting_since) / kStepsPerPriority);
}

StepPlan Scheduler::plan(uint32_t prefill_budget, double prompt_token_ms, Before before) {
  ++step_;
  prompt_token_ms_ = prompt_token_ms;
  before_ = before;
  score_room_ = PromptScore::kMostRows;
  StepPlan plan;
  plan_streams(plan);
  uint32_t budget = prefill_budget;
  plan_prompts(plan, budget);
  admit_waiting(plan, budget);
  return plan;
}

void Scheduler::add_run(Sequence& sequence, uint32_t count, StepPlan& plan) {
  const bool samples = count == sequence.backlog() && !sequence.pooled;
  const uint32_t drafts = samples ? uint32_t(sequence.drafts.size()) : 0;
  const bool is_prompt = sequence.backlog() > 1, scored = sequence.to_score() > 0;
  if (is_prompt) plan.prefill_tokens += count;
  if (scored) score_room_ -= count;
  plan.runs.push_back({&sequence, sequence.id, count, drafts, is_prompt, samples, scored});
  plan.tokens += count + drafts;
}

uint32_t Scheduler::next_count(Sequence& sequence, uint32_t budget) const {
  const ScoringPass* pass = sequence.due_pass();
  if (sequence.to_score() > 0) budget = std::min(budget, score_room_);
  return std::min(
      pass != nullptr ? uint32_t(pass->tokens.size()) - sequence.prune.pass_done : sequence.longest_run(),
      budget);
}

uint32_t Scheduler::rows_with(Sequence& sequence, uint32_t count) const {
  const ScoringPass* pass = sequence.due_pass();
  return count + (pass != nullptr ? pass->row + sequence.prune.pass_done : sequence.rows());
}

void Scheduler::add_prompt(Sequence& sequence, uint32_t count, StepPlan& plan) {
  if (sequence.due_pass() == nullptr) return add_run(sequence, count, plan);
  plan.scorings.push_back({&sequence, count});
}

void Scheduler::plan_streams(StepPlan& plan) {
  std::vector<Sequence*> streams;
  for (const auto& sequence : running_) {
    if (sequence->backlog() == 1 && sequence->can_go_ahead() && sequence->due_pass() == nullptr)
      streams.push_back(sequence.get());
  }
  std::ranges::stable_sort(streams, std::greater(), [](Sequence* s) { return s->request.priority; });
  for (Sequence* sequence : streams) {
    if (!sequence->running) continue;  // it was preempted for one before it
    if (!prune_or_preempt(*sequence, plan)) continue;
    const uint32_t known = sequence->rows() + 1;
    if (!sequence->drafts.empty() && !kv_.reserve(sequence->table, known + uint32_t(sequence->drafts.size())))
      sequence->drafts.clear();  // guesses are not worth anybody's pages
    if (!reserve_or_preempt(*sequence, known, plan)) continue;
    add_run(*sequence, 1, plan);
    charge(*sequence, kAnswerWeight);
  }
}

void Scheduler::plan_prompts(StepPlan& plan, uint32_t& budget) {
  std::vector<Sequence*> prompts;
  for (const auto& sequence : running_) {
    if (!sequence->can_go_ahead()) continue;
    const bool has_pass = sequence->due_pass() != nullptr;
    if (has_pass && before_ == Before::one_on_its_way) {
      plan.wants_to_wait = true;
    } else if (has_pass || sequence->backlog() > 1) {
      prompts.push_back(sequence.get());
    }
  }
  std::ranges::stable_sort(prompts, [&](Sequence* a, Sequence* b) {
    if (rank(*a) != rank(*b)) return rank(*a) > rank(*b);
    return served_[a->request.client] < served_[b->request.client];
  });
  for (Sequence* sequence : prompts) {
    if (budget == 0) return;
    if (!sequence->running || !prune_or_preempt(*sequence, plan)) continue;
    const uint32_t count = next_count(*sequence, budget);
    if (count == 0 && sequence->to_score() > 0) continue;  // no rows of logits are left for it
    sequence->drafts.clear();
    if (!reserve_or_preempt(*sequence, rows_with(*sequence, count), plan)) continue;
    add_prompt(*sequence, count, plan);
    charge(*sequence, kPromptWeight * count);
    budget -= count;
  }
}

Sequence* Scheduler::next_waiting(std::span<Sequence* const> passed_over) const {
  Sequence* best = nullptr;
  const auto served = [&](const Sequence& s) {
    const auto found = served_.find(s.request.client);
    return found == served_.end() ? 0.0 : found->second;
  };
  for (const auto& sequence : waiting_) {
    if (sequence->hopeless || sequence->is_loading() ||
        std::ranges::find(passed_over, sequence.get()) != passed_over.end())
      continue;
    if (sequence->lead) {
      const Sequence* lead = find(*sequence->lead);
      if (lead != nullptr && lead->computed < lead->request.prompt.size() && lead->answer_tokens() == 0)
        continue;
    }
    if (best == nullptr || rank(*sequence) > rank(*best) ||
        (rank(*sequence) == rank(*best) && served(*sequence) < served(*best))) {
      best = sequence.get();
    }
  }
  return best;
}

bool Scheduler::fits(const Sequence& sequence, uint32_t tokens, uint32_t headroom) const {
  if (!finds_document(sequence))
    return kv_.fits(sequence.size_of(tokens), sequence.findable(), options_.prefill_chunk, headroom);
  const DocumentKey& document = *sequence.prune.document;
  return kv_.fits_after(*sequence.document(), tokens - document.tokens + document.rows, headroom);
}

bool Scheduler::make_room_for(Sequence& sequence, StepPlan& plan) {
  // What it will compute before its first new token; of one that becomes a vector that is the last.
  const uint32_t known = uint32_t(sequence.tokens.size()) - (sequence.pooled ? 1 : 0);
  while (true) {
    const uint32_t headroom = uint32_t(running_.size());  // a page for each that runs: it will soon want one
    if (running_.size() < options_.max_sequences && fits(sequence, known, headroom)) return true;
    Sequence* victim = first_victim();
    if (victim == nullptr || victim->request.priority >= sequence.request.priority) return false;
    if (must_wait(plan)) return false;
    preempt(*victim, plan);
  }
}

void Scheduler::start_after_document(Sequence& sequence) {
  const SaltedTokens document = *sequence.document();
  sequence.computed = kv_.attach_document(sequence.table, document).value();
  sequence.prune.dropped = uint32_t(document.size()) - sequence.computed;
  RequestAccount& account = sequence.answer.account;
  account.pruned_tokens = sequence.prune.dropped;
  if (sequence.started) return;
  account.cached_tokens = uint32_t(document.size());
  account.miss = {.why = PrefixMiss::Why::ended, .position = account.cached_tokens};
}

void Scheduler::start(Sequence& sequence) {
  if (finds_document(sequence)) return start_after_document(sequence);
  Sequence* lead = sequence.lead ? find(*sequence.lead) : nullptr;
  PrefixMatch match;
  if (!sequence.prune.kept.empty()) kv_.never_publish(sequence.table);
  if (lead != nullptr && lead->running && !sequence.prune.scorer && !sequence.budget &&
      !lead->prune.dropped && !sequence.computes_whole_prompt() &&
      sequence.tokens.size() == sequence.request.prompt.size()) {
    // The last token of the prompt is computed again: its logits are needed.
    const uint32_t at = std::min(lead->computed, uint32_t(sequence.request.prompt.size()) - 1);
    if (auto table = kv_.fork(lead->table, at, sequence.id)) {
      sequence.table = *std::move(table);
      match = {at, {.why = PrefixMiss::Why::nothing, .position = at}};
    }
  }
  if (match.tokens == 0 && sequence.prune.kept.empty())
    match = kv_.attach(sequence.table, sequence.findable().tokens);
  // Whoever asks again begins there, or goes on without what was thought between.
  const uint32_t prompt = uint32_t(sequence.request.prompt.size()), node = kv_.node_tokens();
  for (const uint32_t end : {prompt - 1, prompt}) kv_.keep_state_at(sequence.table, end / node * node);
  if (sequence.prune.chooses_before_prefill()) {
    sequence.prune.pass_done = match.tokens;  // of the pass over the prompt: the rows of its layers are there
  } else {
    sequence.computed = match.tokens;
  }
  if (!sequence.started) {
    sequence.answer.account.cached_tokens = match.tokens;
    sequence.answer.account.miss = match.miss;
    const uint32_t without_remote =
        std::min(match.tokens, sequence.remote.memory_tokens.value_or(match.tokens));
    const uint32_t without_disk =
        std::min(without_remote, sequence.disk.memory_tokens.value_or(without_remote));
    const uint32_t without_host = std::min(without_disk, sequence.host.memory_tokens.value_or(without_disk));
    sequence.answer.account.remote_tokens = match.tokens - without_remote;
    sequence.answer.account.disk_tokens = without_remote - without_disk;
    sequence.answer.account.host_tokens = without_disk - without_host;
  }
}

bool Scheduler::waits_for_tiers(Sequence& sequence) {
  if (!sequence.prune.kept.empty() || finds_document(sequence)) return false;
  const Sequence* lead = sequence.lead ? find(*sequence.lead) : nullptr;
  if (lead != nullptr && lead->running) return false;  // it shares what its lead has
  return loads_.begin(sequence, prompt_token_ms_);
}

bool Scheduler::others_compute_its_prefix(const Sequence& sequence) const {
  // It must be seen computing them itself.
  if (sequence.computes_whole_prompt() || finds_document(sequence)) return false;
  const auto prunes_its_document = [&](const auto& other) {
    return sequence.prune.document && other->prune.document && other->prune.is_due() &&
           other->prune.document->salt == sequence.prune.document->salt;
  };
  if (std::ranges::any_of(running_, prunes_its_document)) return true;
  const PrefixMatch match = kv_.lookup({sequence.tokens, sequence.request.salt});
  if (match.miss.why == PrefixMiss::Why::off) return false;
  for (const auto& other : running_) {
    // It may be far behind, and nobody waits for one that only looks.
    if (other->request.watch || other->to_score() > 0) continue;
    if (other->request.salt != sequence.request.salt) continue;  // what it computes is not for this one
    const auto [mine, theirs] = std::ranges::mismatch(sequence.tokens, other->tokens);
    uint32_t common = uint32_t(mine - sequence.tokens.begin()) / kv_.node_tokens() * kv_.node_tokens();
    const Sequence* const both[] = {other.get(), &sequence};
    for (const Sequence* bound : both) {
      if (bound->budget) common = std::min(common, bound->budget->rows());  // it publishes, or finds, no more
    }
    const bool publishes = !other->prune.chooses_before_prefill();
    if (common > match.tokens && publishes && other->computed + other->prune.dropped < common) {
      kv_.keep_state_at(other->table, common);  // the two part there, or somewhere in the node after it
      return true;
    }
  }
  return false;
}

void Scheduler::admit_waiting(StepPlan& plan, uint32_t& budget) {
  std::vector<Sequence*> passed_over;
  while (budget > 0) {
    Sequence* sequence = next_waiting(passed_over);
    if (sequence != nullptr && others_compute_its_prefix(*sequence)) {
      passed_over.push_back(sequence);
      continue;
    }
    if (sequence == nullptr || !make_room_for(*sequence, plan)) return;
    if (sequence->prune.scorer && must_wait(plan)) return;  // it may want a pass of its own first
    if (waits_for_tiers(*sequence)) continue;
    start(*sequence);
    const uint32_t count = next_count(*sequence, budget);
    sequence->drafts.clear();
    if (!kv_.reserve(sequence->table, rows_with(*sequence, count))) {
      // Copying the page where the match ends took what was left.
      kv_.release(sequence->table, sequence->tokens, sequence->computed, KvCache::Reason::forgotten);
      sequence->computed = 0;
      if (sequence->prune.document) sequence->prune.restart();
      return;
    }
    sequence->running = true;
    insert_by_arrival(running_, take(waiting_, sequence));
    // One that was preempted may find its whole prompt cached: it is pruned before anything is computed.
    if (count > 0) add_prompt(*sequence, count, plan);
    charge(*sequence, kPromptWeight * count);
    budget -= count;
  }
}

std::vector<std::unique_ptr<Sequence>> Scheduler::take_hopeless() {
  std::vector<std::unique_ptr<Sequence>> hopeless;
  if (!running_.empty() || waiting_.empty()) return hopeless;
  for (auto& sequence : waiting_) {
    if (sequence->hopeless) hopeless.push_back(std::move(sequence));
  }
  std::erase(waiting_, nullptr);
  if (!hopeless.empty()) return hopeless;
  if (Sequence* sequence = next_waiting()) hopeless.push_back(take(waiting_, sequence));
  return hopeless;
}

Sequence* Scheduler::first_victim() const {
  Sequence* victim = nullptr;
  for (const auto& sequence : running_) {  // by arrival: of equals the last is the youngest
    if (victim == nullptr || sequence->request.priority <= victim->request.priority) victim = sequence.get();
  }
  return victim;
}

bool Scheduler::reserve_or_preempt(Sequence& sequence, uint32_t tokens, StepPlan& plan) {
  while (!kv_.reserve(sequence.table, tokens)) {
    if (must_wait(plan)) return false;
    Sequence* victim = first_victim();
    if (waits_for_arrivals(sequence, victim)) return false;
    preempt(*victim, plan);
    // Alone it would come to the same place again and again: what is pinned takes its room.
    if (victim == &sequence) return give_up_if_alone(sequence);
  }
  return true;
}

bool Scheduler::must_wait(StepPlan& plan) const {
  if (before_ == Before::all_done) return false;
  plan.wants_to_wait = true;
  return true;
}

bool Scheduler::give_up_if_alone(Sequence& sequence) {
  sequence.hopeless = running_.empty();
  return false;
}

bool Scheduler::let_go_or_preempt(Sequence& sequence, StepPlan& plan) {
  if (must_wait(plan)) return false;
  BudgetRun::Choice choice = sequence.budget->choose();
  while (!kv_.drop_rows(sequence.table, sequence.computed, choice.moved)) {
    Sequence* victim = first_victim();
    if (waits_for_arrivals(sequence, victim)) return false;
    preempt(*victim, plan);
    if (victim == &sequence) return give_up_if_alone(sequence);
  }
  const uint32_t gone = sequence.computed - choice.moved.count;
  sequence.prune.dropped += gone;
  sequence.computed = choice.moved.count;
  sequence.budget->take(std::move(choice));
  RequestAccount& account = sequence.answer.account;
  account.forgotten_tokens = sequence.prune.dropped;
  account.counted_anew = sequence.budget->times_counted_anew();
  return true;
}

bool Scheduler::prune_or_preempt(Sequence& sequence, StepPlan& plan) {
  if (sequence.must_let_go()) return let_go_or_preempt(sequence, plan);
  if (!sequence.must_prune()) return true;
  if (must_wait(plan)) return false;
  const KeptRows kept = sequence.prune.scorer->choose();
  while (!kv_.keep_rows(sequence.table, sequence.computed, kept)) {
    Sequence* victim = first_victim();
    if (waits_for_arrivals(sequence, victim)) return false;
    preempt(*victim, plan);
    if (victim == &sequence) return give_up_if_alone(sequence);
  }
  if (const auto document = sequence.document())
    kv_.publish_document(sequence.table, *document, sequence.prune.document->name);
  sequence.prune.dropped = sequence.computed - kept.count;
  sequence.computed = kept.count;
  sequence.answer.account.pruned_tokens = sequence.prune.dropped;
  sequence.prune.scorer->restart();  // what it has seen is not needed any more
  return true;
}

void Scheduler::preempt(Sequence& sequence, StepPlan& plan) {
  std::erase_if(plan.runs, [&](const StepPlan::Run& run) {
    if (run.sequence != &sequence) return false;
    plan.tokens -= run.count + run.drafts;
    if (run.is_prompt) plan.prefill_tokens -= run.count;
    return true;
  });
  std::erase_if(plan.scorings, [&](const StepPlan::Scoring& s) { return s.sequence == &sequence; });
  CHECK(sequence.ahead.rows == 0);
  kv_.release(sequence.table, sequence.tokens, sequence.computed, KvCache::Reason::preempted);
  sequence.start_over();
  sequence.gap_cause = GapCause::preemption;
  sequence.waiting_since = step_;
  ++sequence.answer.account.preemptions;
  ++preemptions_;
  insert_by_arrival(waiting_, take(running_, &sequence));
}

void Scheduler::drop_running() {
  loads_.forget_all();
  running_.clear();
  std::erase(waiting_, nullptr);  // one that was on its way to the others
  for (const auto& sequence : waiting_) {
    sequence->table.clear();
    sequence->start_over();
  }
}

void Scheduler::drop_all() {
  drop_running();
  waiting_.clear();
}

std::unique_ptr<Sequence> Scheduler::remove(SequenceId id) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return nullptr;
  sequence->running = false;
  loads_.forget(*sequence);
  auto taken = take(running_, sequence);
  return taken ? std::move(taken) : take(waiting_, sequence);
}

Sequence* Scheduler::find(SequenceId id) const {
  for (const List* list : {&running_, &waiting_}) {  // both are in the order of arrival
    const auto found = std::ranges::lower_bound(*list, id, {}, [](const auto& s) { return s->id; });
    if (found != list->end() && (*found)->id == id) return found->get();
  }
  return nullptr;
}

void Scheduler::check_invariants() const {
  CHECK(running_.size() <= options_.max_sequences);
  for (const List* list : {&running_, &waiting_})
    CHECK(std::ranges::is_sorted(*list, {}, [](const auto& s) { return s->id; }));
  for (const auto& sequence : running_) {
    const bool is_on_its_way = sequence->pooled && sequence->ahead.rows > 0;
    CHECK(sequence->running && (sequence->backlog() >= 1 || is_on_its_way));
  }
  for (const auto& sequence : waiting_) {
    CHECK(!sequence->running && sequence->computed == 0 && sequence->table.reserved_tokens() == 0);
  }
}

}  // namespace quire
