// Layers that differ from each other: each compared with a plain computation of the same, or with the same model said in
// another way.
#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "layers_case.h"
#include "model/cost.h"

namespace quire {
namespace {

TEST(Layers, ThatAreAllAlikeGiveWhatIsComputedPlainly) {
  expect_plain(make(small_llama()));
}

TEST(Layers, MayHaveTheirOwnNumbersOfHeadsAndWidths) {
  Metadata metadata = small_llama();
  metadata.set("llama.attention.head_count", std::vector<uint64_t>{4, 2, 8, 4});
  metadata.set("llama.attention.head_count_kv", std::vector<uint64_t>{2, 1, 8, 1});
  metadata.set("llama.attention.key_length", uint64_t(8));
  metadata.set("llama.feed_forward_length", std::vector<uint64_t>{48, 16, 96, 32});
  const auto file = make(metadata);
  EXPECT_EQ(file->find("blk.2.attn_k.weight")->shape, (std::vector<uint64_t>{64, 32}));
  EXPECT_EQ(file->find("blk.3.ffn_down.weight")->shape, (std::vector<uint64_t>{32, 32}));
  const KvLayout layout = make_kv_layout(kv_shapes(file->spec(), KvFormat::f32));
  EXPECT_EQ(layout.bytes_per_token(), size_t(2 + 1 + 8 + 1) * (8 + 8) * sizeof(float));
  expect_plain(file);
}

TEST(Layers, SaidOneByOneGiveTheBitsOfThoseSaidOnce) {
  Metadata metadata = small_llama();
  const auto once = make(metadata);
  metadata.set("llama.attention.head_count", std::vector<int64_t>{4, 4, 4, 4});
  metadata.set("llama.attention.head_count_kv", std::vector<uint64_t>{2, 2, 2, 2});
  metadata.set("llama.feed_forward_length", std::vector<uint64_t>{48, 48, 48, 48});
  EXPECT_EQ(logits(make(metadata), scalar_kernels()), logits(once, scalar_kernels()));
}

TEST(Layers, OfAFileThatWasWrittenAndReadGiveTheSameBits) {
  Metadata metadata = small_llama();
  metadata.set("llama.attention.head_count_kv", std::vector<uint64_t>{4, 2, 1, 2});
  metadata.set("llama.feed_forward_length", std::vector<uint64_t>{16, 32, 48, 64});
  const auto file = make(metadata);
  const std::string path = testing::TempDir() + "/quire_layers_" + std::to_string(::getpid()) + ".gguf";
  file->write(path);
  BareModel model(path, scalar_kernels(), 2);
  std::filesystem::remove(path);  // it is mapped
  EXPECT_EQ(model.spec.layers[2].gqa().kv_heads, 1u);
  EXPECT_EQ(all_logits(model, some_tokens(), 64), logits(file, scalar_kernels()));
}

// The last two layers read the rows of the first two, of which one has a window.
void share(ModelSpec& spec) {
  spec.layers[1].gqa().window = spec.layers[3].gqa().window = 9;
  spec.layers[2].gqa().shares_with = 0;
  spec.layers[3].gqa().shares_with = 1;
}

TEST(Layers, ThatShareKeysAndValuesStoreNone) {
  const auto file = make(small_llama(), share);
  for (const char* name : {"blk.2.attn_k.weight", "blk.2.attn_v.weight", "blk.3.attn_k.weight"})
    EXPECT_EQ(file->find(name), nullptr) << name;
  const KvLayout layout = make_kv_layout(kv_shapes(file->spec(), KvFormat::f16));
  ASSERT_EQ(layout.places.size(), 4u);
  ASSERT_EQ(layout.groups.size(), 2u);
  for (const size_t layer : {2, 3}) {
    EXPECT_EQ(layout.places[layer][0].group, layout.places[layer - 2][0].group);
    EXPECT_EQ(layout.places[layer][0].slot, layout.places[layer - 2][0].slot);
  }
  EXPECT_EQ(layout.groups[0].layers.size(), 1u);
  EXPECT_EQ(layout.bytes_per_token(), size_t(2 * 2 * (8 + 8) * 2));  // layers, heads, key and value, f16
  expect_plain(file);
}

TEST(Layers, OneThatSharesGivesTheBitsOfOneThatComputesTheSameRows) {
  const auto share_one = [](ModelSpec& spec) { spec.layers[1].gqa().shares_with = 0; };
  const auto sharing = make(small_llama(), share_one);
  const auto own = make(small_llama());
  // The first layer adds nothing, so the second sees the same stream.
  for (const auto& file : {sharing, own}) {
    file->clear("blk.0.attn_output.weight");
    file->clear("blk.0.ffn_down.weight");
    file->copy("blk.1.attn_norm.weight", "blk.0.attn_norm.weight");
  }
  own->copy("blk.1.attn_k.weight", "blk.0.attn_k.weight");
  own->copy("blk.1.attn_v.weight", "blk.0.attn_v.weight");
  for (const KvFormat format : {KvFormat::f16, KvFormat::int8, KvFormat::q4})
    EXPECT_EQ(logits(sharing, scalar_kernels(), 7, format), logits(own, scalar_kernels(), 7, format));
}

TEST(Layers, ThatShareAnswerInTheEngineAndAreNotPruned) {
  const auto file = make(small_llama(), share);
  BareModel model(file, file->spec(), scalar_kernels(), 2);
  const auto answer = [&](uint32_t chunk) {
    Engine engine(model.engine_model(), {.context = 128, .prefill_chunk = chunk});
    Request request;
    request.prompt = some_tokens();
    request.max_tokens = 20;
    request.sampling.temperature = 0;
    return engine.run(request).tokens;
  };
  const std::vector<TokenId> whole = answer(64);
  EXPECT_EQ(whole.size(), 20u);
  EXPECT_EQ(whole, answer(5));

  Engine engine(model.engine_model(), {.context = 128});
  Request pruned;
  pruned.prompt = some_tokens();
  pruned.pruning = PruningOptions{.share = 0.5, .window = 4};
  EXPECT_THROW(engine.submit(pruned), Error);
}

TEST(Layers, WhoseScoresFallWithTheDistanceAreNotPruned) {
  const auto file = make(small_llama(), [](ModelSpec& spec) {
    for (LayerSpec& layer : spec.layers) layer.gqa().slopes.assign(layer.gqa().heads, 0.25f);
  });
  BareModel model(file, file->spec(), scalar_kernels(), 2);
  Engine engine(model.engine_model(), {.context = 128});
  Request request;
  request.prompt = some_tokens();
  request.max_tokens = 2;
  EXPECT_EQ(engine.run(request).tokens.size(), 2u);
  request.pruning = PruningOptions{.share = 0.5, .window = 4};
  try {
    engine.submit(request);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ALiBi"), std::string::npos) << error.what();
  }
}

TEST(Layers, MayRunAttentionAndMlpSideBySide) {
  for (const BlockInput input : {BlockInput::shared, BlockInput::stream_before}) {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      const auto file = make(small_llama(), [=](ModelSpec& spec) {
        for (LayerSpec& layer : spec.layers) {
          layer.norms.mlp_input = input;
          layer.norms.norm.kind = kind;
        }
      });
      EXPECT_EQ(file->find("blk.0.ffn_norm.weight") == nullptr, input == BlockInput::shared);
      expect_plain(file);
    }
  }
}

TEST(Layers, NormQueriesAndKeysInEveryWay) {
  for (const QueryKeyNorm norm : {QueryKeyNorm::per_head, QueryKeyNorm::per_head_own,
                                  QueryKeyNorm::per_head_weightless, QueryKeyNorm::whole}) {
    for (const HeadNormOrder order : {HeadNormOrder::before_rotation, HeadNormOrder::after_rotation}) {
      if (norm == QueryKeyNorm::whole && order == HeadNormOrder::after_rotation) continue;  // nobody's
      for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
        SCOPED_TRACE(int(norm));
        expect_plain(make(small_llama(), [=](ModelSpec& spec) {
          for (LayerSpec& layer : spec.layers) {
            layer.gqa().query_key_norm = norm;
            layer.gqa().norm_order = order;
            layer.gqa().norm.kind = kind;
          }
        }));
      }
    }
  }
}

TEST(Layers, MayHaveQueriesThatGrowAndChunksAndNoRotation) {
  const auto file = make(small_llama(), [](ModelSpec& spec) {
    spec.layers[0].gqa().temperature = {.slope = 0.7f, .step = 8, .offset = 1};
    spec.layers[1].gqa().chunk = 16;
    spec.layers[2].gqa().chunk = 11;
    spec.layers[3].gqa().rope.reset();
    spec.layers[3].gqa().temperature = {.slope = -0.3f, .step = 5};
  });
  const KvLayout layout = make_kv_layout(kv_shapes(file->spec(), KvFormat::f32));
  EXPECT_EQ(layout.groups.at(layout.places[1][0].group).window, 16u);
  expect_plain(file);
}

TEST(Layers, MayHaveTheirOwnWidthsOfHeads) {
  Metadata metadata = small_llama();
  metadata.set("llama.attention.key_length", std::vector<uint64_t>{8, 16, 8, 4});
  metadata.set("llama.attention.value_length", std::vector<uint64_t>{8, 8, 16, 4});
  const auto file = make(metadata);
  EXPECT_EQ(file->spec().ropes.size(), 3u);
  EXPECT_EQ(file->find("blk.1.attn_k.weight")->shape, (std::vector<uint64_t>{32, 32}));
  EXPECT_EQ(file->find("blk.2.attn_output.weight")->shape, (std::vector<uint64_t>{32, 64}));
  expect_plain(file);
}

// A mixer in a few lines: the mean of a token's row and the one before, through a cache of its own.
class MeanOfTwo : public Block {
 public:
  explicit MeanOfTwo(uint32_t dim) : dim_(dim) {}
  std::vector<Role> roles() const override { return {}; }
  std::vector<size_t> scratch() const override { return {dim_}; }
  KvLayer cached() const override {
    return {{.kv_heads = 1, .key_dim = dim_, .value_dim = dim_, .window = 2}};
  }
  void forward(const BlockStep& step) const override { store_and_mean_two(step, dim_); }

 private:
  uint32_t dim_;
};

// An MLP in a few lines: one matrix and a bias.
class LinearMlp : public Block {
 public:
  explicit LinearMlp(uint64_t dim) : dim_(dim) {}
  std::vector<Role> roles() const override {
    return {{.name = "toy", .tensor = "toy.weight", .shape = {dim_, dim_}},
            vector_role("toy bias", "toy.bias", dim_, Presence::required)};
  }
  std::vector<size_t> scratch() const override { return {}; }
  void forward(const BlockStep& step) const override {
    const Projection projection[] = {{step.weights[0], step.weights[1], step.out}};
    step.backend.project({step.in, projection});
  }

 private:
  uint64_t dim_;
};

void play(ModelSpec& spec) {
  spec.layers[1].mixer = std::make_shared<MeanOfTwo>(spec.dim);
  spec.layers[2].mlp = std::make_shared<LinearMlp>(spec.dim);
}

PlainRows mean_of_two(size_t, const PlainRows& in) {
  PlainRows out = in;
  for (size_t t = 1; t < in.size(); ++t) {
    for (size_t i = 0; i < in[t].size(); ++i) out[t][i] = (in[t - 1][i] + in[t][i]) / 2;
  }
  return out;
}

TEST(Layers, ABlockThatNobodyKnowsIsLoadedComputedAndCounted) {
  const auto file = make(small_llama(), play);
  EXPECT_EQ(file->find("blk.1.attn_q.weight"), nullptr);
  EXPECT_EQ(file->find("blk.2.ffn_up.weight"), nullptr);
  const auto linear = [&](size_t, const PlainRows& in) {
    const std::vector<double> weight = file->values("blk.2.toy.weight"),
                              bias = file->values("blk.2.toy.bias");
    PlainRows out;
    for (const auto& row : in) {
      out.push_back(bias);
      for (size_t r = 0; r < bias.size(); ++r)
        out.back()[r] += std::inner_product(row.begin(), row.end(), weight.begin() + r * row.size(), 0.0);
    }
    return out;
  };
  expect_near(logits(file, exact_kernels()), plain_logits(*file, some_tokens(), mean_of_two, linear));
  EXPECT_EQ(logits(file, scalar_kernels()), logits(file, scalar_kernels(), 7));

  BareModel model(file, file->spec(), scalar_kernels(), 1);
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, KvFormat::f32));
  EXPECT_EQ(layout.groups.at(layout.places[1][0].group).window, 2u);
  const CostModel costs(model.weights, model.backend);
  const double attention = 32 * 32 * 2 + 16 * 32 * 2, mlp = 48 * 32 * 3, head = 40 * 32;
  EXPECT_EQ(costs.products({}).ops(), 2 * (3 * attention + 3 * mlp + 32 * 32 + head));
}

TEST(Layers, ABlockThatNobodyKnowsGetsItsInputInTheFormOfItsWeights) {
  Metadata metadata = small_llama();
  metadata.set("llama.feed_forward_length", uint64_t(64));  // whole blocks of q8_0
  const auto file = std::make_shared<MadeFile>(metadata, play, DType::q8_0);
  const std::vector<float> seen = logits(file, scalar_kernels());
  const std::vector<float> wanted = logits(file, exact_kernels());
  expect_near(seen, {wanted.begin(), wanted.end()}, 0.1);
  EXPECT_NE(seen, wanted);  // products of int8
  EXPECT_EQ(seen, logits(file, scalar_kernels(), 7));
}

}  // namespace
}  // namespace quire
