#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "model/synth.h"
#include "model/type_mix.h"

namespace quire {
namespace {

// Eight bytes for each value.
size_t wide_panel_bytes(size_t cols) {
  return kPanelRows * cols * 8;
}
void pack_nothing(const MatrixView&, size_t, std::byte*) {}

TEST(MemoryPlan, CountsMatricesAsTheKernelSetKeepsThem) {
  const std::shared_ptr<ModelFile> file = synth_head(synth_shape("llama-1b"), TypeMix("q4_0"));
  const ModelSpec spec = read_model_spec(*file);
  const EngineOptions options{.context = 512};
  CpuKernels kernels = scalar_kernels();
  const MemoryPlan as_they_are = plan_memory(*file, spec, options, CpuBackend(kernels, 1));
  kernels.panels[size_t(DType::q4_0)] = {.panel_bytes = wide_panel_bytes, .pack = pack_nothing};
  const MemoryPlan wide = plan_memory(*file, spec, options, CpuBackend(kernels, 1));

  size_t more = 0;
  for (const TensorEntry& tensor : file->tensors()) {
    if (tensor.dtype != DType::q4_0 || tensor.name == "token_embd.weight") continue;
    more += 8 * tensor.shape[0] * tensor.shape[1] - tensor.bytes;
  }
  ASSERT_GT(more, 0u);
  EXPECT_EQ(wide.weights, as_they_are.weights + more);
  EXPECT_EQ(wide.kv, as_they_are.kv);
  EXPECT_EQ(wide.scratch, as_they_are.scratch);
}

TEST(MemoryPlan, GrowsWithTheContextByWhatTheCacheTakes) {
  const std::shared_ptr<ModelFile> file = synth_head(synth_shape("llama-1b"), TypeMix("q4_0"));
  const ModelSpec spec = read_model_spec(*file);
  const MemoryPlan small = plan_memory(*file, spec, {.context = 1024}, CpuBackend(scalar_kernels(), 1));
  const MemoryPlan large = plan_memory(*file, spec, {.context = 2048}, CpuBackend(scalar_kernels(), 1));
  const size_t per_token = make_kv_layout(kv_shapes(spec, KvFormats())).bytes_per_token();
  EXPECT_EQ(large.kv - small.kv, 1024 * per_token);
  EXPECT_EQ(large.weights, small.weights);
  EXPECT_EQ(large.scratch, small.scratch) << "a step has as many tokens";
  EXPECT_EQ(small.total(), small.weights + small.kv + small.scratch);
}

TEST(MemoryPlan, HasRowsForEveryThreadAndEverySequence) {
  const std::shared_ptr<ModelFile> file = synth_head(synth_shape("llama-1b"), TypeMix("q4_0"));
  const ModelSpec spec = read_model_spec(*file);
  const EngineOptions one{.context = 1024};
  EngineOptions many = one;
  many.max_sequences = 16;
  const size_t alone = plan_memory(*file, spec, one, CpuBackend(scalar_kernels(), 1)).scratch;
  EXPECT_GT(plan_memory(*file, spec, one, CpuBackend(scalar_kernels(), 8)).scratch, alone);
  EXPECT_GE(plan_memory(*file, spec, many, CpuBackend(scalar_kernels(), 1)).scratch,
            alone + 15 * sizeof(float) * spec.vocab)
      << "each draws from logits of its own";
}

TEST(KvRoom, HoldsAsManyContextsAsTheBytesHave) {
  const std::shared_ptr<ModelFile> file = synth_head(synth_shape("llama-1b"), TypeMix("q4_0"));
  const ModelSpec spec = read_model_spec(*file);
  constexpr uint32_t kContext = 4096;
  const KvRoom one = kv_room(spec, KvFormats(), kContext, 1);
  EXPECT_EQ(one.sequence_bytes, kContext * one.bytes_per_token);
  const KvRoom room = kv_room(spec, KvFormats(), kContext, 3 * one.sequence_bytes);
  EXPECT_DOUBLE_EQ(room.sequences, 3);
  EXPECT_EQ(room.tokens, 3 * kContext);
  const KvRoom smaller = kv_room(spec, KvFormats::parse("int8"), kContext, 3 * one.sequence_bytes);
  EXPECT_LT(smaller.bytes_per_token, one.bytes_per_token);
  EXPECT_GT(smaller.tokens, room.tokens);
}

}  // namespace
}  // namespace quire
