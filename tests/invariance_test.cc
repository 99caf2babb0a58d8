// Promise 2: a token's logits are bit-identical alone or batched, in one chunk or many, with any number of threads, with
// the KV cache on or off; and so is the sampled token.
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "device/open_backend.h"
#include "runner/runner.h"
#include "split_case.h"
#include "synth_file.h"

namespace quire {
namespace {

CpuKernels fastest_kernels() {
  return kernels_named("auto");
}

struct Case {
  std::string name;
  std::string model;        // a golden's name, or synth:TYPE
  CpuKernels (*kernels)();  // null: on the GPU
  KvFormats format;
  uint32_t window_pages = 0;  // tokens of a page of layers with a window, where it is another size
  Placement placement =
      {};  // where it is not all the device's: that is a CPU, early or late, with another beside it
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<TokenId> tokens_from(uint32_t seed, size_t count, uint32_t vocab) {
  std::vector<TokenId> tokens;
  for (uint32_t state = seed * 2654435761u + 12345u; tokens.size() < count;) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back((state >> 8) % vocab);
  }
  return tokens;
}

void expect_same_bits(std::span<const float> actual, std::span<const float> expected,
                      const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  size_t bad = 0, first = 0;
  for (size_t i = 0; i < actual.size(); ++i)
    if (std::memcmp(&actual[i], &expected[i], 4) != 0 && bad++ == 0) first = i;
  EXPECT_EQ(bad, 0u) << what << ": of " << actual.size() << ", first at " << first << ": " << actual[first]
                     << " for " << expected[first];
}

using Answers = std::vector<std::pair<std::vector<TokenId>, std::vector<float>>>;

// With their log-probabilities, once all are there.
Answers answers_of(Engine& engine, std::span<const SequenceId> ids) {
  while (engine.step()) {
  }
  Answers answers;
  for (SequenceId id : ids) {
    const Answer answer = engine.take_answer(id).value();
    answers.emplace_back(answer.tokens, answer.logprobs);
  }
  return answers;
}

class Invariance : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().kernels == nullptr && open_gpu() == nullptr) GTEST_SKIP() << "this machine has no GPU";
  }
  static std::unique_ptr<Backend> open(uint32_t threads) {
    if (GetParam().kernels == nullptr && GetParam().placement != Placement{})
      return open_split_backend(
          {.device = usual_device(), .kernels = threads % 2 == 1 ? "auto" : "eager", .threads = threads});
    // A GPU has no threads of its own; its kernels are started in two ways instead.
    if (GetParam().kernels == nullptr) return open_gpu(threads % 2 == 1 ? "auto" : "eager");
    if (GetParam().placement != Placement{})
      return split_of_cpus(GetParam().kernels(), threads,
                           threads % 2 == 1 ? CpuDevice::late : CpuDevice::eager);
    return std::make_unique<CpuBackend>(GetParam().kernels(), threads);
  }
  struct Model : BareModel {
    explicit Model(uint32_t threads)
        : BareModel(model_path(GetParam().model), open(threads), GetParam().placement) {
      set_window_pages(spec, GetParam().window_pages);
    }
  };
};

TEST_P(Invariance, LogitsDoNotDependOnChunksOrThreads) {
  Model one(1);
  const std::vector<TokenId> tokens = tokens_from(1, 75, one.spec.vocab);
  const std::vector<float> expected = all_logits(one, tokens, uint32_t(tokens.size()), GetParam().format);
  for (uint32_t threads : {1u, 2u, 5u}) {
    Model model(threads);
    for (uint32_t chunk : {1u, 2u, 7u, 16u, 33u, 64u}) {
      expect_same_bits(all_logits(model, tokens, chunk, GetParam().format), expected,
                       "chunks of " + std::to_string(chunk) + ", threads " + std::to_string(threads));
    }
  }
}

TEST_P(Invariance, LogitsDoNotDependOnTheNeighboursInTheBatch) {
  Model model(2);
  const uint32_t vocab = model.spec.vocab;
  const std::vector<TokenId> mine = tokens_from(1, 60, vocab);
  const std::vector<float> alone = all_logits(model, mine, 60, GetParam().format);

  // Steps in which one run of mine stands among runs of others: prefill chunks and single tokens mixed.
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, GetParam().format));
  KvCache kv(layout, pages_for(layout, 64, 64, 9));
  Runner runner(model.engine_model().runner_model(), layout, kv.pages_per_group());
  std::vector<PageTable> tables(9, kv.make_table());
  std::vector<uint32_t> computed(9, 0);
  std::vector<float> batched;
  for (uint32_t step = 0; computed[0] < mine.size(); ++step) {
    StepInput input;
    std::vector<const PageTable*> used;
    uint32_t my_run_begin = 0;
    uint32_t my_count = 0;
    for (uint32_t s = 0; s < 9; ++s) {
      const uint32_t who = (s + step) % 9;  // mine is first, in the middle, last
      const std::vector<TokenId> tokens = who == 0 ? mine : tokens_from(10 + who, 60, vocab);
      const uint32_t wanted = (step + who) % 3 == 0 ? 1 : 2 + (step * 5 + who * 3) % 17;
      const uint32_t count = std::min(wanted, 60 - computed[who]);
      if (count == 0) continue;
      ASSERT_TRUE(kv.reserve(tables[who], computed[who] + count));
      kv.begin_run(tables[who], computed[who], count);
      used.push_back(&tables[who]);
      if (who == 0) my_run_begin = uint32_t(input.logit_rows.size());
      input.add(std::span(tokens).subspan(computed[who], count), computed[who],
                who == 0 ? StepInput::Logits::all : StepInput::Logits::last);
      if (who == 0) my_count = count;
      computed[who] += count;
    }
    input.tables = kv.flatten(used);
    input.report = StepInput::Report::logits;
    const StepOutput output = runner.collect(runner.launch(std::move(input)));
    for (uint32_t i = 0; i < my_count; ++i) {
      const std::span<const float> row = output.logits_of(my_run_begin + i);
      batched.insert(batched.end(), row.begin(), row.end());
    }
  }
  expect_same_bits(batched, alone, "among eight others");
  kv.check_invariants();
}

TEST_P(Invariance, AnswersDoNotDependOnCacheChunksCompanyOrThreads) {
  struct Setting {
    bool kv_cache;
    uint32_t chunk, sequences, threads;
  };
  const auto answers = [&](const Setting& setting) {
    Model model(setting.threads);
    EngineOptions options{.context = std::min(96u, uint32_t(model.spec.context)),
                          .max_sequences = setting.sequences,
                          .prefill_chunk = setting.chunk};
    options.kv_cache = setting.kv_cache;
    options.kv_formats = GetParam().format;
    options.pipeline = setting.threads % 2 + 1;
    Engine engine(model.engine_model(), options);
    std::vector<SequenceId> ids;
    for (uint32_t i = 0; i < 4; ++i) {
      Request request;
      request.prompt = tokens_from(100 + i, 5 + 13 * i, model.spec.vocab);
      request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .top_k = 40, .seed = 7 + i};
      request.max_tokens = 9 + 5 * i;
      request.logprobs = true;
      ids.push_back(engine.submit(request));
    }
    const Answers result = answers_of(engine, ids);
    EXPECT_EQ(engine.kv().stats().held_pages, 0u);
    engine.kv().check_invariants();
    return result;
  };
  const auto expected = answers({.kv_cache = true, .chunk = 96, .sequences = 1, .threads = 1});
  EXPECT_EQ(answers({.kv_cache = true, .chunk = 96, .sequences = 4, .threads = 2}), expected);
  EXPECT_EQ(answers({.kv_cache = true, .chunk = 5, .sequences = 4, .threads = 3}), expected);
  EXPECT_EQ(answers({.kv_cache = true, .chunk = 1, .sequences = 2, .threads = 1}), expected);
  EXPECT_EQ(answers({.kv_cache = false, .chunk = 96, .sequences = 1, .threads = 2}), expected);
  EXPECT_EQ(answers({.kv_cache = false, .chunk = 96, .sequences = 4, .threads = 1}), expected);
}

// Prompts of more than a few hundred tokens take other kernels (tiles, several splits of attention) than short ones.
class LongPrompts : public Invariance {
 protected:
  struct Setting {
    uint32_t chunk, sequences, threads;
  };
  // Of prompts of so many tokens.
  static Answers answers(const Setting& setting, std::span<const uint32_t> lengths) {
    Model model(setting.threads);
    EngineOptions options{
        .context = 1536, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.kv_formats = GetParam().format;
    options.pipeline = setting.threads % 2 + 1;
    Engine engine(model.engine_model(), options);
    std::vector<SequenceId> ids;
    for (uint32_t i = 0; i < lengths.size(); ++i) {
      Request request;
      request.prompt = tokens_from(100 + i, lengths[i], model.spec.vocab);
      request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .top_k = 40, .seed = 7 + i};
      request.max_tokens = 12;
      request.logprobs = true;
      ids.push_back(engine.submit(request));
    }
    return answers_of(engine, ids);
  }
};

TEST_P(LongPrompts, AnswersDoNotDependOnChunksCompanyOrStart) {
  constexpr uint32_t kLengths[] = {1301, 1011, 721};
  const Answers expected = answers({2048, 1, 1}, kLengths);
  for (const auto& [tokens, logprobs] : expected) EXPECT_FALSE(tokens.empty());
  EXPECT_EQ(answers({2048, 3, 2}, kLengths), expected);
  EXPECT_EQ(answers({300, 3, 1}, kLengths), expected);
  EXPECT_EQ(answers({65, 2, 2}, kLengths), expected);
  EXPECT_EQ(answers({13, 2, 1}, kLengths),
            expected);  // runs of several units of attention, across its blocks
}

// Some stay within a split of attention, some pass it while they answer: together they are merged in another place than alone.
TEST_P(LongPrompts, AnswersOfManyTogetherAreThoseOfEachAlone) {
  std::vector<uint32_t> lengths;
  for (uint32_t i = 0; i < 20; ++i) lengths.push_back(498 + i * 8);
  EXPECT_EQ(answers({2048, 20, 2}, lengths), answers({2048, 1, 1}, lengths));
}

INSTANTIATE_TEST_SUITE_P(
    Models, Invariance,
    testing::Values(
        Case{"llama_f32", "llama3", exact_kernels, KvFormat::f32},
        Case{"llama_f16_pages", "llama3", exact_kernels, KvFormat::f16},
        Case{"llama_bf16_pages", "llama3", exact_kernels, KvFormat::bf16},
        Case{"llama_int8_pages", "llama3", exact_kernels, KvFormat::int8},
        Case{"windows_q4_pages", "gemma3", exact_kernels, KvFormat::q4},
        Case{"formats_by_layer", "llama3", exact_kernels, KvFormats::parse("int8,0:f16,last:k=f16,v=q4")},
        Case{"windows_formats_by_layer", "gemma3", exact_kernels, KvFormats::parse("q4,0-1:k=int8,2:f32")},
        Case{"q8_0_formats_by_layer", "synth:q8_0", fastest_kernels, KvFormats::parse("k=int8,v=q4,0:fp8")},
        Case{"q8_0_int8_pages", "synth:q8_0", fastest_kernels, KvFormat::int8},
        Case{"q4_0_q4_pages", "synth:q4_0", fastest_kernels, KvFormat::q4},
        Case{"experts_fp8_pages", "gpt_oss_mxfp4", fastest_kernels, KvFormat::fp8},
        Case{"windows", "gemma3", exact_kernels, KvFormat::f16},
        Case{"windows_of_wide_pages", "gemma3", exact_kernels, KvFormat::f16, 64},
        Case{"windows_of_narrow_pages", "gpt_oss_mxfp4", fastest_kernels, KvFormat::int8, 8},
        Case{"sinks_and_experts", "gpt_oss_mxfp4", fastest_kernels, KvFormat::f16},
        Case{"experts", "qwen3_moe", exact_kernels, KvFormat::f32},
        Case{"groups_of_experts", "glm4_moe", fastest_kernels, KvFormat::f16},
        Case{"gated_shared_experts", "qwen2_moe", fastest_kernels, KvFormat::f16},
        Case{"sparse_mixer", "phimoe", fastest_kernels, KvFormat::f16},
        Case{"growing_queries", "ministral3", fastest_kernels, KvFormat::int8},
        Case{"norms_after_rotation", "hunyuan_moe", fastest_kernels, KvFormat::f16},
        Case{"side_by_side_with_two_norms", "falcon", fastest_kernels, KvFormat::f16},
        Case{"side_by_side_with_one_norm", "cohere2", fastest_kernels, KvFormat::f16},
        Case{"averaged_experts", "cohere2_moe", fastest_kernels, KvFormat::f16},
        Case{"narrow_values_and_sinks", "mimo_v2_flash", fastest_kernels, KvFormat::f16},
        Case{"two_ropes", "olmo3", fastest_kernels, KvFormat::q4},
        Case{"xielu", "apertus", fastest_kernels, KvFormat::f16},
        Case{"slopes", "bloom", fastest_kernels, KvFormat::f16},
        Case{"slopes_bf16_pages", "mpt", fastest_kernels, KvFormat::bf16},
        Case{"slopes_int8_pages", "bloom", fastest_kernels, KvFormat::int8},
        Case{"slopes_q4_pages", "mpt", exact_kernels, KvFormat::q4},
        Case{"chunks", "llama4", fastest_kernels, KvFormat::f16},
        Case{"chunks_of_narrow_pages", "llama4", exact_kernels, KvFormat::int8, 8},
        Case{"recurrent", "qwen3_5", exact_kernels, KvFormat::f32},
        Case{"recurrent_fast", "qwen3_5_nested", fastest_kernels, KvFormat::int8},
        Case{"streams_side_by_side", "gemma3n", fastest_kernels, KvFormat::f16},
        Case{"streams_of_narrow_pages", "gemma3n", exact_kernels, KvFormat::int8, 8},
        Case{"two_mixers", "falcon_h1", fastest_kernels, KvFormat::f16},
        Case{"inputs_and_shared_rows", "gemma4", fastest_kernels, KvFormat::f16},
        Case{"shared_rows_of_narrow_pages", "gemma4", exact_kernels, KvFormat::int8, 8},
        Case{"keys_as_values", "gemma4_unified", fastest_kernels, KvFormat::q4},
        Case{"experts_beside_an_mlp", "gemma4_moe", fastest_kernels, KvFormat::f16},
        Case{"latent_rows", "deepseek_v3", exact_kernels, KvFormat::f32},
        Case{"latent_rows_fast", "deepseek_v3", fastest_kernels, KvFormat::f16},
        Case{"latent_rows_bf16_pages", "glm4_moe_lite", fastest_kernels, KvFormat::bf16},
        Case{"latent_rows_int8_pages", "deepseek_v2", fastest_kernels, KvFormat::int8},
        Case{"latent_rows_q4_pages", "deepseek_v3_fp8", fastest_kernels, KvFormats::parse("k=f16,v=q4")},
        Case{"latent_rows_of_growing_queries", "mistral4", scalar_kernels, KvFormat::fp8},
        Case{"chosen_rows", "deepseek_v32", exact_kernels, KvFormat::f32},
        Case{"chosen_rows_fast", "glm_moe_dsa", fastest_kernels, KvFormat::f16},
        Case{"chosen_rows_int8_pages", "deepseek_v32", fastest_kernels, KvFormat::int8},
        Case{"chosen_rows_of_others", "glm_moe_dsa_shared", fastest_kernels, KvFormat::f16},
        Case{"chosen_blocks", "minimax_m3", exact_kernels, KvFormat::f32},
        Case{"chosen_blocks_fast", "minimax_m3_released", fastest_kernels, KvFormat::f16},
        Case{"chosen_blocks_int8_pages", "minimax_m3", fastest_kernels, KvFormat::int8},
        Case{"gates_of_heads", "laguna", fastest_kernels, KvFormat::f16},
        Case{"gates_of_values", "muse_glimmer", exact_kernels, KvFormat::f32},
        Case{"scaled_nvfp4", "llama_modelopt_nvfp4", fastest_kernels, KvFormat::f16},
        Case{"nvfp4", "synth:nvfp4", fastest_kernels, KvFormat::f16},
        Case{"rows_of_tokens", "deepseek_v4", exact_kernels, KvFormat::f32},
        Case{"rows_of_tokens_fast", "deepseek_v4", fastest_kernels, KvFormat::bf16},
        Case{"rows_of_tokens_int8_pages", "deepseek_v4", fastest_kernels, KvFormat::int8},
        Case{"q4_0", "synth:q4_0", fastest_kernels, KvFormat::f16},
        Case{"q8_0", "synth:q8_0", fastest_kernels, KvFormat::f16},
        Case{"q8_0_bf16_pages", "synth:q8_0", fastest_kernels, KvFormat::bf16},
        Case{"bf16", "synth:bf16", fastest_kernels, KvFormat::f16},
        Case{"q4_k_m", "synth:q4_k_m", fastest_kernels, KvFormat::f16},
        Case{"q4_k_m_scalar", "synth:q4_k_m", scalar_kernels, KvFormat::f16},
        Case{"q4_k_m_exact", "synth:q4_k_m", exact_kernels, KvFormat::f16}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Split, Invariance,
    testing::Values(
        Case{"layers", "synth:q8_0", fastest_kernels, KvFormat::f16, 0, {.device_layers = 3}},
        Case{"all_layers_beside", "llama3", exact_kernels, KvFormat::f32, 0, {.device_layers = 0}},
        Case{"layers_with_windows", "gemma3", exact_kernels, KvFormat::int8, 0, {.device_layers = 1}},
        Case{"post_norms", "olmo2", exact_kernels, KvFormat::f16, 0, {.device_layers = 1}},
        Case{"learned_positions", "gpt2", exact_kernels, KvFormat::f16, 0, {.device_layers = 2}},
        Case{"embedding_norm", "bloom", exact_kernels, KvFormat::f32, 0, {.device_layers = 1}},
        Case{"experts", "qwen3_moe", exact_kernels, KvFormat::f32, 0, {.host_experts = 2}},
        Case{"latent_rows", "deepseek_v3", exact_kernels, KvFormat::f32, 0, {.device_layers = 1}},
        Case{"the_last_experts", "gpt_oss_mxfp4", fastest_kernels, KvFormat::f16, 8, {.host_experts = 1}},
        Case{"layers_and_experts", "mixtral", exact_kernels, KvFormat::f16, 0, {1, 1}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    OnAGpu, Invariance,
    testing::Values(
        Case{"f32_weights", "llama3", nullptr, KvFormat::bf16},
        Case{"f16_pages", "llama3", nullptr, KvFormat::f16},
        Case{"windows", "gemma3", nullptr, KvFormat::bf16},
        Case{"query_key_norms", "qwen3", nullptr, KvFormat::bf16},
        Case{"soft_caps", "gemma2", nullptr, KvFormat::bf16},
        Case{"biases", "qwen2", nullptr, KvFormat::bf16},
        Case{"layer_norms", "gpt2", nullptr, KvFormat::bf16},
        Case{"bf16", "synth:bf16", nullptr, KvFormat::bf16},
        Case{"q8_0", "synth:q8_0", nullptr, KvFormat::bf16},
        Case{"q4_0", "synth:q4_0", nullptr, KvFormat::f16},
        Case{"q4_k_m", "synth:q4_k_m", nullptr, KvFormat::bf16},
        Case{"int8_pages", "llama3", nullptr, KvFormat::int8},
        Case{"fp8_pages", "synth:bf16", nullptr, KvFormat::fp8},
        Case{"q4_pages", "synth:q8_0", nullptr, KvFormat::q4},
        Case{"formats_by_layer", "llama3", nullptr, KvFormats::parse("int8,0:f16,last:k=f16,v=q4")},
        Case{"experts", "qwen3_moe", nullptr, KvFormat::bf16},
        Case{"sinks_and_experts", "gpt_oss_mxfp4", nullptr, KvFormat::bf16},
        Case{"delta_net", "qwen3_5", nullptr, KvFormat::bf16},
        Case{"tiled_delta_net", "qwen3_5_nested", nullptr, KvFormat::int8},
        Case{"delta_net_and_experts", "qwen3_next", nullptr, KvFormat::bf16},
        Case{"short_convolutions", "lfm2", nullptr, KvFormat::bf16},
        Case{"state_spaces", "mamba2", nullptr, KvFormat::bf16},
        Case{"state_spaces_and_plain_experts", "nemotron_h_moe", nullptr, KvFormat::bf16},
        Case{"selective_scans", "jamba", nullptr, KvFormat::bf16},
        Case{"state_spaces_beside_attention", "falcon_h1", nullptr, KvFormat::bf16},
        Case{"inputs_and_shared_rows", "gemma4", nullptr, KvFormat::bf16},
        Case{"keys_as_values", "gemma4_unified", nullptr, KvFormat::q4},
        Case{"experts_beside_an_mlp", "gemma4_moe", nullptr, KvFormat::bf16},
        Case{"latent_rows", "deepseek_v3", nullptr, KvFormat::bf16},
        Case{"latent_rows_f16_pages", "glm4_moe_lite", nullptr, KvFormat::f16},
        Case{"latent_rows_int8_pages", "deepseek_v2", nullptr, KvFormat::int8},
        Case{"latent_rows_mixed_pages", "deepseek_v3_fp8", nullptr, KvFormats::parse("k=f16,v=q4")},
        Case{"latent_rows_of_growing_queries", "mistral4", nullptr, KvFormat::fp8},
        Case{"split_layers", "synth:q8_0", nullptr, KvFormat::bf16, 0, {2, 0}},
        Case{"split_windows", "gemma3", nullptr, KvFormat::f16, 0, {2, 0}},
        Case{"split_experts", "qwen3_moe", nullptr, KvFormat::bf16, 0, {2, 2}},
        Case{"split_both", "gpt_oss_mxfp4", nullptr, KvFormat::bf16, 0, {1, 1}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Models, LongPrompts,
    testing::Values(Case{"q8_0", "synth:q8_0", fastest_kernels, KvFormat::f16},
                    Case{"rows_of_tokens", "deepseek_v4", fastest_kernels, KvFormat::f16},
                    Case{"slopes", "mpt", fastest_kernels, KvFormat::f16},
                    Case{"windows", "gemma3", fastest_kernels, KvFormat::int8},
                    Case{"latent_rows", "deepseek_v2_groups", fastest_kernels, KvFormat::f16}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(OnAGpu, LongPrompts,
                         testing::Values(Case{"bf16", "synth:bf16", nullptr, KvFormat::bf16},
                                         Case{"q8_0", "synth:q8_0", nullptr, KvFormat::f16},
                                         Case{"q4_0", "synth:q4_0", nullptr, KvFormat::bf16},
                                         Case{"q4_k_m", "synth:q4_k_m", nullptr, KvFormat::bf16},
                                         Case{"fp8_pages", "synth:bf16", nullptr, KvFormat::fp8},
                                         Case{"int8_pages", "synth:q8_0", nullptr, KvFormat::int8},
                                         Case{"q4_pages", "synth:q8_0", nullptr, KvFormat::q4},
                                         Case{"windows", "gemma3", nullptr, KvFormat::bf16},
                                         Case{"experts", "qwen3_moe", nullptr, KvFormat::bf16},
                                         Case{"groups_of_experts", "glm4_moe", nullptr, KvFormat::bf16},
                                         Case{"gated_shared_experts", "qwen2_moe", nullptr, KvFormat::bf16},
                                         Case{"growing_queries", "ministral3", nullptr, KvFormat::bf16},
                                         Case{"norms_after_rotation", "hunyuan_moe", nullptr, KvFormat::bf16},
                                         Case{"two_norms_side_by_side", "falcon", nullptr, KvFormat::bf16},
                                         Case{"one_norm_side_by_side", "cohere2", nullptr, KvFormat::bf16},
                                         Case{"delta_net", "qwen3_5", nullptr, KvFormat::bf16},
                                         Case{"state_spaces", "mamba2", nullptr, KvFormat::bf16},
                                         Case{"selective_scans", "jamba", nullptr, KvFormat::bf16},
                                         Case{"inputs_and_shared_rows", "gemma4", nullptr, KvFormat::bf16},
                                         Case{"latent_rows", "deepseek_v2_groups", nullptr, KvFormat::bf16},
                                         Case{"latent_rows_q4_pages", "deepseek_v3", nullptr, KvFormat::q4},
                                         Case{"sinks_and_experts", "gpt_oss_mxfp4", nullptr, KvFormat::bf16}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire
