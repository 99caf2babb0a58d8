#pragma once

#include <memory>

#include "backend/backend.h"

namespace quire {

// A device, and the host beside it for what the device's memory does not hold. Whoever knows of the two asks each for its own
// (`side`); what is asked of the whole the device does: the order, copies, draws.
class SplitBackend : public Backend {
 public:
  // REQUIRES: the host's backend is eager, and its memory is the host's.
  SplitBackend(std::unique_ptr<Backend> device, std::unique_ptr<Backend> host);

  using Backend::side;
  Backend& side(Side which) override { return which == Side::host ? *host_ : *device_; }

  BackendTraits traits() const override;
  size_t available_memory() const override { return device_->available_memory(); }
  size_t total_memory() const override { return device_->total_memory(); }
  std::unique_ptr<Yardstick> make_yardstick(const YardstickOptions& options) const override {
    return device_->make_yardstick(options);
  }
  Buffer allocate(size_t bytes) override { return device_->allocate(bytes); }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override { device_->copy(to, from, bytes); }
  Mark mark() override { return device_->mark(); }
  void wait(Mark mark) override { device_->wait(mark); }
  Buffer allocate_host(size_t bytes) override { return device_->allocate_host(bytes); }
  AsideMark copy_aside(std::span<const ByteCopy> copies) override { return device_->copy_aside(copies); }
  void order_after_aside(AsideMark mark) override { device_->order_after_aside(mark); }
  std::optional<double> aside_seconds(AsideMark mark) override { return device_->aside_seconds(mark); }
  void wait_aside(AsideMark mark) override { device_->wait_aside(mark); }
  void expect_weights(size_t bytes) override { device_->expect_weights(bytes); }
  Weight prepare(const Weight& weight, const WeightUse& use) override {
    return device_->prepare(weight, use);
  }
  void prepare_gated(Weight& gate, Weight& up, const WeightUse& use) override {
    device_->prepare_gated(gate, up, use);
  }
  size_t prepared_bytes(const MatrixView& weight, const WeightUse& use) const override {
    return device_->prepared_bytes(weight, use);
  }
  ActivationForm form_for(DType weight) const override { return device_->form_for(weight); }
  size_t activation_bytes(ActivationForm form, size_t width) const override {
    return device_->activation_bytes(form, width);
  }

  // The host may be the one who reads the tokens: it has to know them.
  void feed_drawn(std::span<TokenId> tokens, std::span<const DrawnToken> drawn,
                  std::span<const SampleResult> results) override;
  void begin_step(const BatchView& batch, std::span<const KvGroupView> kv) override {
    device_->begin_step(batch, kv);
  }
  void forget_step() override;
  void embed(const EmbedParams& params) override { device_->embed(params); }
  void norm_quantize(const NormQuantizeParams& params) override { device_->norm_quantize(params); }
  void project(const ProjectParams& params) override { device_->project(params); }
  void activate(const ActivateParams& params) override { device_->activate(params); }
  void rope_table(const RopeTableParams& params) override { device_->rope_table(params); }
  void rope_store(const RopeStoreParams& params) override { device_->rope_store(params); }
  void attend(const AttendParams& params) override { device_->attend(params); }
  void tap(const Tap& tap, const AttendParams& attend, std::span<float> values) override {
    device_->tap(tap, attend, values);
  }
  void expected_scores(const ExpectedScoresParams& params) override { device_->expected_scores(params); }
  void route_experts(const RouteExpertsParams& params) override { device_->route_experts(params); }
  void project_experts(const ProjectExpertsParams& params) override { device_->project_experts(params); }
  void logits(const LogitsParams& params) override { device_->logits(params); }
  void sample(std::span<const SampleParams> params, std::span<SampleResult> results) override {
    device_->sample(params, results);
  }

 private:
  std::unique_ptr<Backend> device_, host_;
};

}  // namespace quire
