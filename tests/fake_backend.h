#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/backend.h"

namespace quire {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31;
  return x * 0x94d049bb133111ebu ^ x >> 29;
}

// A backend that computes nothing but what the engine can get wrong: a token's key row is a hash of the key row before
// it and of the token, and its "attention" a sum over all rows it sees. So an answer is right only if every row of every
// page it reads is the one of its own tokens.
class FakeBackend : public Backend {
 public:
  Buffer allocate(size_t bytes) override { return Buffer(bytes); }
  Weight prepare(const Weight& weight, const WeightUse&) override { return weight; }
  size_t prepared_bytes(const MatrixView&, const WeightUse&) const override { return 0; }
  ActivationForm form_for(DType) const override { return ActivationForm::f32; }
  size_t activation_bytes(ActivationForm, size_t width) const override { return width * sizeof(float); }

  void begin_step(const BatchView& batch, std::span<const KvGroupView>) override {
    batch_ = batch;
    states_.assign(batch.tokens.size(), 0);
  }
  void embed(const EmbedParams&) override {}
  void norm_quantize(const NormQuantizeParams&) override {}
  void project(const ProjectParams&) override {}
  void activate(const ActivateParams&) override {}
  void rope_table(const RopeTableParams&) override {}
  void route_experts(const RouteExpertsParams&) override {}
  void project_experts(const ProjectExpertsParams&) override {}

  void rope_store(const RopeStoreParams& params) override {
    for (size_t t = 0; t < batch_.tokens.size(); ++t) {
      const uint32_t run = batch_.run_of_token[t];
      const uint32_t position = params.kv.head_row(run, 0, batch_.runs[run].row_of(uint32_t(t)));
      const uint64_t before = position == 0 ? kStart : read(params.kv, run, position - 1);
      const uint64_t now = mix(before, batch_.tokens[t]);
      std::memcpy(params.kv.key_row(run, 0, position), &now, sizeof(now));
    }
  }
  void attend(const AttendParams& params) override {
    const uint32_t window = params.kv.layer->shape.window;
    for (size_t t = 0; t < batch_.tokens.size(); ++t) {
      const uint32_t run = batch_.run_of_token[t];
      const uint32_t position = params.kv.head_row(run, 0, batch_.runs[run].row_of(uint32_t(t)));
      const uint32_t first = window == 0 || position < window ? 0 : position + 1 - window;
      uint64_t sum = 0;
      for (uint32_t p = first; p <= position; ++p) sum += mix(read(params.kv, run, p), 1);
      states_[t] = mix(states_[t], sum);
    }
  }
  void split_heads(const SplitHeadsParams&) override {}
  void project_heads(const ProjectHeadsParams&) override {}
  void choose_rows(const ChooseRowsParams&) override {}
  void choose_blocks(const ChooseBlocksParams&) override {}
  // A state is the hash of all tokens, and what a token makes of it all that it reads.
  void convolve(const ConvolveParams&) override {}
  void delta_net(const DeltaNetParams& params) override {
    for (uint32_t r = 0; r < batch_.runs.size(); ++r) {
      const TokenRun& run = batch_.runs[r];
      uint64_t hash = kStart;
      if (const std::byte* before = params.state.state_before(r, 0)) std::memcpy(&hash, before, sizeof(hash));
      for (uint32_t t = run.begin; t < run.begin + run.count; ++t) {
        hash = mix(hash, batch_.tokens[t]);
        states_[t] = mix(states_[t], hash);
        for (uint32_t i = 0; i < params.state.states_left(r); ++i) {
          if (params.state.state_row(r, i) == run.row_of(t) + 1)
            std::memcpy(params.state.state_left(r, 0, i), &hash, sizeof(hash));
        }
      }
    }
  }
  void tap(const Tap& tap, const AttendParams& params, std::span<float> values) override {
    const uint32_t run = batch_.run_of_token[tap.token];
    const uint32_t last = params.kv.head_row(run, 0, batch_.runs[run].row_of(tap.token));
    for (uint32_t h = 0; h < tap.heads; ++h) {
      float* to = &values[tap.at + size_t(h / tap.heads_per_row) * tap.width];
      for (uint32_t i = 0; i < tap.width; ++i) {
        const bool seen = tap.what == Tap::What::shares && i <= last;
        const float value =
            seen ? float(mix(read(params.kv, run, i), batch_.positions[tap.token]) % 1000) : 0.0f;
        if (tap.join == Tap::Join::store) to[i] = value;
        if (tap.join == Tap::Join::sum) to[i] += value;
        if (tap.join == Tap::Join::most) to[i] = std::max(to[i], value);
      }
    }
  }
  void rotate_keys(const RotateKeysParams& params) override {
    for (size_t row = 0; row < params.back.size(); ++row) {
      if (params.back[row] == 0) continue;
      std::byte* at = params.keys + row * params.layer->key_row_bytes;
      uint64_t key = 0;
      std::memcpy(&key, at, sizeof(key));
      key = mix(key, params.back[row]);
      std::memcpy(at, &key, sizeof(key));
    }
  }
  void expected_scores(const ExpectedScoresParams& params) override {
    for (const Rows& rows : {params.scores, params.value_norms}) {
      for (size_t h = 0; h < rows.rows; ++h) {
        for (uint32_t row = 0; row < params.rows; ++row)
          rows.row(h)[row] = float(mix(read(params.kv, params.run, row), h) % 1000) / 100;
      }
    }
  }
  void logits(const LogitsParams& params) override {
    for (size_t i = 0; i < batch_.logit_rows.size(); ++i)
      std::memcpy(params.out.row(i), &states_[batch_.logit_rows[i]], sizeof(uint64_t));
  }
  void sample(std::span<const SampleParams> params, std::span<SampleResult> results) override {
    for (size_t i = 0; i < params.size(); ++i) {
      uint64_t state = 0;
      std::memcpy(&state, params[i].logits.data(), sizeof(state));
      results[i] = {};
      results[i].token =
          draw(state, params[i].seed, params[i].choice, params[i].position, params[i].logits.size());
    }
  }

  static TokenId draw(uint64_t state, uint64_t seed, uint32_t choice, uint32_t position, size_t vocab) {
    return TokenId(mix(mix(state, seed), mix(choice, position)) % vocab);
  }

  static constexpr uint32_t kState = UINT32_MAX;
  // The token that follows `tokens` in a model whose layers have these windows, or a state.
  static TokenId next(std::span<const TokenId> tokens, std::span<const uint32_t> windows, uint64_t seed,
                      uint32_t choice, size_t vocab) {
    std::vector<uint64_t> sums(1, 0);
    uint64_t hash = kStart;
    for (TokenId token : tokens) {
      hash = mix(hash, token);
      sums.push_back(sums.back() + mix(hash, 1));
    }
    uint64_t state = 0;
    const size_t n = tokens.size();
    for (uint32_t window : windows) {
      const uint64_t seen = sums[n] - sums[window == 0 || n <= window ? 0 : n - window];
      state = mix(state, window == kState ? hash : seen);
    }
    return draw(state, seed, choice, uint32_t(n), vocab);
  }

  static constexpr uint64_t kStart = 42;

 private:
  static uint64_t read(const KvView& kv, uint32_t run, uint32_t position) {
    uint64_t hash = 0;
    std::memcpy(&hash, kv.key_row(run, 0, position), sizeof(hash));
    return hash;
  }

  BatchView batch_;
  std::vector<uint64_t> states_;  // by token of the batch
};

}  // namespace quire
