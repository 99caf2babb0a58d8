#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/attention/kv_row_numbers.h"
#include "backend/cuda/device_case.h"
#include "backend/cuda/operations.h"
#include "tensor/float16.h"

namespace quire::cuda {
namespace {

using LatentStore = DeviceTest;

std::vector<float> some_noise(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct LatentCase {
  KvFormat keys = KvFormat::bf16, values = KvFormat::bf16;
  RopePairing pairing = RopePairing::interleaved;
  uint32_t key_dim = 64, value_dim = 512;
  bool rotates = true, grows = false;
};

// A step of two runs in pages, on both sides. Keys and values are parts of wider rows.
void compare_latent_store(const LatentCase& test) {
  SCOPED_TRACE(std::string(name(test.keys)) + " and " + std::string(name(test.values)) + ", " +
               std::to_string(test.key_dim) + " and " + std::to_string(test.value_dim));
  constexpr uint32_t kTokens = 9, kHeads = 6, kPages = 8;
  const uint32_t key_dim = test.key_dim, value_dim = test.value_dim, query_dim = key_dim + value_dim,
                 pairs = key_dim / 2;
  const KvLayerShape shape{.kv_heads = 1,
                           .key_dim = key_dim,
                           .value_dim = value_dim,
                           .key_format = test.keys,
                           .value_format = test.values,
                           .key_goes_on = true};
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
  const size_t both_width = query_dim;
  std::vector<float> query = some_noise(kTokens * kHeads * query_dim, 9),
                     both = some_noise(kTokens * both_width, 10);
  std::vector<float> value = some_noise(kTokens * value_dim, 11), cos(kTokens * pairs), sin(cos.size());
  for (size_t i = 0; i < cos.size(); ++i) {
    cos[i] = float(std::cos(double(i)));
    sin[i] = float(std::sin(double(i)));
  }
  const DeviceBuffer device_query = DeviceBuffer::of(query), device_both = DeviceBuffer::of(both),
                     device_value = DeviceBuffer::of(value), device_cos = DeviceBuffer::of(cos),
                     device_sin = DeviceBuffer::of(sin), device_positions = DeviceBuffer::of(positions),
                     device_places = DeviceBuffer::of(token_places);
  const QueryTemperature temperature = {.slope = test.grows ? 0.1f : 0.0f, .step = 16, .offset = 3};

  CpuBackend cpu(scalar_kernels(), 1);
  cpu.begin_step(
      {.tokens = ids, .positions = positions, .run_of_token = run_of, .runs = runs, .logit_rows = {}}, {});
  const KvGroupView group = {
      .layout = &layout.groups[0], .pages = pages.data(), .page_ids = page_ids, .table_begin = table_begin};
  cpu.rope_store({.query = {query.data(), kTokens, kHeads * query_dim, kHeads * query_dim},
                  .key = {both.data() + value_dim, kTokens, key_dim, both_width},
                  .value = {value.data(), kTokens, value_dim, value_dim},
                  .head_dim = query_dim,
                  .cos = test.rotates ? Rows{cos.data(), kTokens, pairs, pairs} : Rows{},
                  .sin = test.rotates ? Rows{sin.data(), kTokens, pairs, pairs} : Rows{},
                  .pairing = test.pairing,
                  .temperature = temperature,
                  .kv = {&group, &layout.groups[0].layers[1]}});

  const DeviceBuffer query_out(query.size() * 2), query_f32(query.size() * 4);
  const Stream stream;
  CUDA_CHECK(cudaDeviceSynchronize());
  DeviceRopeTable table;
  if (test.rotates)
    table = {.cos = device_cos.as<float>(), .sin = device_sin.as<float>(), .pairs = pairs, .scale = 1};
  rope_store({.query = {device_query.as<float>(), kTokens, kHeads * query_dim, kHeads * query_dim},
              .key = {device_both.as<float>() + value_dim, kTokens, key_dim, both_width},
              .value = {device_value.as<float>(), kTokens, value_dim, value_dim},
              .head_dim = query_dim,
              .query_norm = {},
              .key_norm = {},
              .temperature = temperature,
              .table = table,
              .pairing = test.pairing,
              .rows = paged_rows(layout.groups[0], 1, device_pages.as<std::byte>(), kPages),
              .key_format = test.keys,
              .value_format = test.values,
              .token_places = device_places.as<uint32_t>(),
              .query_numbers = numbers_of(test.keys),
              .query_out = query_out.as<uint16_t>(),
              .query_f32 = query_f32.as<float>()},
             {nullptr, device_positions.as<uint32_t>(), kTokens}, stream.get());
  stream.wait();
  EXPECT_EQ(device_pages.download<std::byte>(), pages);
  std::vector<uint16_t> wanted;
  for (size_t i = 0; i < query.size(); ++i) {
    const KvFormat format = i % query_dim < key_dim ? test.keys : test.values;
    wanted.push_back(numbers_of(format) == HalfKind::bf16 ? f32_to_bf16(query[i]) : f32_to_f16(query[i]));
  }
  EXPECT_EQ(query_f32.download<float>(), query);
  EXPECT_EQ(query_out.download<uint16_t>(), wanted);
}

TEST_F(LatentStore, HasTheCpusBytesInEveryFormat) {
  for (const KvFormat format : kKvFormats) {
    compare_latent_store({.keys = format, .values = format});
    compare_latent_store({.keys = format, .values = format, .pairing = RopePairing::halves, .grows = true});
    compare_latent_store({.keys = KvFormat::f16, .values = format, .key_dim = 8, .value_dim = 16});
    compare_latent_store({.keys = format, .values = KvFormat::bf16, .rotates = false});
  }
}

}  // namespace
}  // namespace quire::cuda
