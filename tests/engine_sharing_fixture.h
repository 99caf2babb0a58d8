#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "engine/drafts/model_drafter.h"
#include "engine/drafts/suffix_drafter.h"
#include "grammar/grammar_compiler.h"
#include "split_case.h"
#include "synth_file.h"

// Many requests of every kind, and engines of every setting that answer them.

namespace quire {

struct SharingCase {
  std::string name;
  std::string model;  // a golden's name, or synth:TYPE
  CpuKernels (*kernels)() = exact_kernels;
  KvFormats formats = {};
  uint32_t window_pages = 0;  // tokens of a page of layers with a window, where it is another size
  Placement placement = {};   // where it is not all the device's
};

inline void PrintTo(const SharingCase& c, std::ostream* out) {
  *out << c.name;
}

inline CpuKernels fastest_kernels() {
  return kernels_named("auto");
}

class EngineSharing : public testing::TestWithParam<SharingCase> {
 protected:
  static constexpr uint32_t kRequests = 200, kContext = 96;
  using Result = std::pair<std::vector<TokenId>, std::vector<float>>;  // tokens and log-probabilities

  struct Setting {
    uint32_t sequences = 16, chunk = 24;
    bool sharing = true;
    uint32_t pool_tokens = 0;  // 0: room for all
    bool reversed = false, cancels = false;
    enum class Drafts { none, lookup, suffix, model } drafts = Drafts::none;
    uint32_t disk_tokens = 0;  // 0: no disk
    DiskIo disk_io = {};
    uint32_t host_tokens = 0;  // 0: no host tier
    bool salts = false;        // a few, by request
    bool late = false;         // what the backend is asked for happens when somebody waits for it
    uint32_t pipeline = 1;
    bool amends = false;  // and draws are settled after the next step has begun
  };

  EngineSharing()
      : model_(model_path(GetParam().model), backend(CpuDevice::eager), GetParam().placement),
        requests_(mixed_requests(model_.spec.vocab)) {
    set_window_pages(model_.spec, GetParam().window_pages);
  }

  Engine make_engine(const Setting& setting) {
    EngineOptions options{
        .context = kContext, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.page_tokens = 4;
    options.sharing = setting.sharing;
    options.kv_formats = GetParam().formats;
    options.pipeline = setting.pipeline;
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, options.kv_formats), 4);
    if (setting.pool_tokens > 0)
      options.kv_bytes = kv_bytes(layout, pages_for(layout, setting.pool_tokens, setting.chunk, 1));
    if (setting.disk_tokens > 0) {
      options.disk_bytes = kv_bytes(layout, std::vector(layout.groups.size(), setting.disk_tokens / 4));
      options.disk_folder = testing::TempDir();
      options.disk_patience = 1e9;  // whatever it takes: all that can come back does
      options.disk_io = setting.disk_io;
    }
    if (setting.host_tokens > 0) {
      options.host_bytes = kv_bytes(layout, std::vector(layout.groups.size(), setting.host_tokens / 4));
      options.host_patience = 1e9;
    }
    // Whether guesses pay is not known then, and it always tries.
    if (setting.drafts != Setting::Drafts::none) options.now = [] { return Clock::time_point(); };
    std::unique_ptr<Drafter> drafter;
    if (setting.drafts == Setting::Drafts::lookup) drafter = std::make_unique<LookupDrafter>();
    if (setting.drafts == Setting::Drafts::suffix) drafter = std::make_unique<SuffixDrafter>();
    // The model as its own draft: always right when greedy, and it goes through every step of drafting.
    if (setting.drafts == Setting::Drafts::model)
      drafter = std::make_unique<ModelDrafter>(engine_model(setting), model_.spec, options);
    EngineModel model = engine_model(setting);
    model.repeat_request = {5, 6, 7};
    return Engine(model, options, std::move(drafter));
  }

  EngineModel engine_model(const Setting& setting) {
    EngineModel model = model_.engine_model();
    const bool is_split = GetParam().placement != Placement{};
    if (setting.late) model.backend = is_split ? late_split_.get() : &late_;
    if (setting.amends) model.backend = is_split ? amending_split_.get() : &amending_;
    return model;
  }

  static std::unique_ptr<Backend> backend(CpuDevice device) {
    if (GetParam().placement != Placement{}) return split_of_cpus(GetParam().kernels(), 2, device);
    return std::make_unique<CpuBackend>(GetParam().kernels(), 2);
  }

  std::vector<Result> answers(const Setting& setting) {
    Engine engine = make_engine(setting);
    std::vector<SequenceId> ids(requests_.size());
    for (size_t i = 0; i < requests_.size(); ++i) {
      const size_t which = setting.reversed ? requests_.size() - 1 - i : i;
      Request request = requests_[which];
      if (setting.salts) request.salt = {.key = which % 3, .text = which % 5 == 0 ? which : 0};
      ids[which] = engine.submit(std::move(request));
      if (setting.cancels && i % 3 == 0) {
        const SequenceId victim = engine.submit(requests_[(i * 7) % requests_.size()]);
        engine.step();
        engine.step();
        engine.cancel(victim);
      }
    }
    unequal_steps_ = 0;
    while (engine.step()) {
      for (const auto& sequence : engine.scheduler().running()) {
        if (has_unequal_heads(engine.kv(), sequence->table)) ++unequal_steps_;
      }
    }
    engine.check_invariants();
    EXPECT_EQ(engine.kv().stats().held_pages, 0u);
    preemptions_ = engine.scheduler().preemptions();
    shared_ = engine.kv().events().count(KvEventKind::shared);
    pruned_pages_ = engine.kv().events().count(KvEventKind::pruned);
    loaded_ = engine.kv().events().count(KvEventKind::loaded);
    fetched_ = engine.kv().events().count(KvEventKind::fetched);
    if (engine.host() != nullptr) host_ = engine.host()->stats();
    if (engine.disk() != nullptr) disk_ = engine.disk()->stats();
    accepted_ = 0;
    std::vector<Result> results;
    for (SequenceId id : ids) {
      const Answer answer = engine.take_answer(id).value();
      accepted_ += answer.account.accepted;
      results.emplace_back(answer.tokens, answer.logprobs);
    }
    return results;
  }

  // Some head of it has more rows than another.
  static bool has_unequal_heads(const KvCache& kv, const PageTable& table) {
    const PageTable* tables[] = {&table};
    return std::ranges::any_of(kv.flatten(tables).groups,
                               [](const KvTables::Group& group) { return !group.unequal.empty(); });
  }

  const std::vector<Result>& alone() {
    if (!alone_.empty()) return alone_;
    for (const Request& request : requests_) {
      Engine engine = make_engine({.sequences = 1, .chunk = kContext, .sharing = false});
      const Answer answer = engine.run(request);
      alone_.emplace_back(answer.tokens, answer.logprobs);
    }
    return alone_;
  }

  uint32_t first_full_layer() const {
    const auto found = std::ranges::find(model_.spec.layers, 0u, &LayerSpec::window);
    return uint32_t(found - model_.spec.layers.begin());
  }

  static std::vector<Request> mixed_requests(uint32_t vocab) {
    std::mt19937 random(3);
    std::vector<Request> requests;
    for (uint32_t i = 0; i < kRequests; ++i) {
      Request request;
      const uint32_t family = random() % 5, length = 1 + random() % 60;
      for (uint32_t p = 0; p < length; ++p) request.prompt.push_back((family * 31 + p * 7 + p * p) % vocab);
      if (random() % 3 == 0) request.prompt[random() % length] = random() % vocab;
      request.max_tokens = 1 + random() % 30;
      request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f,
                          .top_k = i % 3 == 0 ? 20u : 0u,
                          .top_p = i % 5 == 0 ? 0.9f : 1.0f,
                          .repetition_penalty = i % 7 == 0 ? 1.3f : 1.0f,
                          .presence_penalty = i % 11 == 0 ? 0.5f : 0.0f,
                          .seed = i};
      request.logprobs = true;
      request.priority = i % 13 == 0 ? 1 : 0;
      request.client = i % 2 == 0 ? "even" : "odd";
      if (i % 8 == 3) request.grammar = grammar_of(i / 8, vocab);
      requests.push_back(std::move(request));
    }
    return requests;
  }

  // Some that go on for ever, and some that must end.
  static std::shared_ptr<grammar::Grammar> grammar_of(uint32_t which, uint32_t vocab) {
    std::vector<std::string> bytes;
    for (uint32_t token = 0; token < vocab; ++token) bytes.emplace_back(1 + token % 3, char('a' + token % 5));
    static const char* const kPatterns[] = {"([a-c]+d{1,2}e?)*", "(ab|b+c|de)+", "a{1,9}[b-e]{2}",
                                            "(aabbccddee)*"};
    grammar::GrammarCompiler compiler(std::move(bytes));
    return compiler.compile({grammar::GrammarSource::Kind::regex, kPatterns[which % 4]});
  }

  BareModel model_;
  LateBackend late_{model_.backend}, amending_{model_.backend, 3};
  std::unique_ptr<Backend> late_split_ = backend(CpuDevice::late),
                           amending_split_ = backend(CpuDevice::amending);
  std::vector<Request> requests_;
  std::vector<Result> alone_;
  uint64_t preemptions_ = 0, shared_ = 0, pruned_pages_ = 0, accepted_ = 0, loaded_ = 0, fetched_ = 0,
           unequal_steps_ = 0;
  HostTier::Stats host_;
  DiskTier::Stats disk_;
};

}  // namespace quire
