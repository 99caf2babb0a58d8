#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "kv/host_kv.h"
#include "tensor/float16.h"

// What the tests of attention attend to.

namespace quire {

// One sequence whose keys and values are random, and its attention in double precision.
struct AttentionCase {
  KvLayerShape shape;
  uint32_t heads = 0;
  float soft_cap = 0;
  bool sinks = false;
  bool slopes = false;
};

inline constexpr float kScale = 0.3f;

// What a page gives back of rows of `dim` values.
inline std::vector<float> stored(KvFormat format, std::vector<float> values, size_t dim) {
  std::vector<std::byte> bytes(kv_row_bytes(format, dim));
  for (size_t i = 0; i < values.size(); i += dim) {
    const std::span row(values.data() + i, dim);
    store_kv_row(format, row, bytes.data());
    load_kv_row(format, bytes.data(), row);
    if (is_turned(format)) turn_kv_row(row);
  }
  return values;
}

class Attention {
 public:
  Attention(const AttentionCase& test, uint32_t tokens)
      : test_(test), tokens_(tokens), layout_(make_kv_layout(std::vector{test.shape})) {
    std::mt19937 random(tokens + test.heads);
    const auto fill = [&](std::vector<float>& values, size_t count) {
      values.resize(count);
      for (float& value : values) value = float(int(random() % 2001) - 1000) / 500.0f;
    };
    fill(query_, size_t(tokens) * test.heads * test.shape.query_dim());
    fill(key_, size_t(tokens) * test.shape.kv_heads * test.shape.key_dim);
    fill(value_, size_t(tokens) * test.shape.kv_heads * test.shape.value_dim);
    fill(sinks_, test.heads);
    for (uint32_t h = 0; test.slopes && h < test.heads; ++h) slopes_.push_back(0.7f / float(1u << h % 8));
    see();
  }

  // Makes some numbers of a row very small beside others.
  void spread() {
    for (size_t i = 0; i < key_.size(); ++i) key_[i] = std::ldexp(key_[i], -int(i % 17));
    for (size_t i = 0; i < value_.size(); ++i) value_[i] = std::ldexp(value_[i], -int(i % 19));
    see();
  }

  // The last `count` tokens' rows, computed in runs of at most `chunk` by `threads` threads.
  std::vector<float> compute(const CpuKernels& kernels, uint32_t count, uint32_t chunk, uint32_t threads) {
    CpuBackend backend(kernels, threads);
    HostKv kv(layout_, pages_for(layout_, tokens_, tokens_, 1));
    PageTable table = kv.make_table();
    EXPECT_TRUE(kv.reserve(table, tokens_));
    const PageTable* tables[] = {&table};
    const size_t width = size_t(test_.heads) * test_.shape.value_dim;
    std::vector<float> out(count * width);
    store(backend, kv, tables);
    for (uint32_t done = 0; done < count; done += chunk) {
      const uint32_t n = std::min(chunk, count - done), first = tokens_ - count + done;
      begin(backend, first, n);
      KvTables flat;
      const std::vector<KvGroupView> groups = kv.view(tables, flat);
      const KvView view{&groups[0], &layout_.groups[0].layers[0]};
      Activation result;
      result.f32 = {out.data() + done * width, n, width, width};
      AttendParams params{.query = rows(stored_query_, first, n),
                          .heads = test_.heads,
                          .kv = view,
                          .scale = kScale,
                          .soft_cap = test_.soft_cap,
                          .sinks = {},
                          .slopes = slopes_,
                          .out = result};
      if (test_.sinks)
        params.sinks = {{reinterpret_cast<const std::byte*>(sinks_.data()), DType::f32, 1, test_.heads},
                        nullptr};
      backend.attend(params);
    }
    return out;
  }

  // Of the last token: [heads, tokens]; of one head alone if it is given.
  std::vector<float> shares(const CpuKernels& kernels, uint32_t threads,
                            std::optional<uint32_t> head = std::nullopt) {
    CpuBackend backend(kernels, threads);
    HostKv kv(layout_, pages_for(layout_, tokens_, tokens_, 1));
    PageTable table = kv.make_table();
    EXPECT_TRUE(kv.reserve(table, tokens_));
    const PageTable* tables[] = {&table};
    store(backend, kv, tables);
    KvTables flat;
    const std::vector<KvGroupView> groups = kv.view(tables, flat);
    std::vector<float> out(size_t(test_.heads) * tokens_);
    AttendParams params{.query = rows(stored_query_, 0, tokens_),
                        .heads = test_.heads,
                        .kv = {&groups[0], &layout_.groups[0].layers[0]},
                        .scale = kScale,
                        .soft_cap = test_.soft_cap,
                        .sinks = {},
                        .slopes = slopes_,
                        .out = {}};
    const Tap tap{.token = tokens_ - 1,
                  .first_head = head.value_or(0),
                  .heads = head ? 1 : test_.heads,
                  .width = tokens_,
                  .at = size_t(head.value_or(0)) * tokens_};
    if (test_.sinks)
      params.sinks = {{reinterpret_cast<const std::byte*>(sinks_.data()), DType::f32, 1, test_.heads},
                      nullptr};
    backend.tap(tap, params, out);
    return out;
  }

  // What the last token's attention comes to if it takes such shares of the values.
  std::vector<double> values_under(std::span<const float> shares) const {
    const KvLayerShape& s = test_.shape;
    std::vector<double> out;
    for (uint32_t h = 0; h < test_.heads; ++h) {
      const uint32_t kv_head = h / (test_.heads / s.kv_heads);
      for (uint32_t d = 0; d < s.value_dim; ++d) {
        double value = 0;
        for (uint32_t p = 0; p < tokens_; ++p)
          value += double(shares[h * tokens_ + p]) *
                   double(seen_value_[(size_t(p) * s.kv_heads + kv_head) * s.value_dim + d]);
        out.push_back(value);
      }
    }
    return out;
  }

  void overflow_last_value() { value_.back() = std::numeric_limits<float>::infinity(); }

  std::vector<double> expected(uint32_t count) const {
    return expected(count, seen_query_, seen_key_, seen_value_);
  }

  // As if queries were not rounded.
  std::vector<double> expected_of_queries(uint32_t count) const {
    return expected(count, scaled_query_, seen_key_, seen_value_);
  }

  // As if pages lost nothing.
  std::vector<double> expected_of_floats(uint32_t count) const {
    return expected(count, scaled_query_, key_, value_);
  }

 private:
  std::vector<double> expected(uint32_t count, const std::vector<float>& queries,
                               const std::vector<float>& keys, const std::vector<float>& values) const {
    const KvLayerShape& s = test_.shape;
    std::vector<double> out;
    for (uint32_t t = tokens_ - count; t < tokens_; ++t) {
      for (uint32_t h = 0; h < test_.heads; ++h) {
        const uint32_t kv_head = h / (test_.heads / s.kv_heads);
        const uint32_t first = s.window == 0 || t < s.window ? 0 : t + 1 - s.window;
        std::vector<double> scores;
        for (uint32_t p = first; p <= t; ++p) {
          double score = 0;
          const float* query = &queries[(size_t(t) * test_.heads + h) * s.query_dim()];
          for (uint32_t d = 0; d < s.key_dim; ++d)
            score += double(query[d]) * double(keys[(size_t(p) * s.kv_heads + kv_head) * s.key_dim + d]);
          for (uint32_t d = 0; s.key_goes_on && d < s.value_dim; ++d)
            score += double(query[s.key_dim + d]) *
                     double(values[(size_t(p) * s.kv_heads + kv_head) * s.value_dim + d]);
          if (test_.soft_cap > 0) score = double(test_.soft_cap) * std::tanh(score / double(test_.soft_cap));
          if (test_.slopes) score -= double(slopes_[h]) * double(t - p);
          scores.push_back(score);
        }
        double max = *std::max_element(scores.begin(), scores.end());
        if (test_.sinks) max = std::max(max, double(sinks_[h]));
        double sum = test_.sinks ? std::exp(double(sinks_[h]) - max) : 0.0;
        for (double& score : scores) sum += score = std::exp(score - max);
        for (uint32_t d = 0; d < s.value_dim; ++d) {
          double value = 0;
          for (uint32_t p = first; p <= t; ++p) {
            value += scores[p - first] * double(values[(size_t(p) * s.kv_heads + kv_head) * s.value_dim + d]);
          }
          out.push_back(value / sum);
        }
      }
    }
    return out;
  }

  void see() {
    scaled_query_ = query_;
    for (float& value : scaled_query_) value *= kScale;
    seen_query_ = scaled_query_;
    for (size_t i = 0; i < seen_query_.size(); ++i) {
      const bool goes_on = i % test_.shape.query_dim() >= test_.shape.key_dim;
      const KvFormat format = goes_on ? test_.shape.value_format : test_.shape.key_format;
      if (format == KvFormat::bf16) seen_query_[i] = bf16_to_f32(f32_to_bf16(seen_query_[i]));
    }
    seen_key_ = stored(test_.shape.key_format, key_, test_.shape.key_dim);
    seen_value_ = stored(test_.shape.value_format, value_, test_.shape.value_dim);
  }

  Rows rows(std::vector<float>& values, uint32_t first, uint32_t count) const {
    const size_t width = values.size() / tokens_;
    return {values.data() + first * width, count, width, width};
  }

  void begin(CpuBackend& backend, uint32_t first, uint32_t count) {
    tokens_of_.assign(count, 0);
    run_of_.assign(count, 0);
    positions_.clear();
    for (uint32_t i = 0; i < count; ++i) positions_.push_back(first + i);
    run_ = {0, count, first};
    backend.begin_step({tokens_of_, positions_, run_of_, {&run_, 1}, {}}, {});
  }

  void store(CpuBackend& backend, HostKv& kv, std::span<const PageTable* const> tables) {
    begin(backend, 0, tokens_);
    KvTables flat;
    const std::vector<KvGroupView> groups = kv.view(tables, flat);
    stored_query_ = query_;
    backend.rope_store({.query = rows(stored_query_, 0, tokens_),
                        .key = key_.empty() ? Rows{value_.data(), tokens_, 0, 0} : rows(key_, 0, tokens_),
                        .value = rows(value_, 0, tokens_),
                        .head_dim = test_.shape.query_dim(),
                        .query_norm = nullptr,
                        .key_norm = nullptr,
                        .cos = {},
                        .sin = {},
                        .pairing = RopePairing::halves,
                        .kv = {&groups[0], &layout_.groups[0].layers[0]}});
  }

  AttentionCase test_;
  uint32_t tokens_;
  KvLayout layout_;
  std::vector<float> query_, key_, value_, sinks_, slopes_;
  std::vector<float> scaled_query_, seen_query_;  // what keys are multiplied with
  std::vector<float> stored_query_;               // turned, where keys are
  std::vector<float> seen_key_, seen_value_;      // what the pages give back
  std::vector<TokenId> tokens_of_;
  std::vector<uint32_t> positions_, run_of_;
  TokenRun run_;
};
}  // namespace quire
