#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/matmul/activation_layout.h"
#include "tensor/float16.h"

// Of tests only: sequences with queries, keys and values, in pages as the cache has them.

namespace quire::cuda {

struct AttentionCase {
  KvFormat key_format = KvFormat::bf16, value_format = KvFormat::bf16;
  uint32_t kv_heads = 2, group = 4;
  uint32_t key_dim = 128, value_dim = 128;
  bool key_goes_on = false;
  uint32_t page_tokens = 32;
  uint32_t window = 0;
  float soft_cap = 0;
  bool has_sinks = false;
  float query_size = 2;  // larger: references are raised more often
  std::vector<uint32_t> lengths = {2341, 517, 4133};

  uint32_t heads() const { return kv_heads * group; }
  uint32_t query_dim() const { return key_goes_on ? key_dim + value_dim : key_dim; }
  HalfKind numbers() const { return numbers_of(key_format); }
  AttentionShape shape() const { return {kv_heads, group, window}; }
};

// Numbers that look like noise, the same on every machine: roughly normal.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  float operator()() {
    float sum = 0;
    for (int i = 0; i < 3; ++i) sum += float(next() >> 40) * 0x1p-24f - 0.5f;
    return sum * 2.0f;
  }
  uint32_t below(uint32_t n) { return uint32_t((next() >> 32) * n >> 32); }

 private:
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    return state_ ^= state_ << 17;
  }
  uint64_t state_;
};

// A case in the memory of both sides. Every token of its sequences has a query; token numbers follow one another.
class AttentionFixture {
 public:
  explicit AttentionFixture(const AttentionCase& test) : test_(test) {
    const KvLayerShape shape{.kv_heads = test.kv_heads,
                             .key_dim = test.key_dim,
                             .value_dim = test.value_dim,
                             .window = test.window,
                             .key_format = test.key_format,
                             .value_format = test.value_format,
                             .key_goes_on = test.key_goes_on};
    layout_ = make_kv_layout(std::vector(2, shape), test.page_tokens);
    place_sequences();
    fill();
  }

  const AttentionCase& test() const { return test_; }
  uint32_t tokens() const { return tokens_; }
  uint32_t first_token(size_t sequence) const { return first_tokens_[sequence]; }
  uint32_t table(size_t sequence) const { return tables_[sequence]; }
  size_t out_width() const { return size_t(test_.heads()) * test_.value_dim; }
  float scale() const { return 1.0f / std::sqrt(float(test_.query_dim())); }

  PagedRows host_rows() const { return rows_in(const_cast<std::byte*>(pages_.data())); }
  const uint16_t* host_query(uint32_t token, uint32_t head) const {
    return query_.data() + (size_t(token) * test_.heads() + head) * test_.query_dim();
  }
  const uint32_t* host_table(size_t sequence) const { return page_ids_.data() + tables_[sequence]; }
  const float* host_sink(uint32_t head) const { return test_.has_sinks ? sinks_.data() + head : nullptr; }

  AttentionParams params() const {
    return {.numbers = test_.numbers(),
            .key_format = test_.key_format,
            .value_format = test_.value_format,
            .query = device_query_.as<uint16_t>(),
            .query_rows = tokens_,
            .heads = test_.heads(),
            .rows = rows_in(device_pages_.as<std::byte>()),
            .page_ids = device_page_ids_.as<uint32_t>(),
            .window = test_.window,
            .scale = scale(),
            .soft_cap = test_.soft_cap,
            .sinks = test_.has_sinks ? device_sinks_.as<float>() : nullptr,
            .out = nullptr,
            .out_tokens = tokens_,
            .out_f32 = device_out_.as<float>()};
  }

  // As the cache does with pages that a window has left behind. Before `upload`.
  void free_pages(size_t sequence, uint32_t count) {
    std::fill_n(page_ids_.begin() + tables_[sequence], count, kNoPage);
  }

  void upload() {
    device_query_ = DeviceBuffer::of(query_);
    device_pages_ = DeviceBuffer::of(pages_);
    device_page_ids_ = DeviceBuffer::of(page_ids_);
    device_sinks_ = DeviceBuffer::of(sinks_);
    device_out_ = DeviceBuffer(tokens_ * out_width() * sizeof(float));
    const uint32_t zero = 0;
    tile_counter_ = DeviceBuffer::of(std::vector(1, zero));
  }

  // The runs of all sequences, cut into chunks.
  std::vector<AttentionRun> runs_of(uint32_t chunk) const {
    std::vector<AttentionRun> runs;
    for (size_t s = 0; s < test_.lengths.size(); ++s) {
      for (uint32_t row = 0; row < test_.lengths[s]; row += chunk)
        runs.push_back({first_tokens_[s] + row, std::min(chunk, test_.lengths[s] - row), row, tables_[s]});
    }
    return runs;
  }

  // Computes a plan with the fast kernels, where it has no parts. Rows that it does not compute are NaN.
  std::vector<float> compute(const AttentionPlan& plan) { return compute_to(plan, nullptr); }
  std::vector<float> compute_to(const AttentionPlan& plan, uint8_t* activations) {
    return compute_by(launch_prefill_attention, launch_decode_attention, plan, activations);
  }
  // With the general kernel. REQUIRES: splits that are merged apart.
  std::vector<float> compute_generally(const AttentionPlan& plan, uint8_t* activations = nullptr) {
    const auto prefill = [](const AttentionParams& params, const PrefillTile* tiles, uint32_t count,
                            const AttentionWorkspace&,
                            cudaStream_t stream) { launch_general_prefill(params, tiles, count, stream); };
    const auto few = [](const AttentionParams& params, const DecodeWork& work,
                        const AttentionWorkspace& workspace, cudaStream_t stream) {
      launch_general_units(params, work, workspace.partials, stream);
    };
    return compute_by(prefill, few, plan, activations);
  }

  std::vector<float> compute_plainly(const std::vector<PlainRow>& rows) {
    device_out_.fill(0xff);
    const DeviceBuffer device = DeviceBuffer::of(rows);
    settle();
    launch_plain_attention(params(), device.as<PlainRow>(), uint32_t(rows.size()), stream_.get());
    stream_.wait();
    return device_out_.download<float>();
  }

  // Some rows of every sequence: the first and the last ones, those about the edges of blocks and splits, others.
  std::vector<PlainRow> some_rows(uint32_t per_sequence) const {
    std::vector<PlainRow> rows;
    Noise noise(77);
    for (size_t s = 0; s < test_.lengths.size(); ++s) {
      const uint32_t length = test_.lengths[s];
      for (uint32_t i = 0; i < per_sequence; ++i) {
        uint32_t row = noise.below(length);
        if (i % 4 == 0) row = std::min(length - 1, (i / 4 + 1) * kBlockKeys + i % 3 - 1);
        if (i == 1) row = 0;
        if (i == 2) row = length - 1;
        rows.push_back({first_tokens_[s] + row, row, tables_[s]});
      }
    }
    return rows;
  }

  static std::vector<AttentionRun> runs_of(const std::vector<PlainRow>& rows) {
    std::vector<AttentionRun> runs;
    for (const PlainRow& row : rows) runs.push_back({row.token, 1, row.row, row.table});
    return runs;
  }

  // As attention gets it.
  std::vector<float> query_row(uint32_t token, uint32_t head) const {
    std::vector<float> row(test_.query_dim());
    for (uint32_t d = 0; d < row.size(); ++d) {
      const uint16_t bits = host_query(token, head)[d];
      row[d] = query_numbers(d) == HalfKind::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
    return row;
  }

  // The pages of all layers on the host, for runs whose tables begin there.
  KvGroupView host_group(std::span<const uint32_t> table_begin) const {
    return {.layout = &layout_.groups[0],
            .pages = const_cast<std::byte*>(pages_.data()),
            .page_ids = page_ids_,
            .table_begin = table_begin};
  }

  // One row in double precision.
  std::vector<double> exact(uint32_t token, uint32_t row, uint32_t table, uint32_t head) const;

 private:
  HalfKind query_numbers(uint32_t d) const {
    return d < test_.key_dim ? test_.numbers() : numbers_of(test_.value_format);
  }
  // A plan's units in the device's memory.
  struct UnitsThere {
    DeviceBuffer units, merges, partials;
    uint32_t columns;

    UnitsThere(const AttentionUnits& list, const AttentionCase& test)
        : units(DeviceBuffer::of(list.units)),
          merges(DeviceBuffer::of(list.merges)),
          partials(decode_partial_bytes(list.places, test.shape(), std::max(list.columns, test.group),
                                        test.value_dim)),
          columns(std::max(list.columns, test.group)) {}
    DecodeWork work(const AttentionUnits& list) const {
      return {.units = units.as<DecodeUnit>(),
              .unit_count = uint32_t(list.units.size()),
              .merges = merges.as<uint32_t>(),
              .merge_count = uint32_t(list.merges.size()),
              .columns = columns};
    }
  };

  template <class Prefill, class Few>
  std::vector<float> compute_by(const Prefill& prefill, const Few& few, const AttentionPlan& plan,
                                uint8_t* activations) {
    device_out_.fill(0xff);
    AttentionParams params = this->params();
    params.out = activations;
    const DeviceBuffer tiles = DeviceBuffer::of(plan.tiles);
    const UnitsThere some(plan.few, test_), parts(plan.parts, test_);
    const std::vector<uint32_t> zeros(plan.few.places * test_.shape().kv_heads);
    const DeviceBuffer counters = DeviceBuffer::of(zeros);
    const AttentionWorkspace workspace = {some.partials.as<float>(), tile_counter_.as<uint32_t>(),
                                          counters.as<uint32_t>()};
    settle();
    prefill(params, tiles.as<PrefillTile>(), uint32_t(plan.tiles.size()), workspace, stream_.get());
    few(params, some.work(plan.few), workspace, stream_.get());
    launch_general_units(params, parts.work(plan.parts), parts.partials.as<float>(), stream_.get());
    stream_.wait();
    EXPECT_EQ(counters.download<uint32_t>(), zeros);
    return device_out_.download<float>();
  }

  PagedRows rows_in(std::byte* pages) const {
    return paged_rows(layout_.groups[0], 1, pages, uint32_t(pages_.size() / layout_.groups[0].page_bytes));
  }

  // Memory is filled and copied in another stream, which ours does not wait for.
  static void settle() { CUDA_CHECK(cudaDeviceSynchronize()); }

  // Pages in a random order, and one that nobody uses.
  void place_sequences() {
    uint32_t pages = 1;
    for (const uint32_t length : test_.lengths) {
      first_tokens_.push_back(tokens_);
      tokens_ += length;
      tables_.push_back(pages - 1);
      pages += (length + test_.page_tokens - 1) / test_.page_tokens;
    }
    page_ids_.resize(pages);
    std::iota(page_ids_.begin(), page_ids_.end(), 0u);
    Noise noise(5);
    for (uint32_t i = pages - 1; i > 0; --i) std::swap(page_ids_[i], page_ids_[noise.below(i + 1)]);
  }

  // Every row of every page, so that those past a sequence's end are finite.
  void fill() {
    Noise noise(9);
    const KvGroupLayout& group = layout_.groups[0];
    pages_.resize(page_ids_.size() * group.page_bytes);
    std::vector<float> key(test_.key_dim), value(test_.value_dim);
    for (size_t page = 0; page < page_ids_.size(); ++page) {
      for (const KvLayerLayout& layer : group.layers) {
        for (uint32_t i = 0; i < test_.kv_heads * test_.page_tokens; ++i) {
          const uint32_t head = i / test_.page_tokens, row = i % test_.page_tokens;
          std::byte* at = pages_.data() + page * group.page_bytes;
          for (float& number : key) number = noise();
          for (float& number : value) number = noise();
          store_kv_row(test_.key_format, key, at + layer.key_offset(head, row));
          store_kv_row(test_.value_format, value, at + layer.value_offset(head, row));
        }
      }
    }
    query_.resize(size_t(tokens_) * test_.heads() * test_.query_dim());
    for (size_t i = 0; i < query_.size(); ++i) {
      const float number = noise() * test_.query_size;
      query_[i] = query_numbers(uint32_t(i % test_.query_dim())) == HalfKind::bf16 ? f32_to_bf16(number)
                                                                                   : f32_to_f16(number);
    }
    for (uint32_t h = 0; h < test_.heads(); ++h) sinks_.push_back(noise() + 1.0f);
  }

  AttentionCase test_;
  KvLayout layout_;
  uint32_t tokens_ = 0;
  std::vector<uint32_t> first_tokens_, tables_, page_ids_;
  std::vector<std::byte> pages_;
  std::vector<uint16_t> query_;
  std::vector<float> sinks_;
  Stream stream_;
  DeviceBuffer device_query_, device_pages_, device_page_ids_, device_sinks_, device_out_, tile_counter_;
};

// Some rows of a fixture as a step of the CPU's backend, each a run of its own.
class CpuStep {
 public:
  CpuStep(const AttentionFixture& fixture, const std::vector<PlainRow>& rows);
  CpuStep(const CpuStep&) = delete;
  CpuStep& operator=(const CpuStep&) = delete;

  AttendParams attend;

  void begin(CpuBackend& cpu) const {
    cpu.begin_step(
        {.tokens = ids_, .positions = positions_, .run_of_token = run_of_, .runs = runs_, .logit_rows = {}},
        {});
  }
  // [rows, heads, value_dim]
  const std::vector<float>& compute(CpuBackend& cpu) {
    begin(cpu);
    cpu.attend(attend);
    return out_;
  }

 private:
  std::vector<TokenId> ids_;
  std::vector<uint32_t> positions_, run_of_, table_begin_;
  std::vector<TokenRun> runs_;
  std::vector<float> query_, out_;
  KvGroupView group_;
};

inline CpuStep::CpuStep(const AttentionFixture& fixture, const std::vector<PlainRow>& rows) {
  const AttentionCase& test = fixture.test();
  const uint32_t count = uint32_t(rows.size());
  for (uint32_t i = 0; i < count; ++i) {
    runs_.push_back({i, 1, rows[i].row});
    positions_.push_back(rows[i].row);
    run_of_.push_back(i);
    table_begin_.push_back(rows[i].table);
    for (uint32_t head = 0; head < test.heads(); ++head) {
      const std::vector<float> row = fixture.query_row(rows[i].token, head);
      query_.insert(query_.end(), row.begin(), row.end());
    }
  }
  ids_.resize(count);
  out_.resize(count * fixture.out_width());
  group_ = fixture.host_group(table_begin_);
  attend.query = {query_.data(), count, query_.size() / count, query_.size() / count};
  attend.heads = test.heads();
  attend.kv = {&group_, &group_.layout->layers[1]};
  attend.scale = fixture.scale();
  attend.soft_cap = test.soft_cap;
  if (test.has_sinks) {
    const auto* sinks = reinterpret_cast<const std::byte*>(fixture.host_sink(0));
    attend.sinks = {{sinks, DType::f32, 1, test.heads()}, nullptr};
  }
  attend.out.f32 = {out_.data(), count, fixture.out_width(), fixture.out_width()};
}

inline std::vector<double> AttentionFixture::exact(uint32_t token, uint32_t row, uint32_t table,
                                                   uint32_t head) const {
  const PagedRows rows = host_rows();
  const uint32_t kv_head = head / test_.group;
  const std::vector<float> query = query_row(token, head);
  std::vector<float> key_row(test_.key_dim), value_row(test_.value_dim);
  std::vector<double> scores, values(test_.value_dim);
  double largest = test_.has_sinks ? double(sinks_[head]) : -1e300, sum = 0;
  const uint32_t first = first_visible(row, test_.window);
  for (uint32_t key = first; key <= row; ++key) {
    const uint32_t page = page_ids_[table + key / test_.page_tokens];
    load_kv_row(test_.key_format, rows.key_row(page, kv_head, key % test_.page_tokens), key_row);
    double score = 0;
    for (uint32_t d = 0; d < test_.key_dim; ++d) score += double(query[d]) * double(key_row[d]);
    if (test_.key_goes_on) {
      load_kv_row(test_.value_format, rows.value_row(page, kv_head, key % test_.page_tokens), value_row);
      for (uint32_t d = 0; d < test_.value_dim; ++d)
        score += double(query[test_.key_dim + d]) * double(value_row[d]);
    }
    score *= double(scale());
    if (test_.soft_cap > 0) score = double(test_.soft_cap) * std::tanh(score / double(test_.soft_cap));
    scores.push_back(score);
    largest = std::max(largest, score);
  }
  if (test_.has_sinks) sum += std::exp(double(sinks_[head]) - largest);
  for (uint32_t key = first; key <= row; ++key) {
    const uint32_t page = page_ids_[table + key / test_.page_tokens];
    load_kv_row(test_.value_format, rows.value_row(page, kv_head, key % test_.page_tokens), value_row);
    const double p = std::exp(scores[key - first] - largest);
    sum += p;
    for (uint32_t d = 0; d < test_.value_dim; ++d) values[d] += p * double(value_row[d]);
  }
  for (double& value : values) value /= sum;
  if (!is_turned(test_.value_format)) return values;
  std::vector<float> turned(values.begin(), values.end());
  turn_kv_row(turned);
  return {turned.begin(), turned.end()};
}

}  // namespace quire::cuda
