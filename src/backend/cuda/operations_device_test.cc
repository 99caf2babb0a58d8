#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/nonlinearity.h"
#include "backend/cpu/norm.h"
#include "backend/cuda/device_case.h"
#include "backend/cuda/operations.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace quire::cuda {
namespace {

using Operations = DeviceTest;

std::vector<float> noise(size_t count, uint32_t seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random) * size;
  return values;
}

Rows rows_of(const DeviceBuffer& buffer, size_t rows, size_t width) {
  return {buffer.as<float>(), rows, width, width};
}

Weight vector_of(const std::vector<float>& values) {
  return {{reinterpret_cast<const std::byte*>(values.data()), DType::f32, 1, values.size()}, nullptr};
}

// Of the largest number.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
    largest = std::max(largest, std::abs(double(b[i])));
  }
  return worst / largest;
}

// Whether the activations are the f32 rows, rounded, and zeros behind them.
void expect_rounded(const std::vector<uint8_t>& activations, const std::vector<float>& rows, uint32_t tokens,
                    uint32_t cols) {
  size_t wrong = 0;
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t c = 0; c < round_up(cols, kBlockK); ++c) {
      uint16_t bits;
      std::memcpy(&bits, activations.data() + activation_place(tokens, t, c), sizeof(bits));
      wrong += bits != (c < cols ? f32_to_bf16(rows[t * cols + c]) : 0);
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_F(Operations, EmbedRowsOfEveryTypeThatTheyKnow) {
  constexpr size_t kCols = 512, kRows = 40;
  const std::vector<float> values = noise(kCols * kRows, 1), learned = noise(kCols * 8, 2);
  const std::vector<uint32_t> ids = {3, 0, 39, 3, 1700}, positions = {0, 1, 7, 2, 5};
  const DeviceBuffer device_ids = DeviceBuffer::of(ids), device_positions = DeviceBuffer::of(positions);
  const DeviceBuffer device_learned = DeviceBuffer::of(learned);
  int known = 0;
  for (size_t type = 0; type < kDTypeCount; ++type) {
    const DType dtype = DType(type);
    if (!can_embed(dtype)) continue;
    ++known;
    SCOPED_TRACE(traits(dtype).name);
    std::vector<std::byte> table(kRows * row_bytes(dtype, kCols));
    for (size_t r = 0; r < kRows; ++r)
      quantize_row(dtype, {values.data() + r * kCols, kCols}, table.data() + r * row_bytes(dtype, kCols));
    const DeviceBuffer device_table = DeviceBuffer::of(table), out(ids.size() * kCols * sizeof(float));
    const Stream stream;
    embed({.table = {device_table.as<std::byte>(), dtype, kRows, kCols},
           .positions = device_learned.as<float>(),
           .scale = 3.7f,
           .out = rows_of(out, ids.size(), kCols)},
          {device_ids.as<uint32_t>(), device_positions.as<uint32_t>(), uint32_t(ids.size())}, stream.get());
    stream.wait();
    std::vector<float> wanted(ids.size() * kCols);
    for (size_t t = 0; t < ids.size(); ++t) {
      const std::span<float> row(wanted.data() + t * kCols, kCols);
      const size_t id = ids[t] < kRows ? ids[t] : 0;  // a token without a row has the first
      dequantize_row(dtype, table.data() + id * row_bytes(dtype, kCols), row);
      for (size_t i = 0; i < kCols; ++i) row[i] = row[i] * 3.7f + learned[positions[t] * kCols + i];
    }
    EXPECT_EQ(out.download<float>(), wanted);
  }
  EXPECT_EQ(known, 8);
}

TEST_F(Operations, AddAndNormWithinTheOrderOfTheirSums) {
  for (const uint32_t width :
       {5u, 64u, 1000u, 4096u}) {  // in threads of a warp, one by one and in fours; of a block
    for (const NormKind kind : {NormKind::none, NormKind::rms, NormKind::layer}) {
      constexpr uint32_t kRows = 7;
      const std::vector<float> stream_rows = noise(kRows * width, 3, 2), branch = noise(kRows * width, 4);
      const std::vector<float> weight = noise(width, 5), bias = noise(width, 6);
      const DeviceBuffer device_stream = DeviceBuffer::of(stream_rows),
                         device_branch = DeviceBuffer::of(branch);
      const DeviceBuffer device_weight = DeviceBuffer::of(weight), device_bias = DeviceBuffer::of(bias);
      const DeviceBuffer out_f32(stream_rows.size() * sizeof(float)), out(activation_bytes(kRows, width));
      const DeviceNorm norm = {kind, 1e-5f, device_weight.as<float>(),
                               kind == NormKind::layer ? device_bias.as<float>() : nullptr};
      const Stream stream;
      add_norm({.stream = rows_of(device_stream, kRows, width),
                .branch = rows_of(device_branch, kRows, width),
                .branch_norm = norm,
                .branch_scale = 0.5f,
                .stream_scale = width == 64 ? 0.75f : 1.0f,
                .norm = norm,
                .rows = nullptr,
                .row_count = kRows,
                .out = {out.as<uint8_t>(), kRows, width},
                .out_f32 = rows_of(out_f32, kRows, width)},
               stream.get());
      stream.wait();
      const Norm cpu = {kind, 1e-5f, vector_of(weight), kind == NormKind::layer ? vector_of(bias) : Weight{}};
      std::vector<float> wanted_stream = stream_rows, wanted(stream_rows.size()), normed(width);
      for (uint32_t r = 0; r < kRows; ++r) {
        norm_row(cpu, branch.data() + r * width, normed.data(), width);
        for (uint32_t i = 0; i < width; ++i) {
          float& sum = wanted_stream[r * width + i];
          sum += 0.5f * normed[i];
          if (width == 64) sum *= 0.75f;
        }
        norm_row(cpu, wanted_stream.data() + r * width, wanted.data() + r * width, width);
      }
      SCOPED_TRACE(width);
      EXPECT_LT(distance(device_stream.download<float>(), wanted_stream), 1e-6);
      const std::vector<float> got = out_f32.download<float>();
      EXPECT_LT(distance(got, wanted), 2e-6);
      expect_rounded(out.download<uint8_t>(), got, kRows, width);
    }
  }
}

TEST_F(Operations, ActivateWithTheCpusBits) {
  constexpr uint32_t kRows = 3, kWidth = 1000;
  const std::vector<float> gate = noise(kRows * kWidth, 7, 5), up = noise(kRows * kWidth, 8, 5);
  const DeviceBuffer device_gate = DeviceBuffer::of(gate), device_up = DeviceBuffer::of(up);
  for (const Nonlinearity kind :
       {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::gelu_erf, Nonlinearity::clamped_swiglu,
        Nonlinearity::sigmoid, Nonlinearity::squared_relu, Nonlinearity::product}) {
    SCOPED_TRACE(int(kind));
    const Gate function = {.kind = kind, .limit = 7, .slope = 1.702f};
    const DeviceBuffer out_f32(gate.size() * sizeof(float)), out(activation_bytes(kRows, kWidth));
    const Stream stream;
    activate({.gate = rows_of(device_gate, kRows, kWidth),
              .up = rows_of(device_up, kRows, kWidth),
              .function = function,
              .out = {out.as<uint8_t>(), kRows, kWidth},
              .out_f32 = rows_of(out_f32, kRows, kWidth)},
             stream.get());
    stream.wait();
    std::vector<float> wanted(gate.size());
    activate_row(function, gate.data(), up.data(), wanted.data(), wanted.size());
    const std::vector<float> got = out_f32.download<float>();
    const bool has_twin = kind != Nonlinearity::gelu_erf && kind != Nonlinearity::clamped_swiglu;
    if (has_twin) {
      EXPECT_EQ(got, wanted);
    }
    EXPECT_LT(distance(got, wanted), 1e-6);
    expect_rounded(out.download<uint8_t>(), got, kRows, kWidth);
  }
}

// A step of two runs in pages, on both sides.
struct RopeCase {
  KvFormat format = KvFormat::bf16;
  RopePairing pairing = RopePairing::halves;
  NormKind norm = NormKind::none;
  bool norms_whole_rows = false;
  uint32_t pairs = 32;
  bool wants_floats = true;  // of the queries too
};

void compare_rope_store(const RopeCase& test) {
  constexpr uint32_t kTokens = 9, kHeads = 6, kKvHeads = 2, kDim = 64, kPages = 8;
  const KvLayerShape shape{.kv_heads = kKvHeads,
                           .key_dim = kDim,
                           .value_dim = kDim,
                           .window = 0,
                           .key_format = test.format,
                           .value_format = test.format};
  const KvLayout layout = make_kv_layout(std::vector(2, shape), 16);
  std::vector<std::byte> pages(kPages * layout.groups[0].page_bytes);
  const DeviceBuffer device_pages = DeviceBuffer::of(pages);
  const std::vector<uint32_t> page_ids = {5, 2, 7, 1, 0}, table_begin = {0, 3};
  const std::vector<TokenRun> runs = {{0, 5, 30}, {5, 4, 14}};
  const std::vector<uint32_t> positions = {30, 31, 32, 33, 34, 14, 15, 16, 17},
                              run_of = {0, 0, 0, 0, 0, 1, 1, 1, 1};
  std::vector<uint32_t> token_places;
  for (uint32_t t = 0; t < kTokens; ++t)
    token_places.push_back(page_ids[table_begin[run_of[t]] + positions[t] / 16] * 16 + positions[t] % 16);
  const std::vector<TokenId> ids(kTokens);
  std::vector<float> query = noise(kTokens * kHeads * kDim, 9), key = noise(kTokens * kKvHeads * kDim, 10);
  std::vector<float> value = noise(kTokens * kKvHeads * kDim, 11), cos(kTokens * test.pairs), sin(cos.size());
  const std::vector<float> query_weight = noise(test.norms_whole_rows ? kHeads * kDim : kDim, 12);
  const std::vector<float> key_weight = noise(test.norms_whole_rows ? kKvHeads * kDim : kDim, 13);
  const std::vector<float> frequencies = [&] {
    std::vector<float> f(test.pairs);
    for (uint32_t i = 0; i < test.pairs; ++i) f[i] = std::pow(10'000.0f, -float(i) / float(test.pairs));
    return f;
  }();
  const DeviceBuffer device_query = DeviceBuffer::of(query), device_key = DeviceBuffer::of(key);
  const DeviceBuffer device_value = DeviceBuffer::of(value);

  CpuBackend cpu(scalar_kernels(), 1);
  cpu.begin_step(
      {.tokens = ids, .positions = positions, .run_of_token = run_of, .runs = runs, .logit_rows = {}}, {});
  const Rows cos_rows = {cos.data(), kTokens, test.pairs, test.pairs},
             sin_rows = {sin.data(), kTokens, test.pairs, test.pairs};
  cpu.rope_table({.cos = cos_rows, .sin = sin_rows, .inverse_frequencies = frequencies, .scale = 1.1f});
  const KvGroupView group = {
      .layout = &layout.groups[0], .pages = pages.data(), .page_ids = page_ids, .table_begin = table_begin};
  const Norm query_norm = {test.norm, 1e-6f, vector_of(query_weight), {}},
             key_norm = {test.norm, 1e-6f, vector_of(key_weight), {}};
  cpu.rope_store({.query = {query.data(), kTokens, kHeads * kDim, kHeads * kDim},
                  .key = {key.data(), kTokens, kKvHeads * kDim, kKvHeads * kDim},
                  .value = {value.data(), kTokens, kKvHeads * kDim, kKvHeads * kDim},
                  .head_dim = kDim,
                  .query_norm = test.norm == NormKind::none ? nullptr : &query_norm,
                  .key_norm = test.norm == NormKind::none ? nullptr : &key_norm,
                  .cos = cos_rows,
                  .sin = sin_rows,
                  .pairing = test.pairing,
                  .kv = {&group, &layout.groups[0].layers[1]}});

  const DeviceBuffer device_cos(cos.size() * 4), device_sin(sin.size() * 4),
      device_frequencies = DeviceBuffer::of(frequencies);
  const DeviceBuffer device_positions = DeviceBuffer::of(positions),
                     device_places = DeviceBuffer::of(token_places);
  const DeviceBuffer weights[] = {DeviceBuffer::of(query_weight), DeviceBuffer::of(key_weight)};
  const DeviceBuffer query_out(query.size() * 2), query_f32(query.size() * 4);
  const DeviceTokens tokens = {nullptr, device_positions.as<uint32_t>(), kTokens};
  const DeviceRopeTable table = {device_cos.as<float>(), device_sin.as<float>(),
                                 device_frequencies.as<float>(), test.pairs, 1.1f};
  const Stream stream;
  rope_table(table, tokens, stream.get());
  rope_store({.query = rows_of(device_query, kTokens, kHeads * kDim),
              .key = rows_of(device_key, kTokens, kKvHeads * kDim),
              .value = rows_of(device_value, kTokens, kKvHeads * kDim),
              .head_dim = kDim,
              .query_norm = {test.norm, 1e-6f, weights[0].as<float>(), nullptr},
              .key_norm = {test.norm, 1e-6f, weights[1].as<float>(), nullptr},
              .query_norm_width = uint32_t(query_weight.size()),
              .key_norm_width = uint32_t(key_weight.size()),
              .query_norm_weights = uint32_t(query_weight.size()),
              .key_norm_weights = uint32_t(key_weight.size()),
              .table = table,
              .pairing = test.pairing,
              .rows = paged_rows(layout.groups[0], 1, device_pages.as<std::byte>(), kPages),
              .key_format = test.format,
              .value_format = test.format,
              .token_places = device_places.as<uint32_t>(),
              .query_numbers = HalfKind::f16,
              .query_out = query_out.as<uint16_t>(),
              .query_f32 = test.wants_floats ? query_f32.as<float>() : nullptr},
             tokens, stream.get());
  stream.wait();
  EXPECT_EQ(device_cos.download<float>(), cos);
  EXPECT_EQ(device_sin.download<float>(), sin);
  EXPECT_EQ(device_pages.download<std::byte>(), pages);
  std::vector<uint16_t> wanted;
  for (const float q : query) wanted.push_back(f32_to_f16(q));
  EXPECT_EQ(query_out.download<uint16_t>(), wanted);
  if (test.wants_floats) {
    EXPECT_EQ(query_f32.download<float>(), query);
  }
}

TEST_F(Operations, StoreKeysAndValuesWithTheCpusBytes) {
  for (const KvFormat format : kKvFormats) {
    for (const RopePairing pairing : {RopePairing::halves, RopePairing::interleaved}) {
      SCOPED_TRACE(name(format));
      compare_rope_store({.format = format, .pairing = pairing});
      compare_rope_store({.format = format, .pairing = pairing, .wants_floats = false});
      compare_rope_store({.format = format, .pairing = pairing, .norm = NormKind::rms, .pairs = 16});
      compare_rope_store(
          {.format = format, .pairing = pairing, .norm = NormKind::rms, .norms_whole_rows = true});
      compare_rope_store({.format = format, .pairing = pairing, .norm = NormKind::layer});
    }
  }
}

TEST_F(Operations, RouteToTheCpusExperts) {
  constexpr uint32_t kTokens = 50, kExperts = 128, kUsed = 8;
  std::vector<float> scores = noise(kTokens * kExperts, 14, 3), identity(kExperts * kExperts);
  for (uint32_t t = 0; t < kTokens; t += 3)
    scores[t * kExperts + 5] = scores[t * kExperts + 90] = 11;  // equals
  for (uint32_t i = 0; i < kExperts; ++i) identity[i * kExperts + i] = 1;
  const DeviceBuffer device_scores = DeviceBuffer::of(scores);
  const std::vector<float> bias = noise(kExperts, 15, 0.3f);
  const DeviceBuffer device_bias = DeviceBuffer::of(bias);
  const std::vector<float> scales = noise(kExperts, 16);
  const DeviceBuffer device_scales = DeviceBuffer::of(scales);
  CpuBackend cpu(exact_kernels(), 1);
  struct Case {
    Routing routing;
    bool biased = false;
    bool scaled = false;
  };
  const Case cases[] = {
      {{.normalized = false}},
      {{}},
      {{.score = RouterScore::softmax_of_chosen}},
      {{.score = RouterScore::sigmoid, .scale = 2.5f}, true},
      {{.score = RouterScore::sigmoid, .groups = 8, .groups_used = 3}, true},
      {{.groups = 64, .groups_used = 20, .group_best = 1}},
      {{.score = RouterScore::sqrt_softplus, .scale = 1.5f}, true},
      {{.score = RouterScore::sparse_mixer, .nearness = 0.4f}},
      {{.scale = 0.5f}, false, true},
  };
  for (const auto& [routing, biased, scaled] : cases) {
    std::vector<uint32_t> experts(kTokens * kUsed);
    std::vector<float> shares(experts.size());
    Activation in;
    in.f32 = {scores.data(), kTokens, kExperts, kExperts};
    cpu.route_experts(
        {.in = in,
         .router = {{reinterpret_cast<const std::byte*>(identity.data()), DType::f32, kExperts, kExperts},
                    nullptr},
         .bias = {},
         .choice_bias =
             biased
                 ? Weight{{reinterpret_cast<const std::byte*>(bias.data()), DType::f32, 1, kExperts}, nullptr}
                 : Weight{},
         .share_scales = scaled ? vector_of(scales) : Weight{},
         .routing = routing,
         .used = kUsed,
         .experts = experts,
         .shares = shares});
    const DeviceBuffer device_experts(experts.size() * 4), device_shares(shares.size() * 4);
    const Stream stream;
    route({.scores = rows_of(device_scores, kTokens, kExperts),
           .choice_bias = biased ? device_bias.as<float>() : nullptr,
           .share_scales = scaled ? device_scales.as<float>() : nullptr,
           .routing = routing,
           .used = kUsed,
           .experts = device_experts.as<uint32_t>(),
           .shares = device_shares.as<float>()},
          stream.get());
    stream.wait();
    EXPECT_EQ(device_experts.download<uint32_t>(), experts);
    EXPECT_LT(distance(device_shares.download<float>(), shares), 3e-7);
  }
}

TEST_F(Operations, CapLogitsAsTheCpuDoes) {
  const std::vector<float> logits = noise(3 * 1001, 15, 40);
  const DeviceBuffer device = DeviceBuffer::of(logits);
  const Stream stream;
  scale_logits(rows_of(device, 3, 1001), 0.7f, 30.0f, stream.get());
  stream.wait();
  std::vector<float> wanted = logits;
  for (float& logit : wanted) logit = 30.0f * std::tanh(logit * 0.7f / 30.0f);
  EXPECT_LT(distance(device.download<float>(), wanted), 5e-7);
}

}  // namespace
}  // namespace quire::cuda
