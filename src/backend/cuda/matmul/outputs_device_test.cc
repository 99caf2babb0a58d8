#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/matmul/output_rows.h"
#include "backend/cuda/matmul/product_case.h"

namespace quire::cuda {
namespace {

// The tree in which 16 or 32 numbers are added: those that differ in the highest bit first.
float tree_sum(std::vector<float> values) {
  for (size_t half = values.size() / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

float scale_of(const float* squares, uint32_t count, float width, float epsilon) {
  std::vector<float> lanes(32);
  for (uint32_t i = 0; i < count; ++i) lanes[i % 32] += squares[i];
  return float(1.0 / std::sqrt(double(tree_sum(lanes) / width + epsilon)));
}

float rounded(float value) {
  return bf16_to_f32(f32_to_bf16(value));
}

// Outputs of every kernel against the same arithmetic on the host, on top of the reference's products.
class ProductOutputs : public DeviceTest {
 protected:
  static constexpr uint32_t kMostTokens = 200;
  static constexpr uint32_t kSquares = 37;  // one more than the 32 lanes and a bit
  static constexpr float kEpsilon = 1e-5f;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    stream_.emplace();
    workspace_.emplace(ProductWorkspace::Limits{1024, kMostTokens});
    squares_.resize(kMostTokens * kSquares);
    for (size_t i = 0; i < squares_.size(); ++i) squares_[i] = 3.0f + float(i % 29) * 0.37f;
    squares_on_device_ = DeviceBuffer::of(squares_);
  }

  TokenScales scales() const { return {squares_on_device_.as<float>(), kSquares, kSquares * 16, kEpsilon}; }
  float scale(uint32_t token) const {
    return scale_of(&squares_[token * kSquares], kSquares, kSquares * 16.0f, kEpsilon);
  }

  using Run = std::function<void(ProductKernel, const PackedWeight&, const ActivationBlock&)>;
  using Check = std::function<void(uint32_t tokens, const std::vector<float>& y)>;

  // `run` a product in every kernel, batch and format, and `check` it against y [tokens, rows].
  void in_every_kernel(uint32_t rows, uint32_t cols, const Run& run, const Check& check) {
    const Tokens tokens(kMostTokens, cols);
    for (const DType dtype :
         {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q6_k, DType::mxfp4}) {
      if (cols % traits(dtype).block_values != 0) continue;
      const RandomBlocks source(dtype, rows, cols, 11);
      const ProductCase c(source.view(), tokens, stream_->get());
      const std::vector<float> y = c.expected.download<float>();
      for (const uint32_t count : {1u, 3u, 8u, 16u, 17u, 64u, 100u, 190u, 200u}) {  // tiles of every width
        DeviceBuffer activations(activation_bytes(count, cols));
        const ActivationBlock block = {activations.as<uint8_t>(), count, cols};
        write_activations(tokens.rows.as<float>(), cols, block, stream_->get());
        for (const ProductKernel kernel : kProductKernels) {
          if (!can_run(kernel, count, workspace_->device())) continue;
          SCOPED_TRACE(testing::Message() << traits(dtype).name << ", " << count << " tokens, kernel "
                                          << int(kernel) << ", " << rows << " x " << cols);
          run(kernel, c.weight, block);
          stream_->wait();
          check(count, y);
          if (HasFailure()) return;
        }
      }
    }
  }

  std::vector<float> read_activations(const DeviceBuffer& buffer, uint32_t tokens, uint32_t cols) {
    const std::vector<uint16_t> stored = buffer.download<uint16_t>();
    const uint32_t padded = round_up(cols, kBlockK);
    std::vector<float> values(size_t(tokens) * padded);
    for (uint32_t token = 0; token < tokens; ++token) {
      for (uint32_t k = 0; k < padded; ++k) {
        values[size_t(token) * padded + k] = bf16_to_f32(stored[activation_place(tokens, token, k) / 2]);
      }
    }
    return values;
  }

  std::optional<Stream> stream_;
  std::optional<ProductWorkspace> workspace_;
  std::vector<float> squares_;
  DeviceBuffer squares_on_device_;
};

TEST_F(ProductOutputs, ScaledRowsAreTimesTheirTokensScale) {
  constexpr uint32_t kRows = 200;
  DeviceBuffer out(kMostTokens * kRows * 4);
  in_every_kernel(
      kRows, 512,
      [&](ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& block) {
        out.fill(0xff);
        product_by(kernel, weight, block, ScaledRows{scales(), out.as<float>(), kRows}, *workspace_,
                   stream_->get());
      },
      [&](uint32_t tokens, const std::vector<float>& y) {
        const std::vector<float> got = out.download<float>();
        for (size_t i = 0; i < size_t(tokens) * kRows; ++i)
          ASSERT_EQ(got[i], y[i] * scale(uint32_t(i / kRows))) << i;
      });
}

TEST_F(ProductOutputs, AResidualGrowsAndGivesTheNextActivationsAndTheirSquares) {
  for (const uint32_t rows : {256u, 192u, 32u}) {  // 192 numbers leave 64 of padding, 32 leave 96
    const uint32_t padded = round_up(rows, kBlockK), count = rows / 16;
    std::vector<float> before(size_t(kMostTokens) * rows), gain(rows), bias(rows);
    for (size_t i = 0; i < before.size(); ++i) before[i] = float(i % 101) * 0.03f - 1.4f;
    for (uint32_t row = 0; row < rows; ++row) gain[row] = 0.8f + float(row % 7) * 0.1f;
    // With a bias and a factor, and without.
    const bool more = rows != 256;
    const float factor = more ? 0.37f : 1.0f;
    for (uint32_t row = 0; more && row < rows; ++row) bias[row] = float(row % 11) * 0.21f - 1.0f;
    const DeviceBuffer gains = DeviceBuffer::of(gain), biases = DeviceBuffer::of(bias);
    DeviceBuffer residual(before.size() * 4), squares(size_t(kMostTokens) * count * 4), next;
    in_every_kernel(
        rows, 1024,
        [&](ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& block) {
          residual.upload(before.data(), before.size() * 4);
          next = DeviceBuffer(activation_bytes(block.tokens, rows));
          next.fill(0xff);
          squares.fill(0xff);
          const NextActivations to = {next.as<uint8_t>(), block.tokens, rows};
          product_by(kernel, weight, block,
                     AddToResidual{residual.as<float>(), rows, gains.as<float>(), to, squares.as<float>(),
                                   count, more ? biases.as<float>() : nullptr, factor},
                     *workspace_, stream_->get());
        },
        [&](uint32_t tokens, const std::vector<float>& y) {
          const std::vector<float> after = residual.download<float>(), sums = squares.download<float>();
          const std::vector<float> written = read_activations(next, tokens, rows);
          for (uint32_t token = 0; token < tokens; ++token) {
            for (uint32_t row = 0; row < padded; ++row) {
              const size_t i = size_t(token) * rows + row;
              const float got = written[size_t(token) * padded + row];
              if (row >= rows) {
                ASSERT_EQ(got, 0.0f) << token << " " << row;
                continue;
              }
              const float x = before[i] + factor * (y[i] + bias[row]);
              ASSERT_EQ(after[i], x) << token << " " << row;
              ASSERT_EQ(got, rounded(x * gain[row])) << token << " " << row;
            }
            for (uint32_t tile = 0; tile < count; ++tile) {
              std::vector<float> sixteen(16);
              for (uint32_t r = 0; r < 16; ++r) {
                const size_t i = size_t(token) * rows + tile * 16 + r;
                const float x = before[i] + factor * (y[i] + bias[tile * 16 + r]);
                sixteen[r] = x * x;
              }
              ASSERT_EQ(sums[token * count + tile], tree_sum(sixteen)) << token << " " << tile;
            }
          }
        });
  }
}

TEST_F(ProductOutputs, AGatedUnitIsSiluOfTheGateTimesUp) {
  for (const uint32_t cols : {256u, 192u, 32u}) {  // whole blocks, more than whole ones, less than one
    const uint32_t rows = 2 * cols, padded = round_up(cols, kBlockK);
    DeviceBuffer next;
    std::vector<float> first;  // what the first kernel gave: all others must give the same bits
    in_every_kernel(
        rows, 768,
        [&](ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& block) {
          if (kernel == ProductKernel::plain) first.clear();
          next = DeviceBuffer(activation_bytes(block.tokens, cols));
          next.fill(0xff);
          const NextActivations to = {next.as<uint8_t>(), block.tokens, cols};
          product_by(kernel, weight, block, GatedUnit{scales(), to}, *workspace_, stream_->get());
        },
        [&](uint32_t tokens, const std::vector<float>& y) {
          const std::vector<float> got = read_activations(next, tokens, cols);
          for (uint32_t token = 0; token < tokens; ++token) {
            for (uint32_t pair = 0; pair < cols; ++pair) {
              const float* at = &y[size_t(token) * rows + gate_row(pair)];
              const float gate = at[0] * scale(token), up = at[kUpAfterGate] * scale(token);
              const float expected = gate / (1.0f + std::exp(-gate)) * up;
              ASSERT_NEAR(got[size_t(token) * padded + gated_column(pair, cols)], expected,
                          std::abs(expected) * 0x1p-8f + 1e-30f)
                  << token << " " << pair;
            }
            for (uint32_t k = cols; k < padded; ++k) ASSERT_EQ(got[size_t(token) * padded + k], 0.0f) << k;
          }
          if (first.empty()) first = got;
          ASSERT_EQ(got, first);
        });
  }
}

double expected_gated(const Gate& function, double gate, double up) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (function.kind) {
    case Nonlinearity::silu:
      return gate * sigmoid(gate) * up;
    case Nonlinearity::gelu_tanh:
      return 0.5 * gate * (1 + std::tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
    case Nonlinearity::gelu_erf:
      return 0.5 * gate * (1 + std::erf(gate * 0.7071067811865476)) * up;
    case Nonlinearity::clamped_swiglu:
      break;
    case Nonlinearity::xielu:
    case Nonlinearity::sigmoid:
    case Nonlinearity::squared_relu:
    case Nonlinearity::softplus:
    case Nonlinearity::product:
    case Nonlinearity::limited_silu:
      ADD_FAILURE() << "no gated unit of a GPU has it";
  }
  const double limit = double(function.limit);
  gate = std::min(gate, limit);
  return gate * sigmoid(double(function.slope) * gate) * (std::clamp(up, -limit, limit) + 1);
}

TEST_F(ProductOutputs, AGatedUnitHasEveryNonlinearityItsBiasesAndNoScaleIfNoneIsGiven) {
  constexpr uint32_t kRows = 320, kCols = kRows / 2;
  std::vector<float> gate_bias(kCols), up_bias(kCols);
  for (uint32_t i = 0; i < kCols; ++i) {
    gate_bias[i] = float(i) * 0.06f - 5.0f;
    up_bias[i] = 4.0f - float(i) * 0.05f;
  }
  const DeviceBuffer gates = DeviceBuffer::of(gate_bias), ups = DeviceBuffer::of(up_bias);
  for (const Nonlinearity kind :
       {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::gelu_erf, Nonlinearity::clamped_swiglu}) {
    const Gate function = {kind, 2.5f, 1.702f};
    DeviceBuffer next;
    std::vector<float> first;
    in_every_kernel(
        kRows, 512,
        [&](ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& block) {
          if (kernel == ProductKernel::plain) first.clear();
          next = DeviceBuffer(activation_bytes(block.tokens, kCols));
          next.fill(0xff);
          const NextActivations to = {next.as<uint8_t>(), block.tokens, kCols};
          product_by(kernel, weight, block, GatedUnit{{}, to, function, gates.as<float>(), ups.as<float>()},
                     *workspace_, stream_->get());
        },
        [&](uint32_t tokens, const std::vector<float>& y) {
          const std::vector<float> got = read_activations(next, tokens, kCols);
          for (uint32_t token = 0; token < tokens; ++token) {
            for (uint32_t pair = 0; pair < kCols; ++pair) {
              const float* at = &y[size_t(token) * kRows + gate_row(pair)];
              const uint32_t k = gated_column(pair, kCols);
              const float gate = at[0] + gate_bias[k], up = at[kUpAfterGate] + up_bias[k];
              const double expected = expected_gated(function, double(gate), double(up));
              ASSERT_NEAR(got[size_t(token) * round_up(kCols, kBlockK) + k], expected,
                          std::abs(expected) * 0x1p-8 + 1e-5)
                  << int(kind) << ": " << gate << " " << up;
            }
          }
          if (first.empty()) first = got;
          ASSERT_EQ(got, first);
        });
  }
}

TEST_F(ProductOutputs, PartsGoToTheirPlacesWithTheirBiasesAndScales) {
  constexpr uint32_t kRows = 200, kFirst = 96, kSecond = 48, kThird = kRows - kFirst - kSecond;
  std::vector<float> bias(kRows);
  for (uint32_t row = 0; row < kRows; ++row) bias[row] = float(row) * 0.02f - 2.0f;
  const DeviceBuffer biases = DeviceBuffer::of(bias);
  for (const bool scaled : {true, false}) {
    DeviceBuffer first(kMostTokens * kFirst * 4), rest(kMostTokens * (kSecond + kThird) * 4);
    in_every_kernel(
        kRows, 512,
        [&](ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& block) {
          first.fill(0xff);
          rest.fill(0xff);
          StoreParts parts;
          if (scaled) parts.scales = scales();
          parts.parts[0] = {first.as<float>(), kFirst, biases.as<float>(), kFirst};
          parts.parts[1] = {rest.as<float>(), kSecond + kThird, nullptr, kSecond};
          parts.parts[2] = {rest.as<float>() + kSecond, kSecond + kThird,
                            biases.as<float>() + kFirst + kSecond, kThird};
          product_by(kernel, weight, block, parts, *workspace_, stream_->get());
        },
        [&](uint32_t tokens, const std::vector<float>& y) {
          const std::vector<float> one = first.download<float>(), two = rest.download<float>();
          for (uint32_t token = 0; token < tokens; ++token) {
            for (uint32_t row = 0; row < kRows; ++row) {
              const bool has_bias = row < kFirst || row >= kFirst + kSecond;
              float expected = y[size_t(token) * kRows + row];
              if (scaled) expected *= scale(token);
              if (has_bias) expected += bias[row];
              const float got = row < kFirst ? one[size_t(token) * kFirst + row]
                                             : two[size_t(token) * (kSecond + kThird) + row - kFirst];
              ASSERT_EQ(got, expected) << token << " " << row;
            }
          }
        });
  }
}

TEST_F(ProductOutputs, AddedByAKernelOfTheirOwnAreTheSame) {
  for (const uint32_t rows :
       {32u, 200u, 1200u, 256u, 1280u}) {  // padding, rows that one block does not hold, whole blocks
    constexpr uint32_t kCols = 256;
    const RandomBlocks source(DType::bf16, rows, kCols, 7);
    DeviceBuffer packed(packed_shape(source.view(), {}).bytes());
    const PackedWeight weight = pack(source.view(), {}, packed.as<uint8_t>(), stream_->get());
    const ProductWorkspace workspace({rows, kMostTokens});
    const Tokens tokens(kMostTokens, kCols);
    const uint32_t square_count = (rows + 15) / 16;
    std::vector<float> before(size_t(kMostTokens) * rows), gain(rows), bias(rows);
    for (size_t i = 0; i < before.size(); ++i) before[i] = float(i % 103) * 0.05f - 2.0f;
    for (uint32_t row = 0; row < rows; ++row) gain[row] = 0.5f + float(row % 9) * 0.2f;
    for (uint32_t row = 0; row < rows; ++row) bias[row] = float(row % 13) * 0.3f - 1.5f;
    const DeviceBuffer gains = DeviceBuffer::of(gain), biases = DeviceBuffer::of(bias);
    for (const uint32_t count : {5u, 40u, 190u}) {
      DeviceBuffer activations(activation_bytes(count, kCols)), plain(size_t(count) * rows * 4);
      const ActivationBlock block = {activations.as<uint8_t>(), count, kCols};
      write_activations(tokens.rows.as<float>(), kCols, block, stream_->get());
      DeviceBuffer residual(before.size() * 4), next(activation_bytes(count, rows)),
          squares(size_t(count) * square_count * 4);
      const AddToResidual output = {
          residual.as<float>(), rows,         gains.as<float>(),  {next.as<uint8_t>(), count, rows},
          squares.as<float>(),  square_count, biases.as<float>(), 0.6f};
      const auto written = [&](const auto& start) {
        residual.upload(before.data(), before.size() * 4);
        next.fill(0xff);  // not numbers: what nobody writes is seen
        squares.fill(0xff);
        start();
        stream_->wait();
        return std::tuple(residual.download<uint32_t>(), next.download<uint16_t>(),
                          squares.download<uint32_t>());
      };
      const auto at_once = written([&] { product(weight, block, output, workspace, stream_->get()); });
      const auto after = written([&] {
        product(weight, block, StoreRows{plain.as<float>(), rows, nullptr}, workspace, stream_->get());
        output_rows({plain.as<float>(), count, rows, rows}, output, workspace, stream_->get());
      });
      EXPECT_TRUE(at_once == after) << rows << " rows, " << count << " tokens";
      const std::vector<uint16_t>& numbers = std::get<1>(after);
      EXPECT_TRUE(std::find(numbers.begin(), numbers.end(), 0xffff) == numbers.end()) << rows << " rows";
    }
  }
}

// A weight of more tiles than there are multiprocessors, so that blocks take several and share the last.
TEST_F(ProductOutputs, AreThoseOfThePlainKernelWhereABlockHasManyTiles) {
  constexpr uint32_t kRows = 150 * 128, kTokens = 380;
  const ProductWorkspace workspace({kRows, kTokens});
  if (workspace.device().capability != 90) GTEST_SKIP() << "this GPU has no tile kernel";
  const std::vector<float> gain(kRows, 0.7f), before(size_t(kTokens) * kRows, 0.25f);
  const DeviceBuffer gains = DeviceBuffer::of(gain);
  DeviceBuffer rows(before.size() * 4), next(activation_bytes(kTokens, kRows)),
      squares(size_t(kTokens) * (kRows / 16) * 4);
  const std::vector<float> read(size_t(kTokens) * kSquares, 2.5f);
  const DeviceBuffer scale_squares = DeviceBuffer::of(read);
  const TokenScales scaled = {scale_squares.as<float>(), kSquares, kSquares * 16, kEpsilon};
  for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_k}) {
    for (const uint32_t cols : {256u, 512u}) {  // one slice, and four
      const RandomBlocks source(dtype, kRows, cols, 5);
      DeviceBuffer packed(packed_shape(source.view(), {}).bytes());
      const PackedWeight weight = pack(source.view(), {}, packed.as<uint8_t>(), stream_->get());
      const Tokens tokens(kTokens, cols);
      for (const uint32_t count : {30u, 64u, 128u, 380u}) {
        DeviceBuffer activations(activation_bytes(count, cols));
        const ActivationBlock block = {activations.as<uint8_t>(), count, cols};
        write_activations(tokens.rows.as<float>(), cols, block, stream_->get());
        const auto written = [&](ProductKernel kernel, const auto& output) {
          rows.upload(before.data(), before.size() * 4);
          next.fill(0xff);
          squares.fill(0xff);
          product_by(kernel, weight, block, output, workspace, stream_->get());
          stream_->wait();
          return std::tuple(rows.download<uint32_t>(), next.download<uint16_t>(),
                            squares.download<uint32_t>());
        };
        const auto expect_same = [&](const char* name, const auto& output) {
          const bool same = written(ProductKernel::tile, output) == written(ProductKernel::plain, output);
          EXPECT_TRUE(same) << name << ", " << traits(dtype).name << ", " << cols << " columns, " << count
                            << " tokens";
        };
        const NextActivations all = {next.as<uint8_t>(), count, kRows};
        const NextActivations half = {next.as<uint8_t>(), count, kRows / 2};
        expect_same("residual", AddToResidual{rows.as<float>(), kRows, gains.as<float>(), all,
                                              squares.as<float>(), kRows / 16});
        expect_same("gated", GatedUnit{scaled, half});
        StoreParts parts;
        parts.scales = scaled;
        parts.parts[0] = {rows.as<float>(), kRows, nullptr, 80};
        parts.parts[1] = {rows.as<float>() + 80, kRows, nullptr, kRows - 80};
        expect_same("parts", parts);
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
