#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/pinned_memory.h"
#include "backend/cuda/sampling/sample_kernels.h"
#include "backend/sample.h"
#include "tensor/tensor_view.h"

namespace quire::cuda {

// Draws tokens from logits that are on the device: the CPU's tokens and log-probabilities, bit for bit. What cannot be settled
// there is left to the CPU, which is given the row: rare options (typical, tokens that a grammar forbids, watched tokens, a token twice in a list, more than
// kMostTopLogprobs), and results whose last bit depends on the order in which the CPU adds, which the device notices:
//
//   a winner whose lead is smaller than the error of two logarithms, or that stands where top-p may cut or not
//   a log-probability whose rounding to f32 depends on it
//
// A sampler has memory for some rows of one vocabulary. One thread and stream at a time.
class Sampler {
 public:
  static constexpr uint32_t kMostTopLogprobs = 32;
  static constexpr uint32_t kMostVocabulary = 1u << 18;

  Sampler(uint32_t rows, uint32_t vocabulary);

  uint32_t rows() const { return rows_; }
  uint32_t vocabulary() const { return vocabulary_; }

  // Starts drawing. `logits` are the device's rows; those that `params` name are not read. Returns where the outcomes will be
  // when the stream has come so far.
  struct Started {
    PinnedMemory::Block outcomes, uploaded;  // both must stay until then
    const float* kept;
  };
  Started start(const Rows& logits, std::span<const SampleParams> params, PinnedMemory& pinned,
                cudaStream_t stream);
  // What came out, and the rows that are left to the CPU, which are amended. REQUIRES: the stream has come so far, and one other
  // draw has been started since at the most.
  void finish(std::span<const SampleParams> params, const Started& started, std::span<SampleResult> results);
  // What was drawn last, on the device.
  SampleOutcome* outcomes() const { return outcomes_.as<SampleOutcome>(); }

  // Both, one after the other.
  void sample(const Rows& logits, std::span<const SampleParams> params, std::span<SampleResult> results,
              cudaStream_t stream);

  // Rows of the last finish that the CPU was given.
  uint32_t rows_left_to_cpu() const { return rows_left_to_cpu_; }

 private:
  PinnedMemory::Block upload(std::span<const SampleParams> params, PinnedMemory& pinned, cudaStream_t stream);

  uint32_t rows_, vocabulary_;
  CpuBackend cpu_;
  uint32_t rows_left_to_cpu_ = 0;
  Stream copies_;         // which do not wait for the step that runs
  DeviceBuffer kept_[2];  // of two draws in turn, [rows, vocabulary]
  uint32_t turn_ = 0;
  DeviceBuffer changed_;  // logits with bias and penalties, [rows, vocabulary]
  DeviceBuffer plans_, states_, parts_, outcomes_;
  DeviceBuffer lists_;  // biases and seen tokens of all rows; grown on demand
};

}  // namespace quire::cuda
