#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/matmul/experts.h"
#include "backend/cuda/matmul/product_case.h"
#include "backend/cuda/operations.h"

namespace quire::cuda {
namespace {

struct Mixture {
  uint32_t experts, used, dim, width;
  DType gate_up, down;
  Gate function;
  bool gated = true;
};

std::vector<float> small_numbers(size_t count, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = float(random() % 1000) * 0.001f - 0.5f;
  return values;
}

// Every expert for every token by the products of products.h, added as a token's list says; no sorting, no stacks.
class Experts : public DeviceTest {
 protected:
  static constexpr uint32_t kMostTokens = 300;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    stream_.emplace();
  }

  void make(const Mixture& mixture) {
    mixture_ = mixture;
    const uint32_t experts = mixture.experts, dim = mixture.dim, width = mixture.width;
    const RandomWeight gate(mixture.gate_up, size_t{experts} * width, dim, 1);
    const RandomWeight up(mixture.gate_up, size_t{experts} * width, dim, 2);
    const RandomWeight down(mixture.down, size_t{experts} * dim, width, 3);
    gate_bias_ = DeviceBuffer::of(small_numbers(size_t{experts} * width, 4));
    up_bias_ = DeviceBuffer::of(small_numbers(size_t{experts} * width, 5));
    down_bias_ = DeviceBuffer::of(small_numbers(size_t{experts} * dim, 6));
    const DeviceBuffer staging(100'000);
    const PackStaging through = {staging.as<uint8_t>(), staging.bytes()};
    const MatrixView both[] = {gate.view(), up.view()}, second[] = {down.view()};
    const std::span<const MatrixView> first = mixture.gated ? std::span(both) : std::span(both).last(1);
    const RowOrder order = mixture.gated ? gated_rows(width) : RowOrder{};
    first_memory_ = DeviceBuffer(expert_shape(first, experts, order).bytes() * experts);
    second_memory_ = DeviceBuffer(expert_shape(second, experts, {}).bytes() * experts);
    first_ = pack_experts(first, experts, order, through, first_memory_.as<uint8_t>(), stream_->get());
    second_ = pack_experts(second, experts, {}, through, second_memory_.as<uint8_t>(), stream_->get());
    tokens_.emplace(kMostTokens, dim);
    workspace_.emplace(ExpertWorkspace::Limits{{kMostTokens, mixture.used, experts}, dim, width});
    choose();
    expect();
  }

  // Some experts are popular, some have nobody.
  void choose() {
    std::minstd_rand random(8);
    experts_.clear();
    for (uint32_t token = 0; token < kMostTokens; ++token) {
      std::vector<uint32_t> all(mixture_.experts);
      for (uint32_t i = 0; i < mixture_.experts; ++i) all[i] = i;
      for (uint32_t i = 0; i < mixture_.used; ++i) {
        const uint32_t left = mixture_.experts - i;
        const uint32_t drawn = token % 3 == 0 ? 0 : uint32_t(random() % std::max(left - left / 4, 1u));
        std::swap(all[i], all[i + drawn]);
        experts_.push_back(all[i]);
      }
    }
    shares_ = small_numbers(experts_.size(), 9);
  }

  void expect() {
    const uint32_t dim = mixture_.dim, width = mixture_.width;
    const ProductWorkspace workspace({std::max(2 * width, dim), kMostTokens});
    DeviceBuffer in(cuda::activation_bytes(kMostTokens, dim)),
        hidden(cuda::activation_bytes(kMostTokens, width));
    DeviceBuffer rows(size_t{kMostTokens} * dim * 4);
    const ActivationBlock block = {in.as<uint8_t>(), kMostTokens, dim};
    write_activations(tokens_->rows.as<float>(), dim, block, stream_->get());
    std::vector<std::vector<float>> of_expert;
    for (uint32_t e = 0; e < mixture_.experts; ++e) {
      const PackedWeight first = packed_at(first_.shape, first_.data + e * first_.shape.bytes());
      const PackedWeight second = packed_at(second_.shape, second_.data + e * second_.shape.bytes());
      const NextActivations next = {hidden.as<uint8_t>(), kMostTokens, width};
      if (mixture_.gated) {
        product_by(ProductKernel::plain, first, block,
                   GatedUnit{{},
                             next,
                             mixture_.function,
                             gate_bias_.as<float>() + e * width,
                             up_bias_.as<float>() + e * width},
                   workspace, stream_->get());
      } else {
        const DeviceBuffer ups(size_t{kMostTokens} * width * 4);
        product_by(ProductKernel::plain, first, block,
                   StoreRows{ups.as<float>(), width, up_bias_.as<float>() + e * width}, workspace,
                   stream_->get());
        activate({.gate = {ups.as<float>(), kMostTokens, width, width},
                  .up = {},
                  .function = mixture_.function,
                  .out = {hidden.as<uint8_t>(), kMostTokens, width},
                  .out_f32 = {}},
                 stream_->get());
        stream_->wait();
      }
      product_by(ProductKernel::plain, second, {hidden.as<uint8_t>(), kMostTokens, width},
                 StoreRows{rows.as<float>(), dim, down_bias_.as<float>() + e * dim}, workspace,
                 stream_->get());
      stream_->wait();
      of_expert.push_back(rows.download<float>());
    }
    expected_.assign(size_t{kMostTokens} * dim, 0.0f);
    for (uint32_t pair = 0; pair < experts_.size(); ++pair) {
      const uint32_t token = pair / mixture_.used;
      for (uint32_t c = 0; c < dim; ++c) {
        float& sum = expected_[size_t{token} * dim + c];
        sum = std::fma(shares_[pair], of_expert[experts_[pair]][size_t{token} * dim + c], sum);
      }
    }
  }

  // Tokens [first, first + count) by a plan, against what each of them should be.
  void check(const ExpertPlan& plan, uint32_t first, uint32_t count) {
    const uint32_t dim = mixture_.dim, used = mixture_.used;
    DeviceBuffer in(cuda::activation_bytes(count, dim)), out(size_t{count} * dim * 4);
    const ActivationBlock block = {in.as<uint8_t>(), count, dim};
    write_activations(tokens_->rows.as<float>() + size_t{first} * dim, dim, block, stream_->get());
    const DeviceBuffer experts = DeviceBuffer::of(experts_), shares = DeviceBuffer::of(shares_);
    out.fill(0xff);
    DeviceExperts params;
    params.in = block;
    params.experts = experts.as<uint32_t>() + first * used;
    params.shares = shares.as<float>() + first * used;
    params.used = used;
    params.gate_up = first_;
    params.down = second_;
    params.gate_bias = gate_bias_.as<float>();
    params.up_bias = up_bias_.as<float>();
    params.down_bias = down_bias_.as<float>();
    params.function = mixture_.function;
    const DeviceBuffer plain(size_t{count} * used * mixture_.width * 4);
    params.plain = mixture_.gated ? nullptr : plain.as<float>();
    params.out = {out.as<float>(), count, dim, dim};
    project_experts_by(plan, params, *workspace_, stream_->get());
    stream_->wait();
    const std::vector<float> got = out.download<float>();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], expected_[size_t{first} * dim + i])
          << name(first_.shape.format) << " and " << name(second_.shape.format) << ", " << count
          << " tokens, kernel " << int(plan.kernel) << ", items of " << plan.item_tokens << ", token "
          << i / dim << " number " << i % dim;
    }
  }

  void check_all() {
    const DeviceTraits& device = workspace_->device();
    for (const uint32_t count : {1u, 2u, 7u, 16u, 33u, 100u, 300u}) {
      check({ProductKernel::plain, kPlainItemTokens}, 0, count);
      if (device.capability == 90) {
        check({ProductKernel::stream, 8}, 0, count);
        check({ProductKernel::stream, 16}, 0, count);
        check({ProductKernel::tile, 64}, 0, count);
        check({ProductKernel::tile, 128}, 0, count);
      }
      if (HasFatalFailure()) return;
    }
    check(plan_experts(device, {40, mixture_.used, mixture_.experts}, {first_.shape, second_.shape}), 117,
          40);  // other company
  }

  Mixture mixture_;
  std::optional<Stream> stream_;
  std::optional<Tokens> tokens_;
  std::optional<ExpertWorkspace> workspace_;
  DeviceBuffer gate_bias_, up_bias_, down_bias_, first_memory_, second_memory_;
  ExpertStack first_, second_;
  std::vector<uint32_t> experts_;
  std::vector<float> shares_, expected_;
};

TEST_F(Experts, OfEveryFormatHaveTheBitsOfTheirProductsInEveryKernelAndBatch) {
  for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q6_k, DType::mxfp4}) {
    make({12, 3, 512, 256, dtype, dtype, {}});
    check_all();
    if (HasFatalFailure()) return;
  }
}

TEST_F(Experts, OfTwoFormatsAndOddShapesHaveTheBitsOfTheirProducts) {
  make({9, 4, 768, 256, DType::q4_k, DType::q6_k, {}});
  check_all();
  // Rows and columns that fill no block, a clamped gate.
  make({5, 2, 160, 96, DType::mxfp4, DType::bf16, {Nonlinearity::clamped_swiglu, 1.5f, 1.702f}});
  check_all();
}

TEST_F(Experts, WithoutAGateHaveTheBitsOfTheirProducts) {
  make({9, 4, 512, 256, DType::bf16, DType::bf16, {Nonlinearity::squared_relu}, false});
  check_all();
  make({5, 2, 160, 96, DType::q8_0, DType::bf16, {Nonlinearity::squared_relu}, false});
  check_all();
}

TEST_F(Experts, OneExpertMayHaveAllTokens) {
  make({3, 1, 256, 128, DType::q8_0, DType::q8_0, {}});
  std::fill(experts_.begin(), experts_.end(), 2u);
  expect();
  check_all();
}

}  // namespace
}  // namespace quire::cuda
