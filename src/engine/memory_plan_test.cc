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

}  // namespace
}  // namespace quire
