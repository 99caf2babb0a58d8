// Expected Attention against its definition: matrices, one by one, in double precision.
#include "engine/pruning/expected_scorer.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "backend/cpu/attention/kv_rows.h"
#include "engine/text_runner.h"
#include "golden_model.h"

namespace quire {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

struct OpenScorer : ExpectedScorer {
  using ExpectedScorer::ExpectedScorer;
  using ExpectedScorer::scores;
};

Vector times(const Matrix& matrix, const Vector& vector) {
  Vector result(matrix.size());
  for (size_t i = 0; i < matrix.size(); ++i) {
    for (size_t j = 0; j < vector.size(); ++j) result[i] += matrix[i][j] * vector[j];
  }
  return result;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Matrix zeros(size_t n) {
  return Matrix(n, Vector(n));
}

// What rotary embedding multiplies a head with at a position; the identity where there is none.
Matrix rotation(const ModelSpec& spec, size_t layer, uint32_t position) {
  Matrix matrix = zeros(spec.layers[0].gqa().key_dim);
  for (size_t i = 0; i < spec.layers[0].gqa().key_dim; ++i) matrix[i][i] = 1;
  if (!spec.layers[layer].gqa().rope) return matrix;
  const RopeSpec& rope = spec.ropes[*spec.layers[layer].gqa().rope];
  const size_t pairs = rope.inverse_frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const size_t a = rope.pairing == RopePairing::interleaved ? 2 * i : i;
    const size_t b = rope.pairing == RopePairing::interleaved ? 2 * i + 1 : i + pairs;
    const double angle = double(position) * double(rope.inverse_frequencies[i]), s = double(rope.scale);
    matrix[a][a] = matrix[b][b] = s * std::cos(angle);
    matrix[b][a] = s * std::sin(angle);
    matrix[a][b] = -matrix[b][a];
  }
  return matrix;
}

// Its columns are orthogonal.
Matrix inverse(const Matrix& rotation) {
  Matrix result = zeros(rotation.size());
  for (size_t i = 0; i < rotation.size(); ++i) {
    double square = 0;
    for (size_t j = 0; j < rotation.size(); ++j) square += rotation[j][i] * rotation[j][i];
    for (size_t j = 0; j < rotation.size(); ++j) result[i][j] = rotation[j][i] / square;
  }
  return result;
}

Matrix hadamard(size_t n) {
  Matrix matrix = zeros(n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j)
      matrix[i][j] = (std::popcount(i & j) % 2 == 0 ? 1 : -1) / std::sqrt(double(n));
  }
  return matrix;
}

// All queries, keys and values of one text, not turned.
struct Seen {
  struct Row {
    Vector key, value;
  };
  std::vector<std::vector<Vector>> queries;  // [layer][token * heads + head]
  std::vector<std::vector<Row>> rows;        // [layer][row * kv_heads + head]
};

Vector row_of(TextRunner& runner, const TextRunner::RowPlace& place) {
  const KvLayerShape& shape = runner.layout().at(runner.layout().places[place.layer].front()).shape;
  const bool is_key = place.which == TextRunner::Which::key;
  std::vector<float> values(is_key ? shape.key_dim : shape.value_dim);
  load_kv_row(is_key ? shape.key_format : shape.value_format, runner.bytes(place).data(), values);
  const Vector wide(values.begin(), values.end());
  return is_key && is_turned(shape.key_format) ? times(hadamard(shape.key_dim), wide) : wide;
}

// Computes the text in one pass and looks at everything.
Seen seen_in(TextRunner& runner, const ModelSpec& spec, std::span<const TokenId> text) {
  Seen seen{std::vector<std::vector<Vector>>(spec.layers.size()),
            std::vector<std::vector<Seen::Row>>(spec.layers.size())};
  const GqaSpec& gqa = spec.layers[0].gqa();  // all of them are alike
  const size_t width = size_t(gqa.heads) * gqa.key_dim;
  std::vector<Tap> taps;
  for (uint32_t l = 0; l < spec.layers.size(); ++l) {
    for (uint32_t t = 0; t < text.size(); ++t)
      taps.push_back({.what = Tap::What::queries,
                      .layer = l,
                      .token = t,
                      .heads = gqa.heads,
                      .width = gqa.key_dim,
                      .at = taps.size() * width});
  }
  const std::vector<Tap> asked = taps;
  const std::vector<float> values = runner
                                        .compute(text, TextRunner::Wanted::last_row, std::move(taps),
                                                 std::vector<float>(asked.size() * width))
                                        .values;
  for (const Tap& tap : asked) {
    for (uint32_t h = 0; h < gqa.heads; ++h) {
      const auto from = values.begin() + ptrdiff_t(tap.at + h * gqa.key_dim);
      seen.queries[tap.layer].emplace_back(from, from + gqa.key_dim);
    }
  }
  for (uint32_t l = 0; l < spec.layers.size(); ++l) {
    if (spec.layers[l].window() > 0) continue;
    for (uint32_t row = 0; row < text.size(); ++row) {
      for (uint32_t h = 0; h < gqa.kv_heads; ++h)
        seen.rows[l].push_back({row_of(runner, {l, h, row, TextRunner::Which::key}),
                                row_of(runner, {l, h, row, TextRunner::Which::value})});
    }
  }
  return seen;
}

// Shows the scorer the text in chunks, and then what it expects.
void show(TokenScorer& scorer, TextRunner& runner, std::span<const TokenId> text, uint32_t chunk) {
  const uint32_t first_seen = scorer.tokens() - std::min(scorer.tokens(), scorer.observed_tokens());
  while (runner.done() < text.size()) {
    const uint32_t first = runner.done(), count = std::min(chunk, uint32_t(text.size()) - first);
    std::vector<Tap> taps;
    for (uint32_t i = 0; i < count; ++i) {
      if (first + i >= first_seen) scorer.ask({.place = i, .row = first + i, .at = 0}, taps);
    }
    scorer.take(runner
                    .compute(text.subspan(first, count), TextRunner::Wanted::last_row, std::move(taps),
                             scorer.values())
                    .values);
  }
  ASSERT_TRUE(scorer.pass(0, text).has_value());
  std::vector<float> values;
  std::vector<Expectation> expectations = scorer.expectations(values);
  scorer.take(runner.expect(std::move(expectations), std::move(values)));
}

// The shares that one query head expects to pay.
Vector expected_shares(const ModelSpec& spec, const Seen& seen, size_t layer, uint32_t head,
                       uint32_t tokens) {
  const uint32_t samples = std::min(tokens, ExpectedScorer::kSamples);
  const size_t n = spec.layers[0].gqa().key_dim;
  std::vector<Vector> plain;
  Vector mean(n);
  for (uint32_t t = tokens - samples; t < tokens; ++t) {
    plain.push_back(times(inverse(rotation(spec, layer, t)),
                          seen.queries[layer][size_t(t) * spec.layers[0].gqa().heads + head]));
    for (size_t i = 0; i < n; ++i) mean[i] += plain.back()[i] / samples;
  }
  Matrix covariance = zeros(n), ahead = zeros(n), back = zeros(n);
  for (const Vector& query : plain) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j)
        covariance[i][j] += (query[i] - mean[i]) * (query[j] - mean[j]) / samples;
    }
  }
  for (uint32_t p = 0; p < ExpectedScorer::kPositions; ++p) {
    const Matrix one = rotation(spec, layer, tokens + p);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) ahead[i][j] += one[i][j] / ExpectedScorer::kPositions;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) back[i][j] = ahead[j][i];
  }
  const double scale = double(spec.layers[0].gqa().scale);
  Vector shares;
  double sum = 0;
  for (uint32_t row = 0; row < tokens; ++row) {
    const Vector& key = seen.rows[layer][size_t(row) * spec.layers[0].gqa().kv_heads +
                                         head / (spec.layers[0].gqa().heads / spec.layers[0].gqa().kv_heads)]
                            .key;
    const Vector turned = times(back, key);  // k.(R m) = (R'k).m
    shares.push_back(
        std::exp(scale * dot(turned, mean) + scale * scale / 2 * dot(turned, times(covariance, turned))));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

struct Case {
  const char* model;
  KvFormats formats;
};

class Expected : public testing::TestWithParam<Case> {};

TEST_P(Expected, ScoresAreThoseOfTheDefinitionWhateverTheChunks) {
  BareModel model(golden_folder(GetParam().model), exact_kernels(), 2);
  const ModelSpec& spec = model.spec;
  for (const uint32_t tokens : {50u, 150u}) {  // fewer than the samples, and more
    std::vector<TokenId> prompt;
    for (uint32_t p = 0; p < tokens; ++p) prompt.push_back((p * 7 + p * p) % spec.vocab);
    std::vector<std::vector<float>> before;
    for (const uint32_t chunk : {tokens, 17u}) {
      TextRunner runner(model.engine_model(), GetParam().formats, tokens, chunk);
      OpenScorer scorer({.share = 0.5}, spec, runner.layout(), tokens);
      show(scorer, runner, prompt, chunk);
      std::vector<std::vector<float>> scores;
      for (size_t l = 0; l < spec.layers.size(); ++l) {
        if (spec.layers[l].window() > 0) continue;
        for (uint32_t kv_head = 0; kv_head < spec.layers[0].gqa().kv_heads; ++kv_head)
          scores.push_back(scorer.scores(l, kv_head));
      }
      if (!before.empty()) {
        EXPECT_EQ(scores, before) << "in chunks";
        continue;
      }
      before = scores;
      TextRunner looked_at(model.engine_model(), GetParam().formats, tokens, tokens,
                           TextRunner::Passed::stays);
      const Seen seen = seen_in(looked_at, spec, prompt);
      size_t place = 0;
      const uint32_t group = spec.layers[0].gqa().heads / spec.layers[0].gqa().kv_heads;
      for (size_t l = 0; l < spec.layers.size(); ++l) {
        if (spec.layers[l].window() > 0) continue;
        for (uint32_t kv_head = 0; kv_head < spec.layers[0].gqa().kv_heads; ++kv_head, ++place) {
          Vector worth(tokens);
          for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
            const Vector shares = expected_shares(spec, seen, l, h, tokens);
            for (uint32_t i = 0; i < tokens; ++i) {
              const Vector& value = seen.rows[l][size_t(i) * spec.layers[0].gqa().kv_heads + kv_head].value;
              worth[i] += (shares[i] + ExpectedScorer::kLeastShare) * std::sqrt(dot(value, value)) / group;
            }
          }
          for (uint32_t i = 0; i < tokens; ++i)
            ASSERT_NEAR(scores[place][i] / worth[i], 1, 1e-4) << "layer " << l << ", token " << i;
        }
      }
      EXPECT_GT(place, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Expected,
                         testing::Values(Case{"llama3", KvFormat::f32}, Case{"llama3", KvFormat::q4},
                                         Case{"llama2", {KvFormat::int8, KvFormat::q4}},
                                         Case{"llama_yarn", KvFormat::f16}, Case{"gemma3", KvFormat::f32},
                                         Case{"phi4", KvFormat::f32}, Case{"gpt_oss", KvFormat::f16},
                                         Case{"smollm3", KvFormat::f32}),
                         [](const auto& info) {
                           return std::string(info.param.model) + "_" +
                                  std::string(name(info.param.formats.rest().key));
                         });

}  // namespace
}  // namespace quire
