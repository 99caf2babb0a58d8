#pragma once

#include "backend/backend.h"

namespace quire {

// Computes nothing: what is left is the engine's own time.
class IdleBackend : public Backend {
 public:
  Buffer allocate(size_t bytes) override { return Buffer(bytes); }
  Weight prepare(const Weight& weight, const WeightUse&) override { return weight; }
  size_t prepared_bytes(const MatrixView&, const WeightUse&) const override { return 0; }
  ActivationForm form_for(DType) const override { return ActivationForm::f32; }
  size_t activation_bytes(ActivationForm, size_t width) const override { return width * sizeof(float); }
  void begin_step(const BatchView&, std::span<const KvGroupView>) override {}
  void embed(const EmbedParams&) override {}
  void norm_quantize(const NormQuantizeParams&) override {}
  void project(const ProjectParams&) override {}
  void activate(const ActivateParams&) override {}
  void rope_table(const RopeTableParams&) override {}
  void rope_store(const RopeStoreParams&) override {}
  void attend(const AttendParams&) override {}
  void tap(const Tap&, const AttendParams&, std::span<float>) override {}
  void expected_scores(const ExpectedScoresParams&) override {}
  void route_experts(const RouteExpertsParams&) override {}
  void project_experts(const ProjectExpertsParams&) override {}
  void logits(const LogitsParams&) override {}
  void sample(std::span<const SampleParams> params, std::span<SampleResult> results) override {
    for (size_t i = 0; i < params.size(); ++i) results[i].token = TokenId(100 + params[i].position % 100);
  }
};

}  // namespace quire
