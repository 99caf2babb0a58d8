// A model whose blocks are divided between a device and the host beside it.
#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "dying_backend.h"
#include "golden_model.h"
#include "runner/runner.h"
#include "split_case.h"

namespace quire {
namespace {

// A device that counts what crosses.
class CountingCpu : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    copied_bytes += bytes;
    ++copies;
    CpuBackend::copy(to, from, bytes);
  }
  void begin_step(const BatchView& batch, std::span<const KvGroupView> kv) override {
    ++steps;
    CpuBackend::begin_step(batch, kv);
  }
  size_t copied_bytes = 0, copies = 0, steps = 0;
};

std::vector<TokenId> some_tokens(size_t count, uint32_t vocab) {
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back((i * i * 7 + i * 3 + 1) % vocab);
  return tokens;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Split, EveryGoldenModelGivesTheLogitsOfTheWholeWhereverItIsDivided) {
  for (const std::string& name : golden_names()) {
    BareModel whole(golden_folder(name), exact_kernels(), 1);
    const bool has_states = std::ranges::any_of(whole.spec.layers, &LayerSpec::is_recurrent);
    EXPECT_EQ(can_be_divided(whole.spec),
              !has_states && whole.spec.layer_inputs.width == 0 && !whole.spec.hyper)
        << name;
    if (!can_be_divided(whole.spec)) continue;
    const std::vector<TokenId> tokens = some_tokens(40, whole.spec.vocab);
    const std::vector<float> expected = all_logits(whole, tokens, 16);
    const auto layers = uint32_t(whole.spec.layers.size());
    for (uint32_t on_device = 0; on_device <= layers; ++on_device) {
      for (const uint32_t experts : {0u, 1u, 2u}) {
        if (experts > expert_layers(whole.spec)) continue;
        for (const CpuDevice device : {CpuDevice::eager, CpuDevice::late}) {
          BareModel split(golden_folder(name), split_of_cpus(exact_kernels(), 1, device),
                          {on_device, experts});
          EXPECT_TRUE(same_bits(all_logits(split, tokens, 16), expected))
              << name << ", " << on_device << " layers on the device, experts of " << experts << " beside it";
        }
      }
    }
  }
}

TEST(Split, TheStreamOfTheLastLayersCrossesOnceInAStepAndNothingElseDoes) {
  auto device = std::make_unique<CountingCpu>(exact_kernels(), 1);
  CountingCpu& counts = *device;
  BareModel model(
      golden_folder("gemma3"),
      std::make_unique<SplitBackend>(std::move(device), std::make_unique<CpuBackend>(exact_kernels(), 1)),
      {.device_layers = 2});
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, KvFormat::f16));
  KvCache kv(layout, pages_for(layout, 64, 64, 1));
  Runner runner(model.engine_model().runner_model(), layout, kv.pages_per_group());
  PageTable table = kv.make_table();
  const std::vector<TokenId> tokens = some_tokens(12, model.spec.vocab);
  ASSERT_TRUE(kv.reserve(table, 12));
  StepInput input;
  input.add(tokens, 0, StepInput::Logits::last);
  const PageTable* tables[] = {&table};
  input.tables = kv.flatten(tables);
  input.add_draw({});
  EXPECT_EQ(crossings(model.spec), 1u);
  EXPECT_EQ(runner.collect(runner.launch(std::move(input))).draws.size(), 1u);
  EXPECT_EQ(counts.copies, 1u);
  EXPECT_EQ(counts.copied_bytes, 12 * model.spec.dim * sizeof(float));
  EXPECT_EQ(counts.steps, 1u);
}

TEST(Split, ExpertsBesideTheDeviceCostTwoCrossingsForEachOfTheirLayers) {
  BareModel model(golden_folder("qwen3_moe"), exact_kernels(), 1);
  place(model.spec, {.host_experts = 1});
  EXPECT_EQ(crossings(model.spec), 2u);
  place(model.spec, {.host_experts = 2});
  EXPECT_EQ(crossings(model.spec), 4u);
  place(model.spec, {});
  EXPECT_EQ(crossings(model.spec), 0u);
  EXPECT_FALSE(is_split(model.spec));
}

TEST(Split, PagesOfAHostLayerAreInAGroupOfTheirOwnInTheHostsMemory) {
  BareModel model(golden_folder("gemma3"), exact_kernels(), 1);
  const size_t whole = make_kv_layout(kv_shapes(model.spec, KvFormat::f16)).groups.size();
  place(model.spec, {.device_layers = 2});
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, KvFormat::f16));
  EXPECT_GT(layout.groups.size(), whole);
  for (size_t l = 0; l < model.spec.layers.size(); ++l) {
    for (const KvLayout::Place& place : layout.places[l])
      EXPECT_EQ(layout.groups[place.group].side, l < 2 ? Side::host : Side::device) << l;
  }
}

TEST(Split, ALayerThatReadsAnothersRowsIsWhereThoseAre) {
  BareModel model(golden_folder("llama3"), exact_kernels(), 1);
  model.spec.layers[1].gqa().shares_with = 0;
  place(model.spec, {.device_layers = 1});
  EXPECT_EQ(model.spec.layers[1].sides.mixer, Side::host);
  EXPECT_EQ(model.spec.layers[1].sides.mlp, Side::device);
}

TEST(Split, TwoPlacementsHaveTwoMarksAndAWholeModelHasNone) {
  BareModel model(golden_folder("gemma3"), exact_kernels(), 1);
  EXPECT_EQ(placement_mark(model.spec), "");
  place(model.spec, {.device_layers = 3});
  const std::string one = placement_mark(model.spec);
  place(model.spec, {.device_layers = 2});
  EXPECT_NE(placement_mark(model.spec), one);
  EXPECT_EQ(placement_mark(model.spec), "/host:0-1;0-1");
}

TEST(Split, ADeviceThatIsLostInTheMiddleOfAStepEndsTheEngineButNotTheProcess) {
  auto device = std::make_unique<DyingBackend>(exact_kernels(), 1);
  DyingBackend& dying = *device;
  BareModel model(
      golden_folder("llama3"),
      std::make_unique<SplitBackend>(std::move(device), std::make_unique<CpuBackend>(exact_kernels(), 1)),
      {.device_layers = 1});
  Engine engine(model.engine_model(), {.context = 64, .max_sequences = 2});
  Request request;
  request.prompt = some_tokens(20, model.spec.vocab);
  request.max_tokens = 30;
  engine.submit(request);
  engine.submit(request);
  engine.submit(request);  // waits
  ASSERT_TRUE(engine.step());
  dying.die();
  EXPECT_THROW(engine.step(), DeviceLost);
  EXPECT_EQ(engine.lost(), "the GPU is lost to this process");
  EXPECT_TRUE(engine.scheduler().idle());
  EXPECT_EQ(engine.kv().stats().held_pages, 0u);
  EXPECT_THROW(engine.step(), DeviceLost);
  EXPECT_THROW(engine.submit(request), DeviceLost);
  engine.check_invariants();
}

}  // namespace
}  // namespace quire
