// Kimi delta attention, whose families need more than it: a made model beside a plain computation, and the same bits however its
// tokens come.
#include "backend/cpu/kernel_choice.h"
#include "engine/text_runner.h"
#include "layers_case.h"

namespace quire {
namespace {

constexpr size_t kHeads = 2, kDim = 8, kWidth = kHeads * kDim, kSpan = 4;

using Row = std::vector<double>;

// [rows] of a product with [rows, columns].
Row product(const MadeFile& file, const std::string& tensor, const Row& in) {
  const std::vector<double> weights = file.values(tensor);
  Row out(weights.size() / in.size());
  for (size_t r = 0; r < out.size(); ++r) {
    for (size_t c = 0; c < in.size(); ++c) out[r] += weights[r * in.size() + c] * in[c];
  }
  return out;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// A convolution of every channel over four tokens, and SiLU.
PlainRows convolved(const MadeFile& file, const std::string& tensor, const PlainRows& in) {
  const std::vector<double> weights = file.values(tensor);
  PlainRows out(in.size(), Row(kWidth));
  for (size_t t = 0; t < in.size(); ++t) {
    for (size_t c = 0; c < kWidth; ++c) {
      for (size_t i = 0; i < kSpan; ++i) {
        if (t + i + 1 >= kSpan) out[t][c] += weights[c * kSpan + i] * in[t + i + 1 - kSpan][c];
      }
      out[t][c] *= sigmoid(out[t][c]);
    }
  }
  return out;
}

void set_length(double* values, double length) {
  double sum = 0;
  for (size_t i = 0; i < kDim; ++i) sum += values[i] * values[i];
  for (size_t i = 0; i < kDim; ++i) values[i] *= length / std::sqrt(sum + 1e-6);
}

PlainRows plain_kimi_delta(const MadeFile& file, size_t layer, const PlainRows& in) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const auto values = [&](const char* name) { return file.values(prefix + name); };
  PlainRows q, k, v;
  for (const Row& row : in) {
    q.push_back(product(file, prefix + "attn_q.weight", row));
    k.push_back(product(file, prefix + "attn_k.weight", row));
    v.push_back(product(file, prefix + "attn_v.weight", row));
  }
  q = convolved(file, prefix + "ssm_conv1d_q.weight", q);
  k = convolved(file, prefix + "ssm_conv1d_k.weight", k);
  v = convolved(file, prefix + "ssm_conv1d_v.weight", v);
  const std::vector<double> rate = values("ssm_a"), bias = values("ssm_dt.bias"),
                            norm = values("ssm_norm.weight");
  std::vector<double> state(kHeads * kDim * kDim);
  PlainRows out;
  for (size_t t = 0; t < in.size(); ++t) {
    const Row forget =
        product(file, prefix + "ssm_f_b.weight", product(file, prefix + "ssm_f_a.weight", in[t]));
    const Row gate =
        product(file, prefix + "ssm_g_b.weight", product(file, prefix + "ssm_g_a.weight", in[t]));
    const Row beta = product(file, prefix + "ssm_beta.weight", in[t]);
    Row read(kWidth);
    for (size_t h = 0; h < kHeads; ++h) {
      double *query = &q[t][h * kDim], *key = &k[t][h * kDim];
      set_length(query, 1 / std::sqrt(double(kDim)));
      set_length(key, 1);
      double mean = 0;
      for (size_t j = 0; j < kDim; ++j) {
        double has = 0;
        for (size_t i = 0; i < kDim; ++i) {
          double& s = state[(h * kDim + i) * kDim + j];
          s *= std::exp(rate[h] * std::log1p(std::exp(forget[h * kDim + i] + bias[h * kDim + i])));
          has += s * key[i];
        }
        for (size_t i = 0; i < kDim; ++i) {
          double& s = state[(h * kDim + i) * kDim + j];
          s += key[i] * sigmoid(beta[h]) * (v[t][h * kDim + j] - has);
          read[h * kDim + j] += s * query[i];
        }
        mean += read[h * kDim + j] * read[h * kDim + j] / double(kDim);
      }
      for (size_t j = 0; j < kDim; ++j)
        read[h * kDim + j] *= norm[j] / std::sqrt(mean + 1e-5) * sigmoid(gate[h * kDim + j]);
    }
    out.push_back(product(file, prefix + "attn_output.weight", read));
  }
  return out;
}

// The first and the third layer of four.
std::shared_ptr<MadeFile> made() {
  return make(small_llama(), [](ModelSpec& spec) {
    for (const size_t layer : {0, 2})
      spec.layers[layer].mixer = KimiDeltaSpec{.heads = kHeads, .head_dim = kDim, .span = kSpan};
  });
}

TEST(KimiDelta, IsWhatItSaysComputedPlainlyInAnyChunks) {
  const auto file = made();
  const std::vector<double> plain =
      plain_logits(*file, some_tokens(),
                   [&](size_t layer, const PlainRows& in) { return plain_kimi_delta(*file, layer, in); });
  expect_near(logits(file, exact_kernels()), plain, 2e-5);
  const std::vector<float> whole = logits(file, kernels_named("auto"));
  for (const uint32_t chunk : {1u, 7u, 32u})
    EXPECT_EQ(logits(file, kernels_named("auto"), chunk), whole) << chunk;
}

TEST(KimiDeltaOnAGpu, IsWhatItSaysComputedPlainlyInAnyChunks) {
  if (open_gpu() == nullptr) GTEST_SKIP() << "this machine has no GPU";
  const auto file = made();
  const std::vector<double> plain =
      plain_logits(*file, some_tokens(),
                   [&](size_t layer, const PlainRows& in) { return plain_kimi_delta(*file, layer, in); });
  const auto seen = [&](const char* kernels, uint32_t chunk) {
    const std::unique_ptr<Backend> gpu = open_gpu(kernels);
    const auto own = made();  // what a GPU has read of it is gone
    const ModelSpec spec = own->spec();
    Weights weights = load_weights(own, spec);
    prepare_weights(weights, *gpu);
    const std::vector<TokenId> tokens = some_tokens();
    TextRunner runner(
        {.spec = &spec, .weights = &weights, .backend = gpu.get(), .tokenizer = nullptr, .end_tokens = {}},
        KvFormat::f32, uint32_t(tokens.size()), chunk);
    std::vector<float> logits;
    while (runner.done() < tokens.size()) {
      const size_t done = runner.done(), count = std::min(size_t(chunk), tokens.size() - done);
      const StepOutput output = runner.compute(std::span(tokens).subspan(done, count));
      logits.insert(logits.end(), output.logits.begin(), output.logits.end());
    }
    return logits;
  };
  expect_near(seen("exact", 64), plain, 2e-3);
  const std::vector<float> whole = seen("auto", 64);
  expect_near(whole, plain, 0.08);
  for (const uint32_t chunk : {1u, 7u, 32u}) EXPECT_EQ(seen("auto", chunk), whole) << chunk;
}

TEST(KimiDelta, AnswersAreTheSameAloneTogetherAndFromTheCache) {
  const auto file = made();
  BareModel model(file, file->spec(), kernels_named("auto"), 2);
  const auto make_engine = [&](uint32_t sequences, uint32_t chunk, bool sharing) {
    EngineOptions options{.context = 200, .max_sequences = sequences, .prefill_chunk = chunk};
    options.page_tokens = 8;
    options.sharing = sharing;
    return std::make_unique<Engine>(model.engine_model(), options);
  };
  std::vector<Request> requests(6);
  for (uint32_t i = 0; i < requests.size(); ++i) {
    const std::vector<TokenId> tokens = some_tokens();
    requests[i].prompt.assign(tokens.begin(), tokens.begin() + 30 + i * 3);
    requests[i].sampling = {.temperature = 1, .seed = i};
    requests[i].max_tokens = 12;
  }
  const auto together = make_engine(4, 16, true);
  for (int round = 0; round < 2; ++round) {
    std::vector<SequenceId> ids;
    for (const Request& request : requests) ids.push_back(together->submit(request));
    while (together->step()) together->kv().check_invariants();
    uint32_t cached = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Answer answer = together->take_answer(ids[i]).value();
      EXPECT_EQ(answer.tokens, make_engine(1, 200, false)->run(requests[i]).tokens) << i;
      cached += answer.account.cached_tokens;
    }
    EXPECT_GT(cached, round == 0 ? 0u : 100u);
  }
}

}  // namespace
}  // namespace quire
