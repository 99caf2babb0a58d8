// The engine over a fake backend: random arrivals, cancellations, forks, deadlines, drafts and tiny pools, every
// invariant checked after each step, every answer compared with what its tokens alone say.
#include <cstdlib>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "fake_budget.h"
#include "golden_model.h"
#include "late_backend.h"

namespace quire {
namespace {

constexpr uint32_t kContext = 96, kMaxTokens = 24;

struct Setting {
  const char* name;
  const char* model;
  bool drafts;
  uint32_t pool_tokens;
  enum class When : uint8_t { at_once, late } when = When::at_once;  // what is asked of the backend happens
  uint32_t pipeline = 1;
  uint32_t window_pages = 0;  // tokens of a page of layers with a window, where it is another size
  uint32_t host_tokens = 0, disk_tokens = 0;  // of the tiers; 0: there is none
  uint32_t states = 0;                        // beside those of one sequence
  bool budgets = false;                       // half of the requests have one
};

struct Simulation {
  Simulation(const Setting& setting, uint64_t seed)
      : model(golden_folder(setting.model), exact_kernels(), 1), random(seed), budgets(setting.budgets) {
    set_window_pages(model.spec, setting.window_pages);
    for (const KvLayer& layer : kv_shapes(model.spec, KvFormat::f16))
      windows.push_back(layer[0].state ? FakeBackend::kState : layer[0].window);
    EngineModel engine_model = model.engine_model();
    engine_model.backend = &backend;
    if (setting.when == Setting::When::late) engine_model.backend = &late;
    const KvLayout layout = make_kv_layout(kv_shapes(model.spec, KvFormat::f16), 4);
    EngineOptions options{.context = kContext, .max_sequences = 5, .prefill_chunk = 9};
    options.page_tokens = 4;
    options.kv_bytes = kv_bytes(layout, pages_for(layout, setting.pool_tokens, 9, 1));
    options.state_bytes = (kStatesHeld + setting.states) * layout.state_bytes();
    options.kv_bytes += setting.states * layout.state_bytes();
    options.now = [this] { return clock; };
    options.pipeline = setting.pipeline;
    const auto tier_bytes = [&](uint32_t tokens) {
      return kv_bytes(layout, std::vector(layout.groups.size(), tokens / 4));
    };
    options.host_bytes = tier_bytes(setting.host_tokens);
    options.disk_bytes = tier_bytes(setting.disk_tokens);
    options.disk_folder = testing::TempDir();
    options.host_patience = options.disk_patience = 1e9;
    engine = std::make_unique<Engine>(engine_model, options,
                                      setting.drafts ? std::make_unique<Guesser>(*this) : nullptr);
  }

  // Knows the truth, and tells it most of the time.
  struct Guesser : Drafter {
    explicit Guesser(Simulation& simulation) : simulation(simulation) {}
    void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) override {
      for (size_t i = 0; i < sequences.size(); ++i) {
        std::vector<TokenId> tokens = sequences[i]->tokens;
        for (uint32_t n = std::min(most[i], simulation.roll(5)); n > 0; --n) {
          const TokenId right = simulation.next(tokens, sequences[i]->request);
          tokens.push_back(simulation.roll(4) == 0 ? simulation.roll(simulation.model.spec.vocab) : right);
          sequences[i]->drafts.push_back(tokens.back());
        }
      }
    }
    void forget(SequenceId) override {}
    void forget_all() override {}
    Simulation& simulation;
  };

  uint32_t roll(uint32_t n) { return uint32_t(random() % n); }
  TokenId next(std::span<const TokenId> tokens, const Request& request) const {
    if (request.budget) {
      FakeBudget budget = fake_budget(request);
      for (const TokenId token : tokens) budget.push(token);
      return budget.next(request.sampling.seed, request.choice, model.spec.vocab);
    }
    return FakeBackend::next(tokens, windows, request.sampling.seed, request.choice, model.spec.vocab);
  }

  FakeBudget fake_budget(const Request& request) const {
    const auto sees_all = [](const LayerSpec& layer) {
      return layer.attention() != nullptr && layer.window() == 0;
    };
    const GqaSpec& attention = std::ranges::find_if(model.spec.layers, sees_all)->gqa();
    return FakeBudget(*request.budget, engine->kv().layout(), windows, attention.heads / attention.kv_heads,
                      kContext);
  }

  BudgetOptions random_budget() {
    BudgetOptions budget{.rows = 16 + roll(30), .pinned = roll(4), .window = 1 + roll(4)};
    if (roll(3) == 0) budget.policy = PruningPolicy::streaming;
    return budget;
  }

  // One of a few families of texts, so that many begin alike; cut or changed at a random place.
  std::vector<TokenId> random_prompt(uint32_t most = kContext - kMaxTokens - 8) {
    const uint32_t family = roll(4), length = 1 + roll(most);
    std::vector<TokenId> prompt;
    for (uint32_t i = 0; i < length; ++i) prompt.push_back(TokenId(mix(family, i) % model.spec.vocab));
    if (roll(2) == 0) prompt[roll(length)] = roll(model.spec.vocab);
    return prompt;
  }

  CacheSalt random_salt() {
    return {.key = roll(3) == 0 ? 1u : 0u, .text = roll(8) == 0 ? 1 + roll(50) : 0u};
  }

  Request random_request() {
    Request request;
    if (budgets && roll(2) == 0) request.budget = random_budget();
    request.prompt = request.budget ? random_prompt(2 * kContext) : random_prompt();
    request.max_tokens = 1 + roll(kMaxTokens);
    request.sampling.seed = roll(3);
    request.priority = roll(8) == 0 ? int32_t(roll(3)) : 0;
    request.client = std::string(1, char('a' + roll(3)));
    request.salt = random_salt();
    if (roll(4) == 0)
      request.sampling.presence_penalty = 0.5f;  // needs the token before, and draws the same here
    if (roll(10) == 0) request.deadline = clock + std::chrono::milliseconds(roll(60));
    return request;
  }

  struct Open {
    Request request;
    uint64_t since;
    uint64_t patience;
  };

  void remember(SequenceId id, const Request& request) { open.emplace(id, Open{request, step, 0}); }

  void act() {
    const uint32_t what = roll(100);
    if (what < 22 && open.size() < 24) {
      const Request request = random_request();
      remember(engine->submit(request), request);
    } else if (what < 24 && open.size() < 24) {
      Request request = random_request();
      const auto ids = engine->submit_choices(request, 3);
      for (SequenceId id : ids) {
        remember(id, request);
        ++request.choice;
      }
    } else if (what < 27 && !open.empty()) {
      const auto chosen = std::next(open.begin(), roll(uint32_t(open.size())));
      engine->cancel(chosen->first);
      open.erase(chosen);
      ++cancelled;
    } else if (what < 30 && !open.empty()) {
      const auto chosen = std::next(open.begin(), roll(uint32_t(open.size())));
      if (const Sequence* parent = engine->scheduler().find(chosen->first)) {
        Request request = random_request();
        const uint32_t at =
            std::min<uint32_t>(1 + roll(uint32_t(parent->tokens.size())), kContext - kMaxTokens - 1);
        request.prompt.assign(parent->tokens.begin(), parent->tokens.begin() + at);
        if (const auto id = engine->fork(chosen->first, at, request)) {
          remember(*id, request);
          ++forked;
        }
      }
    } else if (what == 30) {
      PinTerms terms;
      if (roll(2) == 0) terms.until = clock + std::chrono::milliseconds(roll(40));
      const std::vector<TokenId> prompt = random_prompt();
      engine->pin({prompt, random_salt()}, terms);
    } else if (what < 35) {
      engine->unpin_all();
    }
  }

  void check_answers() {
    for (auto it = open.begin(); it != open.end();) {
      const auto answer = engine->take_answer(it->first);
      if (!answer) {
        // Everything that is asked for at once takes some hundred steps; waiting for ever would show.
        ASSERT_LT(step - it->second.since, 3000u) << "a request starves";
        ++it;
        continue;
      }
      const Request& request = it->second.request;
      if (request.budget) {
        check_budget(request, *answer);
      } else {
        std::vector<TokenId> tokens = request.prompt;
        for (TokenId token : answer->tokens) {
          ASSERT_EQ(token, next(tokens, request));
          tokens.push_back(token);
        }
      }
      if (testing::Test::HasFatalFailure()) return;
      if (answer->finish_reason == FinishReason::length) {
        ASSERT_EQ(answer->tokens.size(), request.max_tokens);
        ++finished;
      } else if (answer->finish_reason == FinishReason::deadline) {
        ASSERT_TRUE(request.deadline.has_value());
        ++overdue;
      } else {
        ASSERT_EQ(answer->finish_reason, FinishReason::no_room);
      }
      accepted += answer->account.accepted;
      it = open.erase(it);
    }
  }

  void check_budget(const Request& request, const Answer& answer) {
    FakeBudget budget = fake_budget(request);
    for (const TokenId token : request.prompt) budget.push(token);
    for (const TokenId token : answer.tokens) {
      ASSERT_EQ(token, budget.next(request.sampling.seed, request.choice, model.spec.vocab));
      budget.push(token);
    }
    let_go += budget.times_let_go();
    counted_anew += budget.times_counted_anew();
  }

  // Nobody has more rows than its budget.
  void check_rows() const {
    for (const auto& sequence : engine->scheduler().running()) {
      if (sequence->budget) {
        ASSERT_LE(sequence->rows(), sequence->budget->rows());
        ASSERT_LE(sequence->table.reserved_tokens(), sequence->budget->rows());
      }
    }
  }

  void run(uint64_t steps) {
    const uint32_t capacity = engine->kv().stats().capacity_pages;
    for (step = 0; step < steps; ++step) {
      act();
      engine->step();
      clock += std::chrono::milliseconds(1);
      engine->check_invariants();
      const KvCache::Stats stats = engine->kv().stats();
      ASSERT_EQ(stats.held_pages + stats.cached_pages + stats.free_pages, capacity);
      check_answers();
      check_rows();
      if (testing::Test::HasFatalFailure()) return;
    }
    engine->unpin_all();
    for (; !open.empty(); ++step) {
      ASSERT_TRUE(engine->step());
      check_answers();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(engine->scheduler().idle());
    EXPECT_EQ(engine->kv().stats().held_pages, 0u);
    engine->check_invariants();
  }

  BareModel model;
  FakeBackend backend;
  LateBackend late{backend};
  std::mt19937_64 random;
  bool budgets;
  std::vector<uint32_t> windows;
  Clock::time_point clock{};
  std::unique_ptr<Engine> engine;
  std::map<SequenceId, Open> open;
  uint64_t step = 0, finished = 0, cancelled = 0, forked = 0, overdue = 0, accepted = 0;
  uint64_t let_go = 0, counted_anew = 0;
};

uint64_t steps_wanted() {
  const char* text = std::getenv("QUIRE_SIMULATION_STEPS");
  return text == nullptr ? 15000 : std::strtoull(text, nullptr, 10);
}

using When = Setting::When;

class EngineSimulation : public testing::TestWithParam<Setting> {};

TEST_P(EngineSimulation, EveryAnswerIsRightNothingLeaksAndNobodyStarves) {
  Simulation simulation(GetParam(), 1);
  simulation.run(steps_wanted());
  EXPECT_GT(simulation.finished, steps_wanted() / 20);
  EXPECT_GT(simulation.cancelled, 0u);
  EXPECT_GT(simulation.forked, 0u);
  EXPECT_GT(simulation.overdue, 0u);
  EXPECT_GT(simulation.engine->kv().events().count(KvEventKind::shared), 0u);
  EXPECT_GT(simulation.engine->kv().events().count(KvEventKind::copied), 0u);
  EXPECT_GT(simulation.engine->kv().events().count(KvEventKind::evicted), 0u);
  EXPECT_GE(simulation.engine->scheduler().preemptions(), GetParam().pool_tokens < 200 ? 20u : 0u);
  EXPECT_GE(simulation.accepted, GetParam().drafts ? 100u : 0u);
  EXPECT_GE(simulation.let_go, GetParam().budgets ? steps_wanted() / 20 : 0u);
  EXPECT_GE(simulation.counted_anew, GetParam().budgets ? steps_wanted() / 100 : 0u);
  if (GetParam().host_tokens > 0) {
    const HostTier::Stats host = simulation.engine->host()->stats();
    EXPECT_GT(host.loaded_pages, steps_wanted() / 40);
    EXPECT_GT(host.replaced_pages, steps_wanted() / 20);
    EXPECT_GT(host.kept_pages, steps_wanted() / 20);
  }
  RecordProperty("finished", std::to_string(simulation.finished));
  RecordProperty("preemptions", std::to_string(simulation.engine->scheduler().preemptions()));
}

INSTANTIATE_TEST_SUITE_P(
    Pools, EngineSimulation,
    testing::Values(Setting{"tiny", "llama3", false, 100}, Setting{"tiny_drafts", "llama3", true, 100},
                    Setting{"roomy", "llama3", false, 400}, Setting{"windows", "gemma3", false, 140},
                    Setting{"windows_drafts", "gemma3", true, 140},
                    Setting{"all_windows", "mistral", true, 140},
                    Setting{"tiny_ahead", "llama3", false, 100, When::at_once, 2},
                    Setting{"tiny_late", "llama3", true, 100, When::late, 1},
                    Setting{"tiny_late_ahead", "llama3", true, 100, When::late, 2},
                    Setting{"roomy_late_ahead", "llama3", false, 400, When::late, 2},
                    Setting{"windows_late_ahead", "gemma3", false, 140, When::late, 2},
                    Setting{"wide_windows", "gemma3", true, 140, When::at_once, 1, 16},
                    Setting{"narrow_windows", "gemma3", true, 140, When::late, 2, 2},
                    Setting{"states", "qwen3_5", false, 140, When::at_once, 1, 0, 0, 0, 12},
                    Setting{"states_drafts", "qwen3_5", true, 140, When::at_once, 1, 0, 0, 0, 8},
                    Setting{"states_few", "qwen3_5", true, 300},
                    Setting{"states_late_ahead", "qwen3_5", true, 140, When::late, 2, 0, 0, 0, 10},
                    Setting{"states_ahead", "qwen3_5", false, 140, When::late, 2, 0, 0, 0, 10},
                    Setting{"states_disk_ahead", "qwen3_5", false, 120, When::late, 2, 0, 0, 400, 6},
                    Setting{"states_disk", "qwen3_5", true, 120, When::late, 2, 0, 0, 400, 6},
                    Setting{"states_host", "qwen3_5", false, 120, When::late, 2, 0, 200, 0, 6},
                    Setting{"host", "llama3", true, 100, When::at_once, 1, 0, 300},
                    Setting{"host_late_ahead", "llama3", false, 100, When::late, 2, 0, 300},
                    Setting{"host_tiny", "llama3", true, 100, When::late, 2, 0, 40},
                    Setting{"host_windows", "gemma3", true, 140, When::late, 2, 2, 300},
                    Setting{"host_disk", "llama3", true, 100, When::late, 2, 0, 100, 400},
                    Setting{"budgets", "llama3", false, 100, When::at_once, 1, 0, 0, 0, 0, true},
                    Setting{"budgets_drafts", "llama3", true, 120, When::at_once, 1, 0, 0, 0, 0, true},
                    Setting{"budgets_late_ahead", "llama3", true, 140, When::late, 2, 0, 0, 0, 0, true},
                    Setting{"budgets_windows", "gemma3", true, 140, When::late, 2, 2, 0, 0, 0, true},
                    Setting{"budgets_states", "qwen3_5", true, 140, When::late, 2, 0, 0, 0, 10, true},
                    Setting{"budgets_host_disk", "llama3", true, 100, When::late, 2, 0, 100, 400, 0, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire
