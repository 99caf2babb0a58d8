#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/drafts/drafter.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/sequence_view.h"
#include "engine/step_budget.h"
#include "engine/step_taps.h"
#include "engine/telemetry.h"
#include "kv/kv_cache.h"
#include "kv/tiers/kv_snapshot.h"
#include "model/cost.h"
#include "model/head_place.h"
#include "runner/runner.h"

namespace quire {

struct EngineOptions {
  uint32_t context = 0;  // tokens of one sequence, prompt and answer; 0: what the model was trained for
  uint32_t max_sequences = 1;
  uint32_t prefill_chunk = 512;
  KvFormats kv_formats = {};
  bool kv_cache = true;  // false: pages are forgotten after each step and everything is computed anew
  bool sharing = true;   // of pages between sequences that begin alike
  uint32_t page_tokens = kPageTokens;
  size_t kv_bytes = 0;        // of all pages; 0: enough for every sequence that may run
  size_t state_bytes = 0;     // of them, or beside those: of the states of recurrent layers; 0: what is usual
  uint32_t draft_tokens = 8;  // most that a drafter may guess at a time
  double itl_target_ms =
      0;                  // prompts take no more of a step than lets streams go on at this pace; 0: no limit
  size_t disk_bytes = 0;  // of pages that are evicted from memory and may come back; 0: they are forgotten
  std::string disk_folder = {};
  size_t host_bytes = 0;  // of the host's memory, for pages that leave a device's and may come back; 0: none
  double host_patience = 1;  // how many times longer than computing it bringing a prefix from there may take
  double disk_patience = 1;  // how many times longer than computing it reading a prefix may take
  DiskIo disk_io = {};       // for tests: disks that fail
  RemoteTierOptions remote =
      {};  // a store that others share; no `store`: there is none. `identity` is the model's, of kv_identity
  KvIdentity kv_identity = {};  // whose pages they are there
  double remote_patience = 1;   // how many times longer than computing it fetching a prefix may take
  std::function<Clock::time_point()> now = Clock::now;
  // Steps that may be on their way at once: with 2 the next is planned and launched before the last has said what it drew.
  uint32_t pipeline = 1;
};

// What the engine needs of a model. All of it must outlive the engine.
struct EngineModel {
  const ModelSpec* spec = nullptr;
  const Weights* weights = nullptr;
  Backend* backend = nullptr;
  const Tokenizer* tokenizer = nullptr;      // null: answers have ids and no text
  std::vector<TokenId> end_tokens;           // the model's own
  std::vector<TokenId> repeat_request = {};  // what, after a text, asks the model to say it again
  Ranks* ranks = nullptr;                    // with whom a model that is divided is computed; null: alone

  RunnerModel runner_model() const { return {spec, weights, backend, ranks}; }
};

struct PinTerms {
  std::string client = {};                      // whose it is
  std::optional<Clock::time_point> until = {};  // nothing: until it is unpinned
};

// What is in the memory of a device, in bytes.
struct DeviceMemory {
  size_t total = 0, free = 0;
  size_t weights = 0, kv = 0, workspace = 0;

  // Of the kernels and the driver, and of other programs.
  size_t other() const {
    const size_t known = free + weights + kv + workspace;
    return total > known ? total - known : 0;
  }
};

// The one who owns all mutable state: sequences, pages, the step. One thread calls it.
class Engine {
 public:
  Engine(const EngineModel& model, const EngineOptions& options, std::unique_ptr<Drafter> drafter = nullptr);
  ~Engine();

  // Throws Error if the request can never run: an empty prompt, one that does not fit the context or the pages, bad
  // options.
  SequenceId submit(Request request);
  // Several answers to one prompt, which is computed once: choices 0 to count - 1.
  std::vector<SequenceId> submit_choices(const Request& request, uint32_t count);
  // A new sequence that has the first `at` tokens of a running one (prompt and answer) for its prompt and shares their
  // pages; `request` says all but the prompt and the salt. Nothing if the sequence does not run or has not come so far.
  std::optional<SequenceId> fork(SequenceId sequence, uint32_t at, Request request);
  // Frees all the sequence held. Nothing happens if it has finished.
  void cancel(SequenceId id);
  // Computes one step of all that run. False if there was nothing to do. What is thrown (memory is short, a device has
  // failed) ends those that the step served, without an answer: everybody else goes on, computing anew what was lost. After
  // DeviceLost nobody does: all are gone, and so is the cache.
  bool step();
  // The answer of a sequence once it has finished, given out once.
  std::optional<Answer> take_answer(SequenceId id);
  // All that have finished since.
  std::vector<std::pair<SequenceId, Answer>> take_answers() { return std::exchange(answers_, {}); }
  // Nobody runs or waits, and nothing is on its way: a step would do nothing.
  bool idle() const;
  // Submits, steps until it has finished, and gives the answer.
  Answer run(Request request);

  // How much of a prompt is cached, and why not more.
  PrefixMatch lookup(const SaltedTokens& prompt) const { return kv_.lookup(prompt); }
  // Of a prompt that begins with a document as these options have it: where that is found, and whether it is there. Nothing: it has
  // none that is worth it.
  struct DocumentMatch {
    DocumentKey key;
    bool is_cached = false;
  };
  std::optional<DocumentMatch> lookup_document(const SaltedTokens& prompt,
                                               const PruningOptions& options) const;
  // What the rest of a prompt would cost if its first `cached` tokens came from the cache.
  StepCost prompt_cost(uint32_t tokens, uint32_t cached) const;
  // Keeps what is cached of the beginning of a prompt until it is unpinned or its time is over; says how many tokens that is.
  struct Pin {
    SequenceId id;
    uint32_t tokens = 0;
  };
  Pin pin(const SaltedTokens& prompt, PinTerms terms = {});
  bool unpin(SequenceId pin);  // false: there is no such pin
  void unpin_all();
  // Those whose time is over are given up at the next step, or when this is called.
  void end_overdue_pins();
  struct Pinned {
    PageTable table;
    PinTerms terms;
    uint32_t tokens() const { return table.reserved_tokens(); }
  };
  const std::map<SequenceId, Pinned>& pins() const { return pins_; }
  Clock::time_point now() const { return options_.now(); }

  // Says which blocks of the cache are where, from now on and on this thread. The listener must outlive the engine.
  void tell(BlockListener* listener) { kv_.tell(listener); }
  const KvCache& kv() const { return kv_; }
  KvCache& kv() { return kv_; }  // for snapshots, between two steps
  // For the same: moves pages after all that was decided and computed before.
  MakeMoves make_moves();
  // Who runs and who waits, for those who look: what they may know of a sequence is in its view.
  struct Load {
    uint32_t running = 0, waiting = 0;
    uint64_t preemptions = 0;
  };
  Load load() const;
  std::optional<SequenceView> sequence(SequenceId id) const;  // nothing: it neither runs nor waits
  std::vector<SequenceView> running() const;
  const Scheduler& scheduler() const { return scheduler_; }  // for the engine's own loop, tests and benches
  HostTier* host() const { return host_.get(); }             // null: there is none
  DiskTier* disk() const { return disk_.get(); }             // as many
  RemoteTier* remote() const { return remote_.get(); }       // as many
  const StepLog& steps() const { return steps_; }
  uint32_t context() const { return options_.context; }
  // Throws Error if the model has no such head.
  HeadPlace place_of(uint32_t layer, uint32_t head) const { return place_of_head(*model_.spec, layer, head); }
  // Of the bytes that sequences hold: the share in which nothing is written yet.
  double unused_share() const;
  // Why there is no device any more; empty: there is one.
  const std::string& lost() const { return lost_; }
  // Asks the device; nothing: the memory is the host's.
  std::optional<DeviceMemory> device_memory() const;
  void check_invariants() const;

 private:
  void add(Request request, std::optional<SequenceId> lead, SequenceId id);
  void check(const Request& request) const;
  void check_pruning(const Request& request) const;
  void check_budget(const Request& request) const;
  // Whether rows of this model can go while others stay; throws Error if not.
  void check_rows_can_go() const;
  void check_watch(const Request& request) const;
  void check_embedding(const Request& request) const;
  void check_divided(const Request& request) const;
  bool compute_step();
  void add_tiers();
  void add_disk();
  void add_remote();
  // Asks for pages of the host tier that are wanted here, and for copies there of those that will have to go.
  void move_aside();
  // Starts the moves that no step takes along; and makes them.
  void start_moves();
  void settle_moves();
  // Tells the cache what was moved since.
  void take_made();
  // Waits until something happens for those who wait for a tier. False: nobody does.
  bool wait_for_tiers();
  // What it throws leaves nothing half done.
  template <class Work>
  std::invoke_result_t<Work> guarded(Work&& work);
  // Ends what the step that failed served, or everything that runs if it is not known how far it came.
  void recover();
  // The device is lost: all end, and nothing can be asked for any more.
  void give_up(const char* why);
  void end(SequenceId id, KvCache::Reason reason);
  void end_overdue();
  void propose_drafts();
  void forget_drafts(SequenceId id);
  struct StepTimes {
    Clock::time_point begin, planned, end;
    uint64_t evicted;  // pages, in this step
  };
  // A step that was launched and not collected.
  struct Flight {
    StepPlan plan;
    StepHandle handle;
    StepTaps taps;
    StepTimes times;
    StepCost cost;
    double attention_pairs = 0;
  };
  // Plans the next step and launches it, if there is any.
  void take_off();
  void launch(StepPlan plan, StepTimes times);
  // Waits for the oldest step and does what follows from it.
  void land();
  // Those whose steps fail if this one does: all that are on their way.
  void expose(const StepPlan& plan);
  // Computes what scorers want to see of one sequence.
  void score(const StepPlan::Scoring& scoring);
  void settle(const StepPlan& plan, const StepOutput& output, const StepTimes& times);
  // Tells the drafter what the model has made of tokens that are sure: the sequence had `before` computed, and the run's are from
  // `row` of the step on.
  void teach(const Sequence& sequence, uint32_t before, size_t row, const StepOutput& output);
  void account(Sequence& sequence, const StepPlan::Run& run, const StepPlan& plan, const StepTimes& times);
  void tell_scores(Sequence& sequence, std::span<const SampleResult> results);
  // Whether any of these runs makes a row that somebody pools.
  static bool makes_rows(const StepPlan& plan);
  // Takes what a run of `count` tokens made, from `row` of the step on; tells the vector if that was all.
  void pool(Sequence& sequence, uint32_t count, size_t row, const StepOutput& output);
  // Adds what was drawn; says how many drafts were right.
  uint32_t add_tokens(Sequence& sequence, std::span<const SampleResult> results);
  // `guesses`: a drafter's for this token and those after it.
  void add_token(Sequence& sequence, const SampleResult& result, std::span<const TokenId> guesses);
  // Its tokens may be more than the context has.
  bool outlives_context(const Request& request) const { return request.budget && positions_end_.empty(); }
  FinishReason why_finished(Sequence& sequence, TokenId token) const;
  void finish(std::unique_ptr<Sequence> sequence);
  // Tells those answers whose pages are in the store, or will not be there soon.
  void tell_handed_over();

  EngineModel model_;
  EngineOptions options_;
  KvCache kv_;
  Runner runner_;
  std::unique_ptr<HostTier> host_;      // null: there is none
  std::unique_ptr<DiskTier> disk_;      // the same. It ends before the host's, whose pages it writes
  std::unique_ptr<RemoteTier> remote_;  // the same
  TierLoads loads_;
  Scheduler scheduler_;
  CostModel costs_;
  StepLog steps_;
  StepBudget budget_;
  DraftPace pace_;
  std::unique_ptr<Drafter> drafter_;
  uint32_t next_id_ = 1;
  // Whose tokens are being computed: while they are, sequences and pages do not change.
  std::vector<SequenceId> being_computed_;
  std::deque<Flight> flights_;  // the oldest first
  bool wants_to_wait_ = false;  // until nothing is on its way
  Clock::time_point last_end_ = {};
  std::string lost_;
  std::string positions_end_;  // why no sequence goes on beyond the context; empty: with a budget they do
  std::map<SequenceId, Pinned> pins_;
  std::vector<std::pair<SequenceId, Answer>> answers_;
  // Answers that are complete, and told when what they hand over is in the store.
  struct HandingOver {
    SequenceId id;
    Answer answer;
    PromptKey prompt;
    RemoteTier::Ticket sent = 0;
    Clock::time_point until;
  };
  std::deque<HandingOver> handing_over_;
};

}  // namespace quire
