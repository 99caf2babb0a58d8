#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/matmul/head_products.h"
#include "backend/cuda/matmul/product_case.h"

namespace quire::cuda {
namespace {

using HeadProducts = DeviceTest;

struct HeadCase {
  DType dtype = DType::bf16;
  uint32_t heads = 5, rows = 40, cols = 128, rest = 8;
};

// Heads as a backend has them, and what each of them is by a product of its own.
class Heads {
 public:
  static constexpr uint32_t kTokens = 150;

  Heads(const HeadCase& test, cudaStream_t stream) : test_(test), stream_(stream) {
    const RandomWeight weight(test.dtype, size_t(test.heads) * test.rows, test.cols, 3);
    const DeviceBuffer staging(100'000);
    const MatrixView view = weight.view();
    memory_ = DeviceBuffer(expert_shape({&view, 1}, test.heads, {}).bytes() * test.heads);
    stack_ = pack_experts({&view, 1}, test.heads, {}, {staging.as<uint8_t>(), staging.bytes()},
                          memory_.as<uint8_t>(), stream);
    std::minstd_rand random(17);
    std::vector<float> values(size_t(kTokens) * in_width());
    for (float& value : values) value = float(random() % 2000) * 0.001f - 1.0f;
    host_ = values;
    in_ = DeviceBuffer::of(values);
    CUDA_CHECK(cudaDeviceSynchronize());
    expect();
  }

  uint32_t in_width() const { return test_.heads * (test_.cols + test_.rest); }
  uint32_t out_width() const { return test_.heads * (test_.rest + test_.rows); }

  // How many numbers of the first tokens differ.
  size_t differing(const ExpertPlan& plan, uint32_t tokens, const DeviceTraits& device) const {
    const size_t stride = out_width() + 4;
    DeviceBuffer out(tokens * stride * sizeof(float)),
        room(head_room_bytes(tokens, test_.heads, stack_.shape));
    out.fill(0xff);
    room.fill(0xff);
    CUDA_CHECK(cudaDeviceSynchronize());
    project_heads_by(plan,
                     {.in = {in_.as<float>(), tokens, in_width(), in_width()},
                      .heads = test_.heads,
                      .weights = stack_,
                      .out = {out.as<float>(), tokens, out_width(), stride}},
                     room.as<uint8_t>(), device, stream_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    const std::vector<float> got = out.download<float>();
    size_t count = 0;
    for (uint32_t t = 0; t < tokens; ++t)
      for (uint32_t i = 0; i < out_width(); ++i)
        count += std::memcmp(&got[t * stride + i], &expected_[size_t(t) * out_width() + i], 4) != 0;
    return count;
  }

 private:
  void expect() {
    const ProductWorkspace workspace({test_.rows, kTokens});
    const DeviceBuffer block(cuda::activation_bytes(kTokens, test_.cols)),
        rows(size_t(kTokens) * test_.rows * 4);
    const ActivationBlock in = {block.as<uint8_t>(), kTokens, test_.cols};
    const uint32_t in_dim = test_.cols + test_.rest, out_dim = test_.rest + test_.rows;
    expected_.resize(size_t(kTokens) * out_width());
    for (uint32_t head = 0; head < test_.heads; ++head) {
      write_activations(in_.as<float>() + head * in_dim, in_width(), in, stream_);
      const PackedWeight weight = packed_at(stack_.shape, stack_.data + head * stack_.shape.bytes());
      product_by(ProductKernel::plain, weight, in, StoreRows{rows.as<float>(), test_.rows, nullptr},
                 workspace, stream_);
      CUDA_CHECK(cudaStreamSynchronize(stream_));
      const std::vector<float> products = rows.download<float>();
      for (uint32_t t = 0; t < kTokens; ++t) {
        float* to = &expected_[size_t(t) * out_width() + head * out_dim];
        const float* left = &host_[size_t(t) * in_width() + head * in_dim + test_.cols];
        std::copy_n(left, test_.rest, to);
        std::copy_n(&products[size_t(t) * test_.rows], test_.rows, to + test_.rest);
      }
    }
  }

  HeadCase test_;
  cudaStream_t stream_;
  ExpertStack stack_;
  DeviceBuffer memory_, in_;
  std::vector<float> host_, expected_;
};

void compare(const HeadCase& test) {
  SCOPED_TRACE(testing::Message() << int(test.dtype) << ", " << test.heads << " heads of " << test.rows
                                  << " x " << test.cols << ", rest " << test.rest);
  const DeviceTraits device = {compute_capability(), uint32_t(multiprocessors())};
  const Stream stream;
  const Heads heads(test, stream.get());
  for (const uint32_t tokens : {1u, 3u, 8u, 9u, 16u, 17u, 64u, 65u, 150u}) {
    const WeightShape shape{.format = WeightFormat::bf16, .rows = test.rows, .cols = test.cols};
    EXPECT_EQ(heads.differing(plan_heads(device, tokens, shape), tokens, device), 0u) << tokens << " tokens";
  }
  EXPECT_EQ(heads.differing({ProductKernel::plain, kPlainItemTokens}, 40, device), 0u) << "plainly";
  if (device.capability != 90) return;
  EXPECT_EQ(heads.differing({ProductKernel::stream, 8}, 21, device), 0u) << "in eights";
  EXPECT_EQ(heads.differing({ProductKernel::tile, 64}, 5, device), 0u) << "in a tile";
}

TEST_F(HeadProducts, HaveTheBitsOfAProductForEachHead) {
  compare({});
  compare({.heads = 3, .rows = 16, .cols = 8, .rest = 8});
  compare({.heads = 4, .rows = 12, .cols = 16, .rest = 0});
  compare({.heads = 16, .rows = 512, .cols = 128, .rest = 64});
  compare({.heads = 16, .rows = 128, .cols = 512, .rest = 0});
  compare({.heads = 1, .rows = 20, .cols = 36, .rest = 4});
}

TEST_F(HeadProducts, TakeWeightsOfEveryType) {
  for (const DType dtype : kProductTypes) compare({.dtype = dtype, .rows = 72, .cols = 256, .rest = 4});
}

}  // namespace
}  // namespace quire::cuda
