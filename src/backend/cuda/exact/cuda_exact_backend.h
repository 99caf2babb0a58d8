#pragma once

#include "backend/cuda/cuda_backend.h"

namespace quire::cuda {

// The reference on a GPU (`--kernels exact`): weights dequantized to f32, activations f32, sums of doubles. Slow; for comparisons.
class CudaExactBackend : public CudaBackend {
 public:
  using CudaBackend::CudaBackend;

  BackendTraits traits() const override;
  Weight prepare(const Weight& weight, const WeightUse& use) override;
  void prepare_gated(Weight& gate, Weight& up, const WeightUse& use) override;
  size_t prepared_bytes(const MatrixView& weight, const WeightUse& use) const override;
  ActivationForm form_for(DType) const override { return ActivationForm::f32; }

  void norm_quantize(const NormQuantizeParams& params) override;
  void project(const ProjectParams& params) override;
  void activate(const ActivateParams& params) override;
  void rope_store(const RopeStoreParams& params) override;
  void attend(const AttendParams& params) override;
  void project_heads(const ProjectHeadsParams& params) override;
  void route_experts(const RouteExpertsParams& params) override;
  void project_experts(const ProjectExpertsParams& params) override;
  void logits(const LogitsParams& params) override;

 private:
  void multiply(const Rows& in, const Weight& weight, const Weight& bias, const Rows& out);

  DeviceBuffer exact_query_, exact_experts_;
};

}  // namespace quire::cuda
