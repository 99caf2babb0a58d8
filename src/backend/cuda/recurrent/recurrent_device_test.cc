#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_case.h"
#include "backend/cuda/matmul/activation_layout.h"
#include "tensor/float16.h"

namespace quire::cuda {
namespace {

std::vector<float> noise(size_t count, uint32_t seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random) * size;
  return values;
}

Weight weight_of(const std::vector<float>& values, size_t rows = 1) {
  return {{reinterpret_cast<const std::byte*>(values.data()), DType::f32, rows, values.size() / rows},
          nullptr};
}

// A step of three runs on both sides: a new sequence, one token in the middle of one, and some that leave a state on their way. Two
// leave their last where their first was.
class Recurrent : public DeviceTest {
 protected:
  static constexpr uint32_t kTokens = 58, kPages = 9;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    gpu_ = std::make_unique<CudaBackend>(0);
    gpu_->prepare(weight_of(some_product_, 64), {WeightUse::product});
  }

  // `streams`: of the layer that is asked for.
  void begin(const std::vector<KvStream>& streams) {
    layout_ = make_kv_layout(std::vector<KvLayer>(2, KvLayer(streams.begin(), streams.end())), 16);
    const std::vector<float> numbers = noise(kPages * layout_.groups[0].page_bytes / sizeof(float), 1);
    pages_.resize(numbers.size() * sizeof(float));
    std::memcpy(pages_.data(), numbers.data(), pages_.size());
    device_pages_ = gpu_->allocate(pages_.size());
    gpu_->copy(device_pages_.data(), pages_.data(), pages_.size());
    const auto view = [&](std::byte* pages) -> KvGroupView {
      return {.layout = &layout_.groups[0],
              .pages = pages,
              .page_count = kPages,
              .page_ids = page_ids_,
              .table_begin = table_begin_,
              .state_rows = state_rows_};
    };
    cpu_views_ = {view(pages_.data())};
    gpu_views_ = {view(device_pages_.data())};
    cpu_.begin_step(batch(), cpu_views_);
    gpu_->begin_step(batch(), gpu_views_);
    kept_.clear();
    weights_.clear();
  }
  BatchView batch() const {
    return {.tokens = ids_, .positions = ids_, .run_of_token = run_of_, .runs = runs_, .logit_rows = {}};
  }
  KvView cpu_view(uint32_t stream) const { return {&cpu_views_[0], &layout_.groups[0].layers[at(stream)]}; }
  KvView gpu_view(uint32_t stream) const { return {&gpu_views_[0], &layout_.groups[0].layers[at(stream)]}; }
  uint32_t at(uint32_t stream) const { return layout_.places[1][stream].slot; }

  // The same numbers in the GPU's memory.
  float* there(const std::vector<float>& values) {
    kept_.push_back(gpu_->allocate(values.size() * sizeof(float)));
    gpu_->copy(kept_.back().data(), reinterpret_cast<const std::byte*>(values.data()),
               values.size() * sizeof(float));
    return kept_.back().as<float>();
  }
  Weight there(const Weight& weight) {
    return weights_.emplace_back(gpu_->prepare(weight, {WeightUse::vector}));
  }
  std::vector<float> back(const float* values, size_t count) {
    std::vector<float> result(count);
    gpu_->copy(reinterpret_cast<std::byte*>(result.data()), reinterpret_cast<const std::byte*>(values),
               count * sizeof(float));
    gpu_->wait(gpu_->mark());
    return result;
  }
  // As Activation: f32, and what a product reads.
  Activation activation_there(size_t width) {
    Activation result;
    result.f32 = {there(std::vector<float>(kTokens * width)), kTokens, width, width};
    result.forms |= ActivationForm::bf16;
    kept_.push_back(gpu_->allocate(kTokens * gpu_->activation_bytes(ActivationForm::bf16, width)));
    result.data[size_t(ActivationForm::bf16)] = kept_.back().data();
    return result;
  }
  void expect_rounded(const Activation& there, const std::vector<float>& rows) {
    const size_t bytes = kTokens * gpu_->activation_bytes(ActivationForm::bf16, there.f32.width);
    std::vector<uint8_t> seen(bytes);
    gpu_->copy(reinterpret_cast<std::byte*>(seen.data()), there.data[size_t(ActivationForm::bf16)], bytes);
    gpu_->wait(gpu_->mark());
    size_t wrong = 0;
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t c = 0; c < round_up(uint32_t(there.f32.width), kBlockK); ++c) {
        uint16_t bits;
        std::memcpy(&bits, &seen[activation_place(kTokens, t, c)], sizeof(bits));
        wrong += bits != (c < there.f32.width ? f32_to_bf16(rows[t * there.f32.width + c]) : 0);
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
  void expect_the_cpus_states() {
    std::vector<std::byte> seen(pages_.size());
    gpu_->copy(seen.data(), device_pages_.data(), seen.size());
    gpu_->wait(gpu_->mark());
    EXPECT_TRUE(seen == pages_) << "states";
  }
  static void expect_the_bits(const std::vector<float>& seen, const std::vector<float>& wanted) {
    ASSERT_EQ(seen.size(), wanted.size());
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      if (std::memcmp(&seen[i], &wanted[i], 4) != 0 && wrong++ == 0) first = i;
    }
    EXPECT_EQ(wrong, 0u) << "of " << seen.size() << ", first at " << first << ": " << seen[first] << " for "
                         << wanted[first];
  }

  std::vector<float> some_product_ = noise(64 * 128, 99);
  CpuBackend cpu_{scalar_kernels(), 2};
  std::unique_ptr<CudaBackend> gpu_;
  KvLayout layout_;
  std::vector<std::byte> pages_;
  Buffer device_pages_;
  std::vector<KvGroupView> cpu_views_, gpu_views_;
  std::vector<Buffer> kept_;
  std::vector<Weight> weights_;
  const std::vector<uint32_t> ids_ = std::vector<uint32_t>(kTokens, 1);
  const std::vector<TokenRun> runs_ = {{0, 37, 0}, {37, 1, 50}, {38, 20, 10}};
  const std::vector<uint32_t> run_of_ = [] {
    std::vector<uint32_t> of(kTokens, 0);
    of[37] = 1;
    std::fill(of.begin() + 38, of.end(), 2);
    return of;
  }();
  const std::vector<uint32_t> page_ids_ = {kNoPage, 3, 4, 5, 5, 6, 7, 6}, table_begin_ = {0, 3, 5},
                              state_rows_ = {0, 16, 37, 0, 51, 0, 12, 30};
};

KvStream states(uint32_t heads, uint32_t values) {
  return {
      .kv_heads = heads, .key_dim = values, .key_format = KvFormat::f32, .state = true, .own_format = true};
}

TEST_F(Recurrent, ConvolveToTheCpusBits) {
  struct Case {
    uint32_t span, channels;
    bool has_bias, has_function;
  };
  for (const Case& test : {Case{4, 150, false, true}, Case{3, 128, true, false}, Case{2, 5, true, true},
                           Case{7, 300, false, false}}) {
    SCOPED_TRACE(test.span);
    const uint32_t channels = test.channels, wide = channels + 7;
    begin({states(1, (test.span - 1) * channels)});
    std::vector<float> in = noise(kTokens * wide, 2), out(kTokens * channels);
    const std::vector<float> weight = noise(channels * test.span, 3), bias = noise(channels, 4);
    const auto params = [&](float* from, float* to, const Weight& weights, const Weight& offsets,
                            const KvView& view) -> ConvolveParams {
      return {.in = Rows{from, kTokens, wide, wide}.columns(3, channels),
              .out = {to, kTokens, channels, channels},
              .span = test.span,
              .weight = weights,
              .bias = test.has_bias ? offsets : Weight{},
              .function = test.has_function ? std::optional(Gate{}) : std::nullopt,
              .inputs = view};
    };
    cpu_.convolve(params(in.data(), out.data(), weight_of(weight, channels), weight_of(bias), cpu_view(0)));
    float* seen = there(out);
    gpu_->convolve(
        params(there(in), seen, there(weight_of(weight, channels)), there(weight_of(bias)), gpu_view(0)));
    expect_the_bits(back(seen, out.size()), out);
    expect_the_cpus_states();
  }
}

struct DeltaCase {
  uint32_t key_heads, value_heads, key_dim, value_dim;
  KeyOrder order = KeyOrder::grouped;
  bool of_keys = false, together = false;
};

TEST_F(Recurrent, GoThroughDeltaNetsWithTheCpusBits) {
  for (const DeltaCase& test :
       {DeltaCase{2, 4, 16, 24}, DeltaCase{2, 4, 20, 40, KeyOrder::tiled}, DeltaCase{2, 6, 128, 128},
        DeltaCase{2, 4, 64, 32, KeyOrder::grouped, false, true},
        DeltaCase{3, 3, 128, 128, KeyOrder::grouped, true}, DeltaCase{2, 2, 8, 8, KeyOrder::grouped, true},
        DeltaCase{1, 2, 256, 64}}) {
    SCOPED_TRACE(test.key_dim);
    const uint32_t heads = test.value_heads, keys = test.key_heads * test.key_dim,
                   values = heads * test.value_dim;
    const uint32_t width = 2 * keys + values, decays = test.of_keys ? heads * test.key_dim : heads;
    begin({states(heads, test.key_dim * test.value_dim)});
    const std::vector<float> mixed = noise(kTokens * width, 2), gate = noise(kTokens * values, 3),
                             beta = noise(kTokens * (test.together ? 2 : 1) * heads, 4),
                             alpha = noise(kTokens * decays, 5), bias = noise(decays, 6),
                             norm = noise(test.value_dim, 8);
    std::vector<float> rate = noise(heads, 7);
    for (float& one : rate) one = -std::abs(one);
    const auto rows = [&](float* data, size_t columns) { return Rows{data, kTokens, columns, columns}; };
    const auto ask = [&](Backend& backend, const auto& place, const auto& weight, const KvView& view,
                         const Activation& out) {
      backend.delta_net({.mixed = rows(place(mixed), width),
                         .gate = rows(place(gate), values),
                         .gate_function = test.of_keys ? Nonlinearity::sigmoid : Nonlinearity::silu,
                         .beta = rows(place(beta), beta.size() / kTokens),
                         .alpha = test.together ? Rows{} : rows(place(alpha), decays),
                         .key_heads = test.key_heads,
                         .value_heads = heads,
                         .key_dim = test.key_dim,
                         .value_dim = test.value_dim,
                         .order = test.order,
                         .rate = weight(rate),
                         .alpha_bias = weight(bias),
                         .norm = weight(norm),
                         .epsilon = 1e-5f,
                         .state = view,
                         .out = out});
    };
    std::vector<std::vector<float>> copies;
    copies.reserve(8);
    std::vector<float> wanted(kTokens * values);
    ask(
        cpu_, [&](const std::vector<float>& from) { return copies.emplace_back(from).data(); },
        [](const std::vector<float>& from) { return weight_of(from); }, cpu_view(0),
        {.f32 = rows(wanted.data(), values), .forms = {}});
    const auto place = [&](const std::vector<float>& from) { return there(from); };
    const auto weight = [&](const std::vector<float>& from) { return there(weight_of(from)); };
    float* seen = there(wanted);
    ask(*gpu_, place, weight, gpu_view(0), {.f32 = rows(seen, values), .forms = {}});
    expect_the_bits(back(seen, wanted.size()), wanted);
    expect_the_cpus_states();

    begin({states(heads, test.key_dim * test.value_dim)});
    const Activation rounded = activation_there(values);
    ask(*gpu_, place, weight, gpu_view(0), rounded);
    expect_rounded(rounded, wanted);
  }
}

TEST_F(Recurrent, GoThroughStateSpacesAsTheCpuDoes) {
  struct Case {
    uint32_t heads, groups, head_dim, state_dim;
    bool has_norm;
  };
  for (const Case& test : {Case{4, 2, 24, 16, false}, Case{4, 2, 24, 16, true}, Case{8, 1, 64, 128, true},
                           Case{6, 2, 80, 100, false}}) {
    SCOPED_TRACE(test.state_dim);
    const uint32_t inner = test.heads * test.head_dim, width = inner + 2 * test.groups * test.state_dim;
    const uint32_t wide = inner + width + test.heads;  // the gate, what is mixed and steps are one product's
    begin({states(test.heads, test.state_dim * test.head_dim)});
    std::vector<float> in = noise(kTokens * wide, 2, 0.5f), wanted(kTokens * inner);
    const std::vector<float> bias = noise(test.heads, 3), skip = noise(test.heads, 4), norm = noise(inner, 5);
    std::vector<float> rate = noise(test.heads, 6);
    for (float& one : rate) one = -std::abs(one);
    const auto ask = [&](Backend& backend, float* from, const auto& weight, const KvView& view,
                         const Activation& out) {
      const Rows all{from, kTokens, wide, wide};
      backend.state_space({.mixed = all.columns(inner, width),
                           .gate = all.columns(0, inner),
                           .step = all.columns(inner + width, test.heads),
                           .heads = test.heads,
                           .groups = test.groups,
                           .head_dim = test.head_dim,
                           .state_dim = test.state_dim,
                           .rate = weight(rate),
                           .step_bias = weight(bias),
                           .skip = weight(skip),
                           .norm = test.has_norm ? weight(norm) : Weight{},
                           .epsilon = 1e-5f,
                           .state = view,
                           .out = out});
    };
    ask(cpu_, in.data(), [](const std::vector<float>& from) { return weight_of(from); }, cpu_view(0),
        {.f32 = {wanted.data(), kTokens, inner, inner}, .forms = {}});
    const auto weight = [&](const std::vector<float>& from) { return there(weight_of(from)); };
    float* place = there(wanted);
    ask(*gpu_, there(in), weight, gpu_view(0), {.f32 = {place, kTokens, inner, inner}, .forms = {}});
    const std::vector<float> seen = back(place, wanted.size());
    if (!test.has_norm) expect_the_bits(seen, wanted);
    double worst = 0, largest = 0;  // norms have another order of their sums
    for (size_t i = 0; i < seen.size(); ++i) {
      worst = std::max(worst, std::abs(double(seen[i]) - double(wanted[i])));
      largest = std::max(largest, std::abs(double(wanted[i])));
    }
    EXPECT_LT(worst, 1e-6 * largest);
    expect_the_cpus_states();

    begin({states(test.heads, test.state_dim * test.head_dim)});
    const Activation rounded = activation_there(inner);
    ask(*gpu_, there(in), weight, gpu_view(0), rounded);
    expect_rounded(rounded, seen);
  }
}

TEST_F(Recurrent, ScanSelectivelyWithTheCpusBits) {
  for (const auto& [width, keys] : {std::pair(70u, 16u), std::pair(256u, 8u), std::pair(33u, 32u)}) {
    SCOPED_TRACE(width);
    begin({states(1, keys * width)});
    const std::vector<float> in = noise(kTokens * width, 2), gate = noise(kTokens * width, 3),
                             steps = noise(kTokens * width, 4), key = noise(kTokens * keys, 5),
                             query = noise(kTokens * keys, 6), bias = noise(width, 7), skip = noise(width, 8);
    std::vector<float> rate = noise(width * keys, 9), wanted(kTokens * width);
    for (float& one : rate) one = -std::abs(one);
    const auto rows = [&](float* data, size_t columns) { return Rows{data, kTokens, columns, columns}; };
    const auto ask = [&](Backend& backend, const auto& place, const auto& weight, const KvView& view,
                         const Activation& out) {
      backend.selective_scan({.in = rows(place(in), width),
                              .gate = rows(place(gate), width),
                              .step = rows(place(steps), width),
                              .key = rows(place(key), keys),
                              .query = rows(place(query), keys),
                              .rate = weight(rate, width),
                              .step_bias = weight(bias, 1),
                              .skip = weight(skip, 1),
                              .state = view,
                              .out = out});
    };
    std::vector<std::vector<float>> copies;
    copies.reserve(8);
    ask(
        cpu_, [&](const std::vector<float>& from) { return copies.emplace_back(from).data(); },
        [](const std::vector<float>& from, size_t count) { return weight_of(from, count); }, cpu_view(0),
        {.f32 = rows(wanted.data(), width), .forms = {}});
    const auto place = [&](const std::vector<float>& from) { return there(from); };
    const auto weight = [&](const std::vector<float>& from, size_t count) {
      return there(weight_of(from, count));
    };
    float* seen = there(wanted);
    ask(*gpu_, place, weight, gpu_view(0), {.f32 = rows(seen, width), .forms = {}});
    expect_the_bits(back(seen, wanted.size()), wanted);
    expect_the_cpus_states();
  }
}

TEST_F(Recurrent, SplitHeadsInHalves) {
  begin({states(1, 4)});
  constexpr uint32_t kHeads = 3, kDim = 24;
  const std::vector<float> both = noise(kTokens * kHeads * 2 * kDim, 2);
  float *first = there(std::vector<float>(kTokens * kHeads * kDim)),
        *second = there(std::vector<float>(kTokens * kHeads * kDim));
  gpu_->split_heads({.both = {there(both), kTokens, kHeads * 2 * kDim, kHeads * 2 * kDim},
                     .head_dim = kDim,
                     .first = {first, kTokens, kHeads * kDim, kHeads * kDim},
                     .second = {second, kTokens, kHeads * kDim, kHeads * kDim}});
  const std::vector<float> firsts = back(first, kTokens * kHeads * kDim),
                           seconds = back(second, kTokens * kHeads * kDim);
  for (size_t i = 0; i < firsts.size(); ++i) {
    const size_t from = i / kDim * 2 * kDim + i % kDim;
    ASSERT_EQ(firsts[i], both[from]) << i;
    ASSERT_EQ(seconds[i], both[from + kDim]) << i;
  }
}

}  // namespace
}  // namespace quire::cuda
