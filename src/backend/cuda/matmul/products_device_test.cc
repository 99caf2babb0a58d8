#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/matmul/mma_twin.h"
#include "backend/cuda/matmul/product_case.h"
#include "backend/cuda/matmul/products.h"

namespace quire::cuda {
namespace {

std::string title(const WeightShape& shape, uint32_t tokens, ProductKernel kernel) {
  static constexpr const char* kKernels[] = {"plain", "stream", "tile"};
  return std::string(name(shape.format)) + " " + std::to_string(shape.rows) + " x " +
         std::to_string(shape.cols) + ", " + std::to_string(tokens) + " tokens, " + kKernels[size_t(kernel)];
}

class Products : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    stream_.emplace();
    workspace_.emplace(ProductWorkspace::Limits{28672, 1536});
  }

  // Tokens [first, first + count) through every kernel that can, against the reference.
  void check(const ProductCase& c, const Tokens& tokens, uint32_t first, uint32_t count) {
    DeviceBuffer activations(activation_bytes(count, tokens.cols)), out(size_t(count) * c.shape.rows * 4);
    const ActivationBlock block = {activations.as<uint8_t>(), count, tokens.cols};
    write_activations(tokens.rows.as<float>() + size_t(first) * tokens.cols, tokens.cols, block,
                      stream_->get());
    for (const ProductKernel kernel : kProductKernels) {
      if (!can_run(kernel, count, workspace_->device())) continue;
      out.fill(0xff);
      product_by(kernel, c.weight, block, StoreRows{out.as<float>(), c.shape.rows, nullptr}, *workspace_,
                 stream_->get());
      const float* expected = c.expected.as<float>() + size_t(first) * c.shape.rows;
      EXPECT_EQ(count_differences(out.data(), expected, size_t(count) * c.shape.rows, stream_->get()), 0u)
          << title(c.shape, count, kernel);
    }
  }

  // Some numbers against the scalar twin, which knows nothing of GPUs.
  void check_twin(const ProductCase& c, const Tokens& tokens) {
    const MmaRule rule = workspace_->device().capability >= 90 ? kHopperRule : kAmpereRule;
    const std::vector<std::byte> packed = c.packed.download<std::byte>();
    const std::vector<float> expected = c.expected.download<float>();
    std::minstd_rand random(1);
    for (int i = 0; i < 24; ++i) {
      const uint32_t row = i == 0 ? c.shape.rows - 1 : uint32_t(random() % c.shape.rows);
      const uint32_t token = uint32_t(random() % tokens.count);
      const std::span<const uint16_t> x(&tokens.natural[size_t(token) * tokens.cols], tokens.cols);
      EXPECT_EQ(product_twin(c.shape, packed, row, x, rule), expected[size_t(token) * c.shape.rows + row])
          << name(c.shape.format) << " row " << row << " token " << token;
    }
  }

  std::optional<Stream> stream_;
  std::optional<ProductWorkspace> workspace_;
};

constexpr DType kTypes[] = {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q6_k, DType::mxfp4};

TEST_F(Products, OddShapesHaveTheBitsOfTheReferenceInEveryKernelAndBatch) {
  for (const uint32_t cols : {576u, 1536u, 640u, 768u, 4096u}) {
    const Tokens tokens(200, cols);
    for (const DType dtype : kTypes) {
      if (cols % traits(dtype).block_values != 0) continue;
      for (const uint32_t rows : {100u, 1u, 64u, 2128u}) {
        const RandomBlocks source(dtype, rows, cols, rows + cols);
        const ProductCase c(source.view(), tokens, stream_->get());
        for (const uint32_t count : {1u, 2u, 3u, 5u, 8u, 9u, 16u, 17u, 33u, 64u, 65u, 128u, 200u}) {
          check(c, tokens, 0, count);
        }
        check(c, tokens, 13, 1);  // other company, another place in the batch
        check(c, tokens, 57, 7);
        check(c, tokens, 101, 40);
        check_twin(c, tokens);
      }
    }
  }
}

TEST_F(Products, ShapesOfAnEightBillionModelHaveTheBitsOfTheReference) {
  struct Size {
    uint32_t rows, cols;
  };
  for (const Size size : {Size{6144, 4096}, Size{4096, 4096}, Size{28672, 4096}, Size{4096, 14336}}) {
    const Tokens tokens(1536, size.cols);
    for (const DType dtype : kTypes) {
      const RandomBlocks source(dtype, size.rows, size.cols, 5);
      const ProductCase c(source.view(), tokens, stream_->get());
      for (const uint32_t count : {1u, 2u, 5u, 8u, 16u, 17u, 33u, 64u, 65u, 128u, 500u, 1536u}) {
        check(c, tokens, 0, count);
      }
      check_twin(c, tokens);
    }
  }
}

TEST_F(Products, TakeWeightsOfEveryType) {
  const Tokens tokens(20, 512);
  for (const DType dtype : kProductTypes) {
    const RandomWeight source(dtype, 70, 512, 12);
    const ProductCase c(source.view(), tokens, stream_->get());
    for (const uint32_t count : {1u, 9u, 20u}) check(c, tokens, 0, count);
    // The packed weight is the file's, within the rounding of scales and products to bf16.
    const std::vector<float> y = c.expected.download<float>();
    std::vector<float> row(512);
    for (uint32_t r = 0; r < 70; ++r) {
      dequantize_row(dtype, source.view().row(r), row);
      double exact = 0, magnitude = 0;
      for (uint32_t k = 0; k < 512; ++k) {
        const double x = double(bf16_to_f32(tokens.natural[k]));
        exact += double(row[k]) * x;
        magnitude += (std::abs(double(row[k])) + 0.02) * std::abs(x);
      }
      ASSERT_NEAR(y[r], exact, magnitude * 0x1p-7) << traits(dtype).name << " row " << r;
    }
  }
}

TEST_F(Products, AddABiasToEveryToken) {
  const Tokens tokens(20, 512);
  const RandomBlocks source(DType::q8_0, 130, 512, 6);
  const ProductCase c(source.view(), tokens, stream_->get());
  std::vector<float> bias(130), expected = c.expected.download<float>();
  for (uint32_t row = 0; row < 130; ++row) bias[row] = float(row) * 0.37f - 20.0f;
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 130];
  const DeviceBuffer on_device = DeviceBuffer::of(bias);
  DeviceBuffer activations(activation_bytes(20, 512)), out(expected.size() * 4);
  const ActivationBlock block = {activations.as<uint8_t>(), 20, 512};
  write_activations(tokens.rows.as<float>(), 512, block, stream_->get());
  product(c.weight, block, StoreRows{out.as<float>(), 130, on_device.as<float>()}, *workspace_,
          stream_->get());
  stream_->wait();
  EXPECT_EQ(out.download<float>(), expected);
}

TEST_F(Products, ATokenThatIsNotANumberLeavesItsNeighboursAlone) {
  for (const DType dtype : kTypes) {
    const Tokens tokens(128, 1024);
    const RandomBlocks source(dtype, 256, 1024, 8);
    const ProductCase c(source.view(), tokens, stream_->get());
    std::vector<float> rows = tokens.rows.download<float>();
    const std::vector<float> expected = c.expected.download<float>();
    for (uint32_t k = 0; k < 1024; ++k) rows[5 * 1024 + k] = k % 2 == 0 ? NAN : INFINITY;
    const DeviceBuffer spoiled = DeviceBuffer::of(rows);
    for (const uint32_t count : {6u, 16u, 40u, 128u}) {
      DeviceBuffer activations(activation_bytes(count, 1024)), out(size_t(count) * 256 * 4);
      const ActivationBlock block = {activations.as<uint8_t>(), count, 1024};
      write_activations(spoiled.as<float>(), 1024, block, stream_->get());
      product(c.weight, block, StoreRows{out.as<float>(), 256, nullptr}, *workspace_, stream_->get());
      stream_->wait();
      const std::vector<float> y = out.download<float>();
      for (size_t i = 0; i < y.size(); ++i) {
        if (i / 256 == 5) continue;
        ASSERT_EQ(y[i], expected[i]) << name(c.shape.format) << " " << count << " " << i;
      }
    }
  }
}

using DevicePacking = DeviceTest;

TEST_F(DevicePacking, WritesTheBytesThatTheHostWrites) {
  const Stream stream;
  for (const DType dtype : kProductTypes) {
    for (const uint32_t cols : {256u, 768u, 160u, 96u}) {
      if (cols % traits(dtype).block_values != 0) continue;
      const RandomWeight source(dtype, 70, cols, cols);
      for (const RowOrder& order : {RowOrder{}, gated_rows(32), RowOrder{69, 3, 3}}) {
        const std::vector<std::byte> expected = pack_on_host(source.view(), order);
        DeviceBuffer packed(expected.size());
        packed.fill(0xff);
        const PackedWeight weight = pack(source.view(), order, packed.as<uint8_t>(), stream.get());
        EXPECT_EQ(weight.shape.bytes(), expected.size());
        EXPECT_TRUE(packed.download<std::byte>() == expected)
            << traits(dtype).name << " " << cols << " columns, " << order.size() << " rows in an order";
      }
    }
  }
}

TEST_F(DevicePacking, PutsSeveralSourcesTogetherThroughASmallStaging) {
  const Stream stream;
  for (const DType dtype : {DType::bf16, DType::q4_k, DType::q6_k, DType::mxfp4, DType::q5_k}) {
    const RandomWeight all(dtype, 150, 512, 17);
    const MatrixView sources[] = {all.view().slice(0, 64), all.view().slice(64, 70),
                                  all.view().slice(134, 16)};
    for (const RowOrder& order : {RowOrder{}, gated_rows(72), RowOrder{149, 70, 70, 0}}) {
      const std::vector<std::byte> expected = pack_on_host(all.view(), order);
      const DeviceBuffer staging(7 * 512 * 2 + 100);  // seven rows at a time, or a few more
      DeviceBuffer packed(expected.size());
      packed.fill(0xff);
      const PackedWeight weight = pack(std::span(sources), order, {staging.as<uint8_t>(), staging.bytes()},
                                       packed.as<uint8_t>(), stream.get());
      EXPECT_EQ(weight.shape.rows, order.empty() ? 150u : uint32_t(order.size()));
      EXPECT_TRUE(packed.download<std::byte>() == expected)
          << traits(dtype).name << ", " << order.size() << " rows in an order";
    }
  }
}

TEST_F(DevicePacking, WritesActivationsWhereTheLayoutSays) {
  const Stream stream;
  for (const uint32_t tokens : {1u, 7u, 20u}) {
    const Tokens x(tokens, 200);
    DeviceBuffer packed(activation_bytes(tokens, 200));
    packed.fill(0xff);
    write_activations(x.rows.as<float>(), 200, {packed.as<uint8_t>(), tokens, 200}, stream.get());
    stream.wait();
    const std::vector<uint16_t> written = packed.download<uint16_t>();
    for (uint32_t token = 0; token < tokens; ++token) {
      for (uint32_t k = 0; k < 256; ++k) {
        const uint16_t expected = k < 200 ? x.natural[token * 200 + k] : 0;
        ASSERT_EQ(written[activation_place(tokens, token, k) / 2], expected) << token << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
