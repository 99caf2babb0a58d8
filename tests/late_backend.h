#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "backend/backend.h"
#include "base/check.h"

namespace quire {

// Another backend's work, done late: what is asked for happens only when somebody waits for it, in the order in which it was
// asked for; copies aside later than all else, unless somebody waits for them or asks often enough. The device's memory cannot be touched by anybody else. Whoever forgets to wait reads what is not there yet;
// whoever reads or writes pages or activations by himself ends the test.
class LateBackend : public Backend {
 public:
  // Of so many draws, one is amended after the next step has begun with another token.
  explicit LateBackend(Backend& device, uint32_t amended_of = 0) : device_(device), amended_of_(amended_of) {}
  ~LateBackend() override { CHECK(memory_->empty() && asides_.empty()); }

  BackendTraits traits() const override {
    BackendTraits traits;
    traits.weight_scales = device_.traits().weight_scales;
    return traits;
  }
  Buffer allocate(size_t bytes) override {
    if (bytes == 0) return Buffer();
    void* address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(address != MAP_FAILED);
    const auto place = memory_->insert(memory_->end(), Memory{address, bytes});
    return Buffer(static_cast<std::byte*>(address), bytes, MemoryKind::device,
                  [all = memory_, place](std::byte* gone) {
                    ::munmap(gone, place->bytes);
                    all->erase(place);
                  });
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    later([=, this] { device_.copy(to, from, bytes); });
  }
  Mark mark() override { return asked_; }
  void wait(Mark mark) override {
    if (done_ >= mark) return;
    protect(PROT_READ | PROT_WRITE);
    while (done_ < mark) {
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      ++done_;
      work();
    }
    protect(PROT_NONE);
  }

  AsideMark copy_aside(std::span<const ByteCopy> copies) override {
    asides_.push_back({asked_, {copies.begin(), copies.end()}});
    return ++asides_asked_;
  }
  void order_after_aside(AsideMark mark) override {
    later([=, this] { make_asides(mark); });
  }
  std::optional<double> aside_seconds(AsideMark mark) override {
    if (asides_made_ < mark && done_ >= asides_.front().after && ++questions_ % kQuestions == 0) {
      protect(PROT_READ | PROT_WRITE);
      make_asides(asides_made_ + 1);
      protect(PROT_NONE);
    }
    return asides_made_ >= mark ? std::optional(0.0) : std::nullopt;
  }
  void wait_aside(AsideMark mark) override {
    while (asides_made_ < mark) {
      if (done_ < asides_.front().after) {
        wait(asides_.front().after);  // which may have made it
        continue;
      }
      protect(PROT_READ | PROT_WRITE);
      make_asides(asides_made_ + 1);
      protect(PROT_NONE);
    }
  }
  uint64_t asides_asked() const { return asides_asked_; }

  Weight prepare(const Weight& weight, const WeightUse& use) override { return device_.prepare(weight, use); }
  void prepare_gated(Weight& gate, Weight& up, const WeightUse& use) override {
    device_.prepare_gated(gate, up, use);
  }
  size_t prepared_bytes(const MatrixView& weight, const WeightUse& use) const override {
    return device_.prepared_bytes(weight, use);
  }
  ActivationForm form_for(DType weight) const override { return device_.form_for(weight); }
  size_t activation_bytes(ActivationForm form, size_t width) const override {
    return device_.activation_bytes(form, width);
  }

  void feed_drawn(std::span<TokenId> tokens, std::span<const DrawnToken> drawn,
                  std::span<const SampleResult> results) override {
    later([=, this] {
      device_.feed_drawn(tokens, drawn, results);
      for (const DrawnToken& one : drawn) {
        if (results[one.draw].amended) tokens[one.token] = results[one.draw].token == 0 ? 1 : 0;
      }
    });
  }
  void begin_step(const BatchView& batch, std::span<const KvGroupView> kv) override {
    later([=, this] { device_.begin_step(batch, kv); });
  }
  void embed(const EmbedParams& params) override {
    later([=, this] { device_.embed(params); });
  }
  void norm_quantize(const NormQuantizeParams& params) override {
    const auto copy = [](const Norm* norm) { return norm == nullptr ? Norm{} : *norm; };
    later([=, this, norm = copy(params.norm), branch_norm = copy(params.branch_norm)] {
      NormQuantizeParams now = params;
      if (now.norm != nullptr) now.norm = &norm;
      if (now.branch_norm != nullptr) now.branch_norm = &branch_norm;
      device_.norm_quantize(now);
    });
  }
  void project(const ProjectParams& params) override {
    const std::vector<Projection> projections(params.projections.begin(), params.projections.end());
    later([=, this, in = params.in] { device_.project({in, projections}); });
  }
  void activate(const ActivateParams& params) override {
    later([=, this] { device_.activate(params); });
  }
  void rope_table(const RopeTableParams& params) override {
    later([=, this] { device_.rope_table(params); });
  }
  void rope_store(const RopeStoreParams& params) override {
    const auto copy = [](const Norm* norm) { return norm == nullptr ? Norm{} : *norm; };
    later([=, this, query = copy(params.query_norm), key = copy(params.key_norm)] {
      RopeStoreParams now = params;
      if (now.query_norm != nullptr) now.query_norm = &query;
      if (now.key_norm != nullptr) now.key_norm = &key;
      device_.rope_store(now);
    });
  }
  void attend(const AttendParams& params) override {
    later([=, this] { device_.attend(params); });
  }
  void tap(const Tap& tap, const AttendParams& attend, std::span<float> values) override {
    later([=, this] { device_.tap(tap, attend, values); });
  }
  void rotate_keys(const RotateKeysParams& params) override {
    later([=, this] { device_.rotate_keys(params); });
  }
  void expected_scores(const ExpectedScoresParams& params) override {
    later([=, this] { device_.expected_scores(params); });
  }
  void split_heads(const SplitHeadsParams& params) override {
    later([=, this] { device_.split_heads(params); });
  }
  void choose_rows(const ChooseRowsParams& params) override {
    later([=, this] { device_.choose_rows(params); });
  }
  void choose_blocks(const ChooseBlocksParams& params) override {
    later([=, this] { device_.choose_blocks(params); });
  }
  void project_heads(const ProjectHeadsParams& params) override {
    later([=, this] { device_.project_heads(params); });
  }
  void convolve(const ConvolveParams& params) override {
    later([=, this] { device_.convolve(params); });
  }
  void delta_net(const DeltaNetParams& params) override {
    later([=, this] { device_.delta_net(params); });
  }
  void state_space(const StateSpaceParams& params) override {
    later([=, this] { device_.state_space(params); });
  }
  void selective_scan(const SelectiveScanParams& params) override {
    later([=, this] { device_.selective_scan(params); });
  }
  void route_experts(const RouteExpertsParams& params) override {
    later([=, this] { device_.route_experts(params); });
  }
  void project_experts(const ProjectExpertsParams& params) override {
    later([=, this] { device_.project_experts(params); });
  }
  void logits(const LogitsParams& params) override {
    later([=, this] { device_.logits(params); });
  }
  void sample(std::span<const SampleParams> params, std::span<SampleResult> results) override {
    later([=, this] {
      device_.sample(params, results);
      for (size_t i = 0; i < params.size() && amended_of_ > 0; ++i)
        results[i].amended = (params[i].position + params[i].seed) % amended_of_ == 0;
    });
  }

 private:
  struct Memory {
    void* address;
    size_t bytes;
  };
  struct Aside {
    Mark after;
    std::vector<ByteCopy> copies;
  };
  static constexpr uint32_t kQuestions = 3;  // of those, the last finds one more made
  void make_asides(AsideMark mark) {
    for (; asides_made_ < mark; ++asides_made_) {
      const Aside aside = std::move(asides_.front());
      asides_.pop_front();
      CHECK(aside.after <= done_);
      for (const ByteCopy& one : aside.copies) device_.copy(one.to, one.from, one.bytes);
    }
  }
  void later(std::function<void()> work) {
    waiting_.push_back(std::move(work));
    ++asked_;
  }
  void protect(int how) const {
    for (const Memory& one : *memory_) CHECK(::mprotect(one.address, one.bytes, how) == 0);
  }

  Backend& device_;
  uint32_t amended_of_;
  std::shared_ptr<std::list<Memory>> memory_ = std::make_shared<std::list<Memory>>();
  std::list<std::function<void()>> waiting_;
  Mark asked_ = 0, done_ = 0;
  std::list<Aside> asides_;
  AsideMark asides_asked_ = 0, asides_made_ = 0;
  uint32_t questions_ = 0;
};

}  // namespace quire
