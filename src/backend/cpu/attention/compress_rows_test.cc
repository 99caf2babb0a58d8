// Rows of several tokens: what they are made of, and attention to them beside those of a window. Plainly computed in double, and the same
// whatever the chunks, the threads and the kernels.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "kv/host_kv.h"

namespace quire {
namespace {

constexpr uint32_t kTokens = 300, kWindow = 40, kHeads = 6, kDim = 64, kPairs = 8, kMost = 11;
constexpr float kScoreScale = 0.2f;
using Plain = std::vector<std::vector<double>>;

struct CompressCase {
  uint32_t stride = 4;
  bool overlaps = true;
  bool chooses = false;
  KvFormat format = KvFormat::f32;
};

KvLayer streams_of(const CompressCase& test) {
  const uint32_t parts = test.overlaps ? 2 : 1;
  const KvStream own{.kv_heads = 1,
                     .value_dim = kDim,
                     .window = kWindow,
                     .key_format = test.format,
                     .value_format = test.format,
                     .key_goes_on = true};
  KvStream rows = own, inputs{.kv_heads = 1,
                              .key_dim = parts * kDim,
                              .value_dim = parts * kDim,
                              .window = parts * test.stride,
                              .page_tokens = 8,
                              .key_format = KvFormat::f32,
                              .value_format = KvFormat::f32,
                              .own_format = true};
  rows.window = 0;
  rows.page_tokens = 128;
  rows.stride = test.stride;
  return {own, rows, inputs};
}

// One sequence.
class Compressed {
 public:
  explicit Compressed(const CompressCase& test)
      : test_(test),
        parts_(test.overlaps ? 2 : 1),
        layout_(make_kv_layout(std::vector<KvLayer>{streams_of(test)})),
        bias_weight_{{nullptr, DType::f32, 1, size_t(test.stride) * parts_ * kDim}, nullptr} {
    std::mt19937 random(test.stride + (test.chooses ? 1 : 0));
    const auto fill = [&](std::vector<float>& values, size_t count) {
      values.resize(count);
      for (float& value : values) value = float(int(random() % 2001) - 1000) / 500.0f;
    };
    fill(query_, size_t(kTokens) * kHeads * kDim);
    fill(own_, size_t(kTokens) * kDim);
    fill(inputs_, size_t(kTokens) * parts_ * kDim);
    fill(gates_, size_t(kTokens) * parts_ * kDim);
    fill(bias_, size_t(test.stride) * parts_ * kDim);
    fill(norm_, kDim);
    fill(sinks_, kHeads);
    for (uint32_t i = 0; i < kPairs; ++i) frequencies_.push_back(float(std::pow(100.0, -double(i) / kPairs)));
    bias_weight_.view.data = reinterpret_cast<const std::byte*>(bias_.data());
    chosen_.resize(size_t(kTokens) * kMost);
    for (uint32_t t = 0; t < kTokens; ++t) {
      std::vector<uint32_t> rows((t + 1) / test.stride);
      if (rows.size() <= kMost) continue;
      std::iota(rows.begin(), rows.end(), 0u);
      std::shuffle(rows.begin(), rows.end(), random);
      std::sort(rows.begin(), rows.begin() + kMost);
      std::copy_n(rows.begin(), kMost, chosen_.begin() + size_t(t) * kMost);
    }
  }

  std::vector<float> compute(const CpuKernels& kernels, uint32_t chunk, uint32_t threads) {
    CpuBackend backend(kernels, threads);
    HostKv kv(layout_, pages_for(layout_, kTokens, kTokens, 1));
    PageTable table = kv.make_table();
    EXPECT_TRUE(kv.reserve(table, kTokens));
    const PageTable* tables[] = {&table};
    std::vector<float> out(query_.size()), query = query_, own = own_;
    for (uint32_t done = 0; done < kTokens; done += chunk) {
      const uint32_t n = std::min(chunk, kTokens - done);
      const std::vector<TokenId> ids(n, 0);
      const std::vector<uint32_t> run_of(n, 0);
      std::vector<uint32_t> positions(n);
      std::iota(positions.begin(), positions.end(), done);
      const TokenRun run{0, n, done};
      backend.begin_step({ids, positions, run_of, {&run, 1}, {}}, {});
      KvTables flat;
      const std::vector<KvGroupView> groups = kv.view(tables, flat);
      const auto view = [&](size_t stream) -> KvView {
        const KvLayout::Place place = layout_.places[0][stream];
        return {&groups[place.group], &layout_.at(place)};
      };
      const auto rows = [&](std::vector<float>& all) -> Rows {
        const size_t width = all.size() / kTokens;
        return {all.data() + done * width, n, width, width};
      };
      std::vector<float> angles(size_t(4) * n * kPairs);
      const auto part = [&](size_t i) -> Rows { return {angles.data() + i * n * kPairs, n, kPairs, kPairs}; };
      backend.rope_table({.cos = part(0), .sin = part(1), .inverse_frequencies = frequencies_});
      backend.rope_table(
          {.cos = part(2), .sin = part(3), .inverse_frequencies = frequencies_, .step = test_.stride});
      using Turn = RotateHeadsParams::Turn;
      const auto turn = [&](const Rows& heads, Turn which) {
        backend.rotate_heads({.rows = heads,
                              .head_dim = kDim,
                              .first = kDim - 2 * kPairs,
                              .cos = part(0),
                              .sin = part(1),
                              .turn = which});
      };
      turn(rows(query), Turn::forth);
      turn(rows(own), Turn::forth);
      const Rows mine = rows(own), input = rows(inputs_);
      backend.rope_store({.query = rows(query),
                          .key = {mine.data, n, 0, mine.stride},
                          .value = mine,
                          .head_dim = kDim,
                          .cos = {},
                          .sin = {},
                          .kv = view(0)});
      backend.rope_store({.query = {input.data, n, 0, input.stride},
                          .key = input,
                          .value = rows(gates_),
                          .head_dim = uint32_t(input.width),
                          .cos = {},
                          .sin = {},
                          .kv = view(2)});
      const Weight norm{{reinterpret_cast<const std::byte*>(norm_.data()), DType::f32, 1, kDim}, nullptr};
      backend.compress_rows({.inputs = view(2),
                             .bias = bias_weight_,
                             .norm = {NormKind::rms, 1e-6f, norm, {}},
                             .cos = part(2),
                             .sin = part(3),
                             .kv = view(1)});
      Activation result;
      result.f32 = rows(out);
      AttendParams attend{
          .query = rows(query),
          .heads = kHeads,
          .kv = view(0),
          .scale = kScoreScale,
          .beside = view(1),
          .sinks = {{reinterpret_cast<const std::byte*>(sinks_.data()), DType::f32, 1, kHeads}, nullptr},
          .out = result};
      if (test_.chooses) {
        attend.chosen = std::span(chosen_).subspan(size_t(done) * kMost, size_t(n) * kMost);
        attend.most = kMost;
      }
      backend.attend(attend);
      turn(rows(out), Turn::back);
    }
    return out;
  }

  std::vector<double> expected() const {
    const Plain rows = rows_of_tokens();
    std::vector<double> out;
    for (uint32_t t = 0; t < kTokens; ++t) {
      Plain seen;
      for (uint32_t p = t < kWindow ? 0 : t + 1 - kWindow; p <= t; ++p)
        seen.push_back(turned(&own_[size_t(p) * kDim], double(p)));
      const uint32_t count = (t + 1) / test_.stride;
      if (test_.chooses && count > kMost) {
        for (uint32_t i = 0; i < kMost; ++i) seen.push_back(rows[chosen_[size_t(t) * kMost + i]]);
      } else {
        seen.insert(seen.end(), rows.begin(), rows.begin() + count);
      }
      for (uint32_t h = 0; h < kHeads; ++h) {
        const std::vector<double> query = turned(&query_[(size_t(t) * kHeads + h) * kDim], double(t));
        double sum = std::exp(double(sinks_[h]));
        std::vector<double> value(kDim);
        for (const std::vector<double>& row : seen) {
          const double score = std::inner_product(query.begin(), query.end(), row.begin(), 0.0);
          const double share = std::exp(score * double(kScoreScale));
          sum += share;
          for (uint32_t d = 0; d < kDim; ++d) value[d] += share * row[d];
        }
        for (double& one : value) one /= sum;
        const std::vector<double> back = turned(value.data(), -double(t));
        out.insert(out.end(), back.begin(), back.end());
      }
    }
    return out;
  }

 private:
  template <class Number>
  std::vector<double> turned(const Number* row, double position) const {
    std::vector<double> out(row, row + kDim);
    for (uint32_t i = 0; i < kPairs; ++i) {
      double &a = out[kDim - 2 * kPairs + 2 * i], &b = out[kDim - 2 * kPairs + 2 * i + 1];
      const double angle = position * double(frequencies_[i]), x = a, y = b;
      a = x * std::cos(angle) - y * std::sin(angle);
      b = x * std::sin(angle) + y * std::cos(angle);
    }
    return out;
  }

  // One value after the other.
  Plain rows_of_tokens() const {
    const uint32_t stride = test_.stride;
    Plain rows;
    for (uint32_t first = 0; first + stride <= kTokens; first += stride) {
      std::vector<double> row(kDim);
      for (uint32_t d = 0; d < kDim; ++d) {
        double sum = 0;
        const auto add = [&](uint32_t token, size_t column) {
          const size_t at = size_t(token) * parts_ * kDim + column;
          const double share =
              std::exp(double(gates_[at]) + double(bias_[token % stride * parts_ * kDim + column]));
          sum += share;
          row[d] += share * double(inputs_[at]);
        };
        for (uint32_t i = 0; i < stride; ++i) {
          if (test_.overlaps && first > 0) add(first - stride + i, d);
          add(first + i, test_.overlaps ? kDim + d : d);
        }
        row[d] /= sum;
      }
      const double square = std::inner_product(row.begin(), row.end(), row.begin(), 0.0) / kDim;
      for (uint32_t d = 0; d < kDim; ++d) row[d] *= double(norm_[d]) / std::sqrt(square + 1e-6);
      rows.push_back(turned(row.data(), double(first)));
    }
    return rows;
  }

  CompressCase test_;
  uint32_t parts_;
  KvLayout layout_;
  Weight bias_weight_;
  std::vector<float> query_, own_, inputs_, gates_, bias_, norm_, sinks_, frequencies_;
  std::vector<uint32_t> chosen_;
};

constexpr CompressCase kCases[] = {{4, true, false}, {4, true, true}, {4, false, true}, {128, false, false}};

TEST(CompressRows, AreWhatTheirTokensComeToAndAreAttendedToBesideAWindow) {
  for (const CompressCase& test : kCases) {
    Compressed compressed(test);
    const std::vector<double> expected = compressed.expected();
    const std::vector<float> seen = compressed.compute(exact_kernels(), kTokens, 2);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(double(seen[i]), expected[i], 1e-5)
          << "token " << i / (kHeads * kDim) << " of stride " << test.stride;
  }
}

TEST(CompressRows, AreTheSameForAnyChunksAndThreads) {
  for (const KvFormat format :
       {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::int8, KvFormat::fp8, KvFormat::q4}) {
    for (CompressCase test : kCases) {
      test.format = format;
      Compressed compressed(test);
      for (const CpuKernels& kernels : present_kernels()) {
        const std::vector<float> whole = compressed.compute(kernels, kTokens, 1);
        for (const auto& [chunk, threads] : {std::pair(1u, 2u), {3u, 1u}, {7u, 2u}, {130u, 2u}})
          ASSERT_EQ(compressed.compute(kernels, chunk, threads), whole)
              << kernels.name << ", " << name(format) << ", chunks of " << chunk;
      }
    }
  }
}

TEST(CompressRows, AreThoseOfTheScalarTwinForAnyKernels) {
  CpuKernels plain = scalar_kernels();
  plain.attend = attend_scalar;
  for (const KvFormat format : {KvFormat::f32, KvFormat::f16, KvFormat::int8, KvFormat::fp8, KvFormat::q4}) {
    for (CompressCase test : kCases) {
      test.format = format;
      Compressed compressed(test);
      const std::vector<float> twin = compressed.compute(plain, kTokens, 2);
      for (const CpuKernels& kernels : present_kernels()) {
#if !defined(__aarch64__)
        if (kernels.attend == attend_baseline) continue;  // without fused multiply-adds
#endif
        EXPECT_EQ(compressed.compute(kernels, kTokens, 2), twin) << kernels.name << ", " << name(format);
      }
    }
  }
}

}  // namespace
}  // namespace quire
