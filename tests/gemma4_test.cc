// Gemma 4: heads of two sizes, rows that layers share, values that are keys, inputs of each layer, experts beside an MLP. That it
// computes what Transformers does is shown by its goldens, and that nothing else shows by the invariance tests.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "engine/memory_plan.h"
#include "made_model.h"
#include "model/hf_config.h"
#include "model/layer_blocks.h"
#include "model/refusal.h"
#include "model/synth.h"

namespace quire {
namespace {

using testing::HasSubstr;

// What an Error says that `action` throws.
std::string error_in(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Six layers, of which the third and the last have no window.
Metadata small_gemma4() {
  Metadata metadata("made");
  metadata.set("general.architecture", std::string("gemma4"));
  const std::pair<const char*, uint64_t> kCounts[] = {
      {"block_count", 6},
      {"context_length", 256},
      {"embedding_length", 32},
      {"feed_forward_length", 48},
      {"attention.head_count", 4},
      {"attention.head_count_kv", 2},
      {"vocab_size", 40},
      {"attention.key_length", 16},
      {"attention.value_length", 16},
      {"attention.sliding_window", 9},
      {"attention.key_length_swa", 8},
      {"attention.value_length_swa", 8},
  };
  for (const auto& [key, value] : kCounts) metadata.set(std::string("gemma4.") + key, value);
  metadata.set("gemma4.attention.sliding_window_pattern",
               std::vector<bool>{true, true, false, true, true, false});
  metadata.set("gemma4.attention.keys_are_values", false);
  metadata.set("llama.vocab_size", uint64_t(40));  // which a MadeFile looks for
  metadata.set("llama.embedding_length", uint64_t(32));
  return metadata;
}

ModelSpec spec_of(const std::string& key, MetadataValue value) {
  Metadata metadata = small_gemma4();
  metadata.set("gemma4." + key, std::move(value));
  return MadeFile(metadata).spec();
}

std::string error_of_spec(const std::string& key, MetadataValue value) {
  return error_in([&] { spec_of(key, value); });
}

TEST(Gemma4, HasHeadsOfTwoSizesAndRopesOfTwoBases) {
  const ModelSpec spec = MadeFile(small_gemma4()).spec();
  for (const size_t l : {0u, 1u, 2u, 3u, 4u, 5u}) {
    const GqaSpec& gqa = spec.layers[l].gqa();
    const bool is_full = l == 2 || l == 5;
    EXPECT_EQ(gqa.window, is_full ? 0u : 9u);
    EXPECT_EQ(gqa.key_dim, is_full ? 16u : 8u);
    EXPECT_EQ(gqa.rope, is_full ? 0u : 1u);
    EXPECT_EQ(gqa.scale, 1.0f);
    EXPECT_EQ(gqa.values, Values::own_normed);
  }
  EXPECT_FLOAT_EQ(spec.ropes[0].inverse_frequencies[1], std::pow(1e6f, -2.0f / 16));
  EXPECT_FLOAT_EQ(spec.ropes[1].inverse_frequencies[1], std::pow(1e4f, -2.0f / 8));
}

TEST(Gemma4, LayersThatShareReadTheLastOfTheirKindAndCostNoPages) {
  const ModelSpec all = MadeFile(small_gemma4()).spec();
  const ModelSpec spec = spec_of("attention.shared_kv_layers", uint64_t(2));
  EXPECT_EQ(spec.layers[3].gqa().shares_with, std::nullopt);
  EXPECT_EQ(spec.layers[4].gqa().shares_with, 3u);
  EXPECT_EQ(spec.layers[5].gqa().shares_with, 2u);
  const auto bytes = [](const ModelSpec& of) {
    return make_kv_layout(kv_shapes(of, KvFormat::f16)).bytes_per_token();
  };
  EXPECT_EQ(bytes(all), size_t(2 * 2) * (4 * 2 * 8 + 2 * 2 * 16));
  EXPECT_EQ(bytes(spec), size_t(2 * 2) * (3 * 2 * 8 + 1 * 2 * 16));
}

TEST(Gemma4, ValuesAreKeysWhereAFullLayerHasNoTensorForThem) {
  Metadata metadata = small_gemma4();
  metadata.set("gemma4.attention.keys_are_values", true);
  const MadeFile made(metadata);
  EXPECT_EQ(made.find("blk.2.attn_v.weight"), nullptr);
  EXPECT_NE(made.find("blk.1.attn_v.weight"), nullptr);
  metadata.erase("gemma4.attention.keys_are_values");  // as files from elsewhere
  const MadeFile unsaid(metadata);
  EXPECT_EQ(unsaid.spec().layers[2].gqa().values, Values::keys_normed);
  EXPECT_EQ(unsaid.spec().layers[1].gqa().values, Values::own_normed);
}

TEST(Gemma4, AbsurdKeysAreRefusedByName) {
  const auto refused = [](const std::string& key, MetadataValue value) {
    EXPECT_THAT(error_of_spec(key, std::move(value)), HasSubstr("gemma4." + key));
  };
  refused("attention.shared_kv_layers", uint64_t(6));
  refused("attention.shared_kv_layers", uint64_t(1) << 40);
  refused("attention.shared_kv_layers", uint64_t(4));  // the third is the first without a window, and shares
  refused("attention.key_length_swa", uint64_t(1) << 17);
  refused("attention.value_length_swa", uint64_t(0));
  refused("attention.sliding_window_pattern", std::vector<bool>{true, false});
  refused("rope.dimension_count_swa", uint64_t(9));
  refused("rope.dimension_count_swa", uint64_t(10));
  refused("embedding_length_per_layer_input", uint64_t(1) << 33);
  refused("embedding_length_per_layer_input", uint64_t(1) << 23);
  Metadata metadata = small_gemma4();
  metadata.set("gemma4.attention.shared_kv_layers", uint64_t(2));
  metadata.set("gemma4.attention.head_count_kv", std::vector<uint64_t>{2, 2, 2, 2, 1, 2});
  EXPECT_THAT(error_in([&] { MadeFile made(metadata); }), HasSubstr("gemma4.attention.head_count_kv"));
  metadata = small_gemma4();
  metadata.set("gemma4.attention.keys_are_values", true);
  metadata.set("gemma4.attention.value_length", uint64_t(8));
  EXPECT_THAT(error_in([&] { MadeFile made(metadata); }), HasSubstr("gemma4.attention.value_length"));
}

Metadata with_inputs() {
  Metadata metadata = small_gemma4();
  metadata.set("gemma4.embedding_length_per_layer_input", uint64_t(8));
  return metadata;
}

TEST(Gemma4, TheTableOfInputsStaysInTheFile) {
  const auto made = std::make_shared<MadeFile>(with_inputs());
  BareModel model(made, made->spec(), scalar_kernels(), 2);
  ASSERT_TRUE(model.weights.layer_table);
  EXPECT_EQ(model.weights.layer_table.packed, nullptr);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(model.weights.layer_table.view.data),
            made->load(*made->find(kLayerTable)).bytes.data());
  const auto plan = [&](const ModelFile& file, const ModelSpec& spec) {
    EngineOptions options{.context = 64};
    return plan_memory(file, spec, options, model.backend, Side::device).weights;
  };
  const size_t table = made->find(kLayerTable)->bytes;
  size_t sum = 0;
  for (const TensorEntry& tensor : made->tensors()) sum += tensor.bytes;
  EXPECT_LT(plan(*made, made->spec()), 2 * (sum - table));
}

TEST(Gemma4, AMissingTensorIsToldByItsName) {
  for (const char* missing : {"per_layer_token_embd.weight", "blk.3.inp_gate.weight",
                              "blk.4.post_norm.weight", "blk.1.attn_v.weight", "blk.5.attn_k_norm.weight"}) {
    const auto made = std::make_shared<MadeFile>(with_inputs());
    class Without : public ModelFile {
     public:
      Without(const MadeFile& all, const std::string& name) : ModelFile("made"), all_(all) {
        metadata_ = all.metadata();
        for (const TensorEntry& tensor : all.tensors())
          if (tensor.name != name) add_tensor(tensor);
      }
      TensorData load(const TensorEntry& entry) const override { return all_.load(entry); }
      std::vector<std::span<const std::byte>> stored(const TensorEntry& entry) const override {
        return all_.stored(entry);
      }

     private:
      const MadeFile& all_;
    };
    const auto file = std::make_shared<Without>(*made, missing);
    EXPECT_THAT(error_in([&] { load_weights(file, read_model_spec(*file)); }), HasSubstr(missing));
  }
}

// Gate and up of each expert in one tensor, as files have them, and apart.
TEST(Gemma4, ExpertsOfOneTensorGiveTheBitsOfTwo) {
  Metadata metadata = small_gemma4();
  metadata.set("gemma4.expert_count", uint64_t(3));
  metadata.set("gemma4.expert_used_count", uint64_t(2));
  metadata.set("gemma4.expert_feed_forward_length", uint64_t(16));
  const auto made = std::make_shared<MadeFile>(metadata);
  class Joined : public ModelFile {
   public:
    explicit Joined(std::shared_ptr<const MadeFile> from) : ModelFile("made"), from_(std::move(from)) {
      metadata_ = from_->metadata();
      for (TensorEntry tensor : from_->tensors()) {
        const size_t at = tensor.name.find("ffn_gate_exps");
        if (tensor.name.find("ffn_up_exps") != std::string::npos) continue;
        if (at != std::string::npos) {
          const std::string prefix = tensor.name.substr(0, at);
          const auto gate = from_->load(*from_->find(tensor.name)).bytes;
          const auto up = from_->load(*from_->find(prefix + "ffn_up_exps.weight")).bytes;
          tensor.name = prefix + "ffn_gate_up_exps.weight";
          tensor.shape[1] *= 2;
          std::vector<std::byte>& both = joined_[tensor.name];
          const size_t each = gate.size() / tensor.shape[0];
          for (size_t e = 0; e < tensor.shape[0]; ++e) {
            for (const auto& half : {gate, up}) {
              const auto expert = half.subspan(e * each, each);
              both.insert(both.end(), expert.begin(), expert.end());
            }
          }
          tensor.bytes = both.size();
        }
        add_tensor(tensor);
      }
    }
    TensorData load(const TensorEntry& entry) const override {
      const auto found = joined_.find(entry.name);
      if (found != joined_.end()) return {found->second, nullptr};
      return from_->load(entry);
    }
    std::vector<std::span<const std::byte>> stored(const TensorEntry& entry) const override {
      return {load(entry).bytes};
    }

   private:
    std::shared_ptr<const MadeFile> from_;
    std::map<std::string, std::vector<std::byte>> joined_;
  };
  const auto joined = std::make_shared<Joined>(made);
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < 30; ++i) tokens.push_back(i * 7 % 40);
  for (const CpuKernels& kernels : {exact_kernels(), scalar_kernels()}) {
    BareModel two(made, made->spec(), kernels, 2);
    BareModel one(joined, read_model_spec(*joined), kernels, 2);
    EXPECT_EQ(all_logits(one, tokens, 7), all_logits(two, tokens, 30));
    EXPECT_EQ(one.weights.bytes, two.weights.bytes);
  }
}

TEST(Gemma4, WhatAGpuHasNotIsRefusedInASentence) {
  BackendTraits gpu{.device = "cuda:0", .description = {}, .kernels = {}};
  gpu.limits.norms_of_parts = gpu.limits.scaled_stream = gpu.limits.scaled_shares = false;
  const auto made = std::make_shared<MadeFile>(with_inputs());
  EXPECT_THAT(refusal_of(*made, made->spec(), gpu), HasSubstr("inputs for each layer"));
  const MadeFile plain(small_gemma4());
  EXPECT_THAT(refusal_of(plain, plain.spec(), gpu), HasSubstr("layer 0 has attention with normed values"));
  ModelSpec scaled = plain.spec();
  for (LayerSpec& layer : scaled.layers) layer.gqa().values = Values::own;
  scaled.layers[3].output_scale = 0.5f;
  EXPECT_THAT(refusal_of(plain, scaled, gpu), HasSubstr("layer 3 leaves the stream times a factor"));
  EXPECT_EQ(refusal_of(*made, made->spec(), BackendTraits{}), "");
}

TEST(Gemma4, ShapesHaveTheMeasuresOfThePublishedModels) {
  const auto kv_bytes = [](const char* name) {
    const auto file = synth_head(synth_shape(name), TypeMix("q4_0"));
    return make_kv_layout(kv_shapes(read_model_spec(*file), KvFormat::f16)).bytes_per_token();
  };
  // 24 of 42 layers have rows of their own: 20 of two heads of 256, 4 of 512.
  EXPECT_EQ(kv_bytes("gemma4-e4b"), size_t(2 * 2 * 2) * (20 * 256 + 4 * 512));
  EXPECT_EQ(kv_bytes("gemma4-26b-a4b"), size_t(2 * 2) * (25 * 8 * 256 + 5 * 2 * 512));
}

HfConfig converted(const std::function<void(Json&)>& change) {
  Json config = {{"model_type", "gemma4_text"},
                 {"hidden_size", 32},
                 {"intermediate_size", 48},
                 {"num_hidden_layers", 6},
                 {"vocab_size", 64},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 8},
                 {"global_head_dim", 16},
                 {"max_position_embeddings", 64},
                 {"hidden_size_per_layer_input", 8},
                 {"sliding_window", 16}};
  change(config);
  return convert_hf_config(HfObject(parse_json(config.dump(), "config.json"), "config.json"), "model");
}

TEST(Gemma4, AConfigBecomesTheKeysOfAGgufFile) {
  const Metadata metadata = converted([](Json& config) {
                              config["num_kv_shared_layers"] = 2;
                              config["use_double_wide_mlp"] = true;
                              config["attention_k_eq_v"] = true;
                              config["num_global_key_value_heads"] = 1;
                            }).metadata;
  EXPECT_EQ(metadata.number("gemma4.attention.key_length"), 16u);
  EXPECT_EQ(metadata.number("gemma4.attention.key_length_swa"), 8u);
  EXPECT_EQ(metadata.maybe_numbers("gemma4.attention.head_count_kv", 6),
            (std::vector<uint64_t>{2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(metadata.maybe_numbers("gemma4.feed_forward_length", 6),
            (std::vector<uint64_t>{48, 48, 48, 48, 96, 96}));
  EXPECT_EQ(metadata.number("gemma4.attention.shared_kv_layers"), 2u);
  EXPECT_TRUE(metadata.flag("gemma4.attention.keys_are_values"));
}

TEST(Gemma4, AHostileConfigIsRefusedByTheKey) {
  const auto refused = [](const char* key, Json value) {
    EXPECT_THAT(error_in([&] {
                  converted([&](Json& config) {
                    config["attention_k_eq_v"] = true;
                    config[key] = value;
                  });
                }),
                HasSubstr(key));
  };
  refused("num_kv_shared_layers", 6);
  refused("num_kv_shared_layers", -1);
  refused("layer_types", Json::array({"full_attention"}));
  refused("layer_types", Json::array({"a", "b", "c", "d", "e", "f"}));
  refused("global_head_dim", 1u << 20);
  refused("num_global_key_value_heads", 3.5);
  refused("hidden_size_per_layer_input", 1u << 20);
  refused("use_bidirectional_attention", "all");
  refused("rope_parameters", Json::parse(R"({"full_attention": {"rope_type": "yarn"}})"));
  refused("per_layer_config", Json::parse(R"({"5": 7})"));
}

}  // namespace
}  // namespace quire
