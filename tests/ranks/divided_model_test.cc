// A model that ranks divide computes what it computes alone, to the bit: here with ranks that are threads.
#include <bit>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "engine/drafts/suffix_drafter.h"
#include "engine/text_runner.h"
#include "golden_model.h"
#include "model/divide.h"
#include "model/layer_blocks.h"
#include "model/synth.h"
#include "ranks/thread_ranks.h"
#include "runner/follower.h"

namespace quire {
namespace {

CpuKernels fastest_kernels() {
  return kernels_named("auto");
}

// Five KV heads, widths of 18 and 22 times sixteen and a vocabulary that nothing divides: no two or three ranks have equal parts.
// Types of 256 columns have other widths.
SynthShape uneven_shape(const std::string& type) {
  if (type == "experts")
    return {"uneven",
            288,
            3,
            10,
            5,
            32,
            352,
            501,
            2048,
            true,
            10000,
            "qwen3moe",
            {{"expert_count", uint64_t(5)},
             {"expert_used_count", uint64_t(3)},
             {"expert_feed_forward_length", uint64_t(96)}}};
  if (type == "q4_k_m") return {"uneven", 512, 3, 8, 4, 64, 768, 501, 2048, false, 10000};
  return {"uneven", 288, 3, 10, 5, 32, 352, 501, 2048, true, 10000};
}

// A golden's folder, or synth:TYPE, which is written once by this process and gone with it.
std::string path_of(const std::string& model) {
  struct File {
    std::string path;
    ~File() { std::filesystem::remove(path); }
  };
  static std::map<std::string, File> files;
  if (!model.starts_with("synth:")) return golden_folder(model);
  const std::string type = model.substr(6);
  const auto [found, is_new] = files.try_emplace(type);
  if (!is_new) return found->second.path;
  found->second.path =
      testing::TempDir() + "/quire_uneven_" + type + "_" + std::to_string(::getpid()) + ".gguf";
  ThreadPool pool(2);
  write_synthetic_model(uneven_shape(type), TypeMix(type == "experts" ? "q8_0" : type), found->second.path,
                        pool);
  return found->second.path;
}

struct Case {
  std::string name, model;
  CpuKernels (*kernels)();
  KvFormats format;
  uint32_t most_ranks = 3;
  uint32_t least_found =
      44;  // of a text of 45 tokens that two prompts begin with: a part of a page, which was copied
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

// What one rank has of a model.
struct Part {
  Part(const Case& c, RankPlace place, uint32_t threads)
      : file(open_model_file(path_of(c.model))),
        spec(read_model_spec(*file, {.context = 128})),
        backend(std::make_unique<CpuBackend>(c.kernels(), threads)) {
    if (place.of > 1) {
      EXPECT_EQ(why_undivided(*file, spec, place.of), "");
      divide(spec, place);
    }
    weights = load_weights(file, spec, backend->traits());
    prepare_weights(weights, *backend);
  }
  EngineModel engine_model(Ranks* ranks) {
    return {.spec = &spec,
            .weights = &weights,
            .backend = backend.get(),
            .tokenizer = nullptr,
            .end_tokens = {},
            .ranks = ranks};
  }

  std::shared_ptr<const ModelFile> file;
  ModelSpec spec;
  std::unique_ptr<Backend> backend;
  Weights weights;
};

// Does the work on rank 0 of so many; with one, alone.
void on_ranks(const Case& c, uint32_t count, uint32_t threads,
              const std::function<void(const EngineModel& model)>& work) {
  if (count == 1) {
    Part alone(c, {}, threads);
    work(alone.engine_model(nullptr));
    return;
  }
  path_of(c.model);  // written before there are threads
  auto ranks = make_thread_ranks(count);
  std::vector<std::thread> others;
  for (uint32_t r = 1; r < count; ++r) {
    others.emplace_back([&, r] {
      try {
        Part part(c, {r, count}, threads);
        const KvLayout layout = make_kv_layout(kv_shapes(part.spec, c.format));
        follow(part.engine_model(ranks[r].get()).runner_model(), layout);
      } catch (const std::exception& problem) {
        ADD_FAILURE() << "rank " << r << ": " << problem.what();
      }
    });
  }
  {
    Part part(c, {0, count}, threads);
    work(part.engine_model(ranks[0].get()));
  }
  ranks[0].reset();
  for (std::thread& other : others) other.join();
}

std::vector<TokenId> tokens_from(uint32_t seed, size_t count, uint32_t vocab) {
  std::vector<TokenId> tokens;
  for (uint32_t state = seed * 2654435761u + 12345u; tokens.size() < count;) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back((state >> 8) % vocab);
  }
  return tokens;
}

size_t differing_bits(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  size_t bits = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    bits += size_t(std::popcount(std::bit_cast<uint32_t>(a[i]) ^ std::bit_cast<uint32_t>(b[i])));
  return bits;
}

class DividedModel : public testing::TestWithParam<Case> {
 protected:
  static std::vector<float> logits(uint32_t ranks, uint32_t threads, uint32_t chunk) {
    std::vector<float> result;
    on_ranks(GetParam(), ranks, threads, [&](const EngineModel& model) {
      const std::vector<TokenId> tokens = tokens_from(1, 75, model.spec->vocab);
      TextRunner runner(model, GetParam().format, uint32_t(tokens.size()), chunk);
      while (runner.done() < tokens.size()) {
        const uint32_t count = std::min(chunk, uint32_t(tokens.size()) - runner.done());
        const StepOutput output = runner.compute(std::span(tokens).subspan(runner.done(), count));
        result.insert(result.end(), output.logits.begin(), output.logits.end());
      }
    });
    return result;
  }
};

TEST_P(DividedModel, LogitsAreThoseOfOneProcess) {
  const std::vector<float> alone = logits(1, 1, 75);
  ASSERT_FALSE(alone.empty());
  for (uint32_t ranks = 2; ranks <= GetParam().most_ranks; ++ranks) {
    for (const uint32_t chunk : {75u, 7u, 1u}) {
      const std::vector<float> divided = logits(ranks, 1 + chunk % 2, chunk);
      EXPECT_EQ(differing_bits(divided, alone), 0u) << ranks << " ranks, chunks of " << chunk;
    }
  }
}

using Answers = std::vector<std::pair<std::vector<TokenId>, std::vector<float>>>;

// Prompts in company, two of which begin alike in the middle of a page, with choices, drafts and a second turn.
Answers answers(const Case& c, uint32_t ranks, uint32_t chunk, bool drafts) {
  Answers result;
  on_ranks(c, ranks, 1, [&](const EngineModel& model) {
    EngineOptions options{
        .context = std::min(128u, model.spec->context), .max_sequences = 3, .prefill_chunk = chunk};
    options.kv_formats = c.format;
    options.pipeline = drafts ? 1 : 2;
    Engine engine(model, options, drafts ? std::make_unique<SuffixDrafter>() : nullptr);
    std::vector<SequenceId> ids;
    const auto finish = [&] {
      while (engine.step()) {
      }
      for (const SequenceId id : ids) {
        const Answer answer = engine.take_answer(id).value();
        result.emplace_back(answer.tokens, answer.logprobs);
      }
      ids.clear();
      engine.check_invariants();
    };
    const std::vector<TokenId> shared = tokens_from(50, 45, model.spec->vocab);
    for (uint32_t turn = 0; turn < 2; ++turn) {
      for (uint32_t i = 0; i < 4; ++i) {
        Request request;
        request.prompt = shared;
        if (i % 2 == 1) request.prompt = tokens_from(100 + i, 5 + 13 * i, model.spec->vocab);
        request.prompt.push_back(TokenId(i));
        request.prompt.push_back(TokenId(turn));
        request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .top_k = 40, .seed = 7 + i};
        request.max_tokens = 9 + 3 * i;
        request.logprobs = true;
        if (i == 3) {
          for (const SequenceId id : engine.submit_choices(request, 2)) ids.push_back(id);
        } else {
          ids.push_back(engine.submit(request));
        }
      }
      finish();
    }
    EXPECT_GE(engine.lookup({shared, {}}).tokens, c.least_found);
  });
  return result;
}

TEST_P(DividedModel, AnswersAreThoseOfOneProcess) {
  const Answers alone = answers(GetParam(), 1, 128, false);
  ASSERT_EQ(alone.size(), 10u);
  for (uint32_t ranks = 2; ranks <= GetParam().most_ranks; ++ranks) {
    EXPECT_EQ(answers(GetParam(), ranks, 128, false), alone) << ranks << " ranks";
    EXPECT_EQ(answers(GetParam(), ranks, 5, true), alone) << ranks << " ranks, small chunks and drafts";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, DividedModel,
    testing::Values(Case{"q8_0", "synth:q8_0", fastest_kernels, KvFormat::f16},
                    Case{"q8_0_int8_pages", "synth:q8_0", fastest_kernels, KvFormat::int8},
                    Case{"q4_0_q4_pages", "synth:q4_0", fastest_kernels, KvFormat::q4},
                    Case{"q4_0_formats_by_layer", "synth:q4_0", fastest_kernels,
                         KvFormats::parse("k=int8,v=q4,0:fp8")},
                    Case{"q4_k_m", "synth:q4_k_m", fastest_kernels, KvFormat::f16},
                    Case{"bf16_bf16_pages", "synth:bf16", fastest_kernels, KvFormat::bf16},
                    Case{"f32_f32_pages", "synth:f32", exact_kernels, KvFormat::f32},
                    Case{"q8_0_scalar_fp8_pages", "synth:q8_0", scalar_kernels, KvFormat::fp8},
                    Case{"llama", "llama3", exact_kernels, KvFormat::f32, 2},
                    Case{"norms_of_heads", "qwen3", exact_kernels, KvFormat::f16, 2},
                    Case{"biases", "qwen2", fastest_kernels, KvFormat::f16, 2},
                    Case{"windows", "gemma3", fastest_kernels, KvFormat::f16, 2, 32},
                    Case{"soft_caps", "gemma2", fastest_kernels, KvFormat::int8, 2, 32},
                    Case{"one_matrix_of_three", "phi3", fastest_kernels, KvFormat::f16, 2},
                    Case{"side_by_side", "phi", fastest_kernels, KvFormat::f16},
                    Case{"experts", "synth:experts", fastest_kernels, KvFormat::f16},
                    Case{"normed_experts", "qwen3_moe", exact_kernels, KvFormat::f32, 2},
                    Case{"experts_of_groups_and_a_shared_one", "glm4_moe", fastest_kernels, KvFormat::f16, 2},
                    Case{"gated_shared_expert", "qwen2_moe", fastest_kernels, KvFormat::int8, 2},
                    Case{"sinks_and_experts", "gpt_oss_mxfp4", fastest_kernels, KvFormat::f16, 2, 32},
                    Case{"sparse_mixer", "phimoe", fastest_kernels, KvFormat::f16, 2},
                    Case{"shares_of_inputs", "llama4", exact_kernels, KvFormat::f16, 2, 32},
                    Case{"learned_positions", "gpt2", exact_kernels, KvFormat::f16, 2},
                    Case{"slopes", "bloom", fastest_kernels, KvFormat::f16, 2},
                    Case{"scaled_nvfp4", "llama_modelopt_nvfp4", fastest_kernels, KvFormat::f16, 2}),
    [](const auto& info) { return info.param.name; });

// ---- what is refused, and what a rank has --------------------------------------------------------------------------

std::string why_not(const std::string& model, uint32_t ranks) {
  const auto file = open_model_file(path_of(model));
  return why_undivided(*file, read_model_spec(*file), ranks);
}

TEST(Divide, RefusesInASentenceWhatItDoesNotDivide) {
  EXPECT_EQ(why_not("llama3", 2), "");
  EXPECT_THAT(why_not("llama3", 3),
              testing::HasSubstr("layer 0 has 2 KV heads, which 3 ranks cannot divide"));
  EXPECT_THAT(why_not("gemma4_moe", 2), testing::Ne(""));
  EXPECT_THAT(why_not("nemotron_h_moe", 2), testing::Ne(""));
  EXPECT_THAT(why_not("qwen3_5", 2), testing::HasSubstr("recurrent"));
  EXPECT_THAT(why_not("deepseek_v3", 2), testing::HasSubstr("keeps other rows"));
  EXPECT_THAT(why_not("olmo2", 2), testing::HasSubstr("norms the queries of all heads at once"));
  EXPECT_NE(why_not("gemma3n", 2), "");
  EXPECT_NE(why_not("deepseek_v4", 2), "");
}

TEST(Divide, ARankHasItsPartOfWeightsAndPages) {
  for (const char* model : {"synth:q8_0", "synth:experts"}) {
    const Case c{"", model, fastest_kernels, KvFormat::f16};
    const Part alone(c, {}, 1);
    size_t all = 0, shared = 0;  // norms and routers, which every rank has
    for (uint32_t r = 0; r < 3; ++r) {
      const Part part(c, {r, 3}, 1);
      const size_t table = alone.weights.embedding.view.bytes();  // which every rank reads by row
      all += part.weights.bytes - table;
      shared = 0;
      for (const Role& role : all_roles(part.spec)) {
        const TensorEntry* entry = part.file->find(role.tensor);
        if (role.share.whole == 0 && role.kind != RoleKind::table && entry != nullptr) shared += entry->bytes;
      }
      EXPECT_LT(part.weights.packed_bytes, alone.weights.packed_bytes / 2);
      // Five KV heads: pages of all ranks have room for two.
      const KvLayout own = make_kv_layout(kv_shapes(part.spec, c.format));
      const KvLayout whole = make_kv_layout(kv_shapes(alone.spec, c.format));
      EXPECT_EQ(own.bytes_per_token() * 5, whole.bytes_per_token() * 2);
    }
    const size_t table = alone.weights.embedding.view.bytes();
    EXPECT_NEAR(double(all), double(alone.weights.bytes - table + 2 * shared), 1000);
  }
}

TEST(Divide, RequestsThatLookIntoHeadsAreRefused) {
  const Case c{"", "llama3", exact_kernels, KvFormat::f16};
  on_ranks(c, 2, 1, [&](const EngineModel& model) {
    Engine engine(model, {.context = 64});
    Request request;
    request.prompt = {1, 2, 3};
    request.pruning = PruningOptions{.policy = PruningPolicy::streaming, .share = 0.5};
    EXPECT_THROW(engine.submit(request), Error);
    request.pruning.reset();
    request.watch = HeadWatch{.layer = 0, .head = 0, .on_row = [](const auto&...) {}};
    EXPECT_THROW(engine.submit(request), Error);
    request.watch.reset();
    request.max_tokens = 2;
    EXPECT_EQ(engine.run(request).tokens.size(), 2u);
  });
}

}  // namespace
}  // namespace quire
