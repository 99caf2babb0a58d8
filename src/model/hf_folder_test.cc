#include "model/hf_folder.h"

#include <cmath>
#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/gguf.h"
#include "model/gguf_writer.h"
#include "model/test_folder.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Writes a folder: config.json and a model.safetensors of the tensors it is given.
class FolderMaker {
 public:
  Json config = {{"model_type", "llama"},         {"hidden_size", 4},           {"intermediate_size", 6},
                 {"num_hidden_layers", 1},        {"num_attention_heads", 1},   {"vocab_size", 2},
                 {"max_position_embeddings", 64}, {"tie_word_embeddings", true}};

  FolderMaker& add(const std::string& name, const char* type, std::vector<uint64_t> shape,
                   std::string bytes) {
    tensors_[name] = {{type, std::move(shape)}, std::move(bytes)};
    return *this;
  }
  FolderMaker& add(const std::string& name, std::vector<uint64_t> shape, const std::vector<float>& values) {
    return add(name, "F32", std::move(shape), bytes_of(values));
  }

  const std::string& write() {
    Json head = Json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      head[name] = {{"dtype", tensor.first.first},
                    {"shape", tensor.first.second},
                    {"data_offsets", {data.size(), data.size() + tensor.second.size()}}};
      data += tensor.second;
    }
    const std::string text = head.dump();
    const uint64_t size = text.size();
    folder_.write("model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
    folder_.write("config.json", config.dump());
    return folder_.path();
  }

  std::string error() {
    return error_of([&] { HfFolder folder(write()); });
  }

  const TestFolder& folder() const { return folder_; }

  template <class T>
  static std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

 private:
  TestFolder folder_;
  std::map<std::string, std::pair<std::pair<const char*, std::vector<uint64_t>>, std::string>> tensors_;
};

std::vector<float> count_from(float first, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + float(i);
  return values;
}

std::vector<float> values_of(const ModelFile& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  if (!entry) throw Error("no tensor {}", name);
  uint64_t count = 1;
  for (const uint64_t size : entry->shape) count *= size;
  std::vector<float> values(count);
  dequantize_row(entry->dtype, file.load(*entry).bytes.data(), values);
  return values;
}

TEST(HfFolder, PutsTheRowsOfLlamasQueriesInPairs) {
  FolderMaker maker;
  maker.config["num_attention_heads"] = 2;
  maker.config["num_key_value_heads"] = 1;
  maker.config["head_dim"] = 4;
  maker.add("model.layers.0.self_attn.q_proj.weight", {8, 1}, count_from(0, 8));
  maker.add("model.layers.0.self_attn.k_proj.bias", {4}, count_from(0, 4));
  maker.add("model.layers.0.self_attn.v_proj.weight", {4, 1}, count_from(0, 4));
  const HfFolder folder(maker.write());
  EXPECT_THAT(values_of(folder, "blk.0.attn_q.weight"), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(values_of(folder, "blk.0.attn_k.bias"), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(values_of(folder, "blk.0.attn_v.weight"), ElementsAre(0, 1, 2, 3));
  maker.config["model_type"] = "qwen2";  // rotates halves in GGUF as well
  EXPECT_THAT(values_of(HfFolder(maker.write()), "blk.0.attn_q.weight"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(HfFolder, LooksAtPlainMatricesInPlaceAndWidensVectors) {
  FolderMaker maker;
  maker.add("model.embed_tokens.weight", "BF16", {2, 2}, FolderMaker::bytes_of<uint16_t>({1, 2, 3, 4}));
  maker.add("model.norm.weight", "BF16", {2}, FolderMaker::bytes_of<uint16_t>({0x3f80, 0x4000}));
  const HfFolder folder(maker.write());
  const TensorEntry& embedding = *folder.find("token_embd.weight");
  EXPECT_EQ(embedding.dtype, DType::bf16);
  EXPECT_EQ(folder.load(embedding).bytes.size(), 8u);
  EXPECT_EQ(folder.find("output_norm.weight")->dtype, DType::f32);
  EXPECT_THAT(values_of(folder, "output_norm.weight"), ElementsAre(1, 2));
}

TEST(HfFolder, AddsOneToGemmasNorms) {
  FolderMaker maker;
  maker.config["model_type"] = "gemma3_text";
  maker.add("model.layers.0.post_attention_layernorm.weight", {2}, {0.5, -1});
  maker.add("model.layers.0.self_attn.q_norm.weight", {1}, {0});
  const HfFolder folder(maker.write());
  EXPECT_THAT(values_of(folder, "blk.0.post_attention_norm.weight"), ElementsAre(1.5, 0));
  EXPECT_THAT(values_of(folder, "blk.0.attn_q_norm.weight"), ElementsAre(1));
}

TEST(HfFolder, TurnsGpt2sMatricesAround) {
  FolderMaker maker;
  maker.config = {{"model_type", "gpt2"}, {"n_embd", 2},      {"n_layer", 1},
                  {"n_head", 1},          {"n_positions", 8}, {"vocab_size", 2}};
  maker.add("h.0.attn.c_attn.weight", {2, 6}, count_from(0, 12));
  maker.add("h.0.attn.bias", {1, 1, 2, 2}, count_from(0, 4));  // the causal mask: not needed
  maker.add("wte.weight", {2, 2}, count_from(0, 4));
  const HfFolder folder(maker.write());
  EXPECT_THAT(folder.find("blk.0.attn_qkv.weight")->shape, ElementsAre(6, 2));
  EXPECT_THAT(values_of(folder, "blk.0.attn_qkv.weight"), ElementsAre(0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11));
  EXPECT_THAT(values_of(folder, "token_embd.weight"), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.metadata().number("gpt2.feed_forward_length"), 8u);
}

// Two experts of 2 x 1, however they are stored, become one tensor per matrix.
struct MoeMaker : FolderMaker {
  explicit MoeMaker(const char* type) {
    config["model_type"] = type;
    config["num_local_experts"] = 2;
    config["num_experts_per_tok"] = 1;
    config["moe_intermediate_size"] = 2;
  }
};

TEST(HfFolder, StacksExperts) {
  MoeMaker mixtral("mixtral");
  for (const char* matrix : {"w1", "w2", "w3"}) {
    const float first = float(matrix[1] - '0') * 10;
    for (int expert : {1, 0})
      mixtral.add(fmt::format("model.layers.0.block_sparse_moe.experts.{}.{}.weight", expert, matrix), {2, 1},
                  count_from(first + 2 * float(expert), 2));
  }
  const HfFolder folder(mixtral.write());
  EXPECT_THAT(folder.find("blk.0.ffn_gate_exps.weight")->shape, ElementsAre(2, 2, 1));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_gate_exps.weight"), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_down_exps.weight"), ElementsAre(20, 21, 22, 23));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_up_exps.weight"), ElementsAre(30, 31, 32, 33));
}

TEST(HfFolder, TakesExpertsThatAreStackedAlready) {
  MoeMaker qwen("qwen3_moe");
  qwen.add("model.layers.0.mlp.experts.gate_up_proj", {2, 4, 1}, count_from(0, 8));
  qwen.add("model.layers.0.mlp.experts.down_proj", {2, 1, 2}, count_from(0, 4));
  const HfFolder folder(qwen.write());
  EXPECT_THAT(folder.find("blk.0.ffn_gate_exps.weight")->shape, ElementsAre(2, 2, 1));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_gate_exps.weight"), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_up_exps.weight"), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_down_exps.weight"), ElementsAre(0, 1, 2, 3));
}

TEST(HfFolder, UntanglesTheExpertsOfGptOss) {
  MoeMaker oss("gpt_oss");
  oss.add("model.layers.0.mlp.experts.gate_up_proj", {2, 2, 4},
          count_from(0, 16));  // [experts, in, gate and up]
  oss.add("model.layers.0.mlp.experts.gate_up_proj_bias", {2, 4}, count_from(0, 8));
  oss.add("model.layers.0.self_attn.sinks", {2}, {5, 6});
  const HfFolder folder(oss.write());
  EXPECT_THAT(values_of(folder, "blk.0.ffn_gate_exps.weight"), ElementsAre(0, 4, 2, 6, 8, 12, 10, 14));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_up_exps.weight"), ElementsAre(1, 5, 3, 7, 9, 13, 11, 15));
  EXPECT_THAT(folder.find("blk.0.ffn_up_exps.bias")->shape, ElementsAre(2, 2));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_up_exps.bias"), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(values_of(folder, "blk.0.attn_sinks.weight"), ElementsAre(5, 6));
}

TEST(HfFolder, RepacksMxfp4WithoutChangingAValue) {
  MoeMaker oss("gpt_oss");
  oss.config["quantization_config"] = {{"quant_method", "mxfp4"}};
  std::string blocks, scales;
  for (int row = 0; row < 8; ++row) {  // 2 experts of 4 rows of 32 values
    for (int i = 0; i < 16; ++i) blocks += char((i * 7 + row) & 0xff);
    scales += char(120 + row);
  }
  oss.add("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", {2, 4, 1, 16}, blocks);
  oss.add("model.layers.0.mlp.experts.gate_up_proj_scales", "U8", {2, 4, 1}, scales);
  const HfFolder folder(oss.write());
  EXPECT_EQ(folder.find("blk.0.ffn_up_exps.weight")->dtype, DType::mxfp4);
  constexpr float kFloat4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.f, -0.5, -1, -1.5, -2, -3, -4, -6};
  const std::vector<float> up = values_of(folder, "blk.0.ffn_up_exps.weight");
  ASSERT_EQ(up.size(), 128u);
  for (int i = 0; i < 128; ++i) {
    const int row = i / 32 * 2 + 1;
    const int byte = uint8_t(blocks[size_t(row * 16 + i % 32 / 2)]);
    EXPECT_EQ(up[size_t(i)], kFloat4[byte >> (i % 2 * 4) & 15] * std::ldexp(1.f, row - 7)) << i;
  }
}

TEST(HfFolder, ScalesFp8WeightsByBlockRowAndTensor) {
  FolderMaker maker;
  maker.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {2, 2}}};
  const std::string ones(9, '\x38');
  maker.add("model.layers.0.mlp.up_proj.weight", "F8_E4M3", {3, 3}, ones);
  maker.add("model.layers.0.mlp.up_proj.weight_scale_inv", {2, 2}, {1, 2, 3, 4});
  maker.add("model.layers.0.mlp.gate_proj.weight", "F8_E4M3", {3, 3}, ones);
  maker.add("model.layers.0.mlp.gate_proj.weight_scale", {3, 1}, {1, 2, 3});
  maker.add("model.layers.0.mlp.down_proj.weight", "F8_E5M2", {3, 3}, std::string(9, '\x3c'));
  maker.add("model.layers.0.mlp.down_proj.weight_scale", {}, {7});
  const HfFolder folder(maker.write());
  EXPECT_THAT(values_of(folder, "blk.0.ffn_up.weight"), ElementsAre(1, 1, 2, 1, 1, 2, 3, 3, 4));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_gate.weight"), ElementsAre(1, 1, 1, 2, 2, 2, 3, 3, 3));
  EXPECT_THAT(values_of(folder, "blk.0.ffn_down.weight"), ElementsAre(7, 7, 7, 7, 7, 7, 7, 7, 7));
  maker.add("model.layers.0.mlp.up_proj.weight_scale_inv", {5}, {1, 2, 3, 4, 5});
  const HfFolder bad(maker.write());
  EXPECT_THAT(error_of([&] { bad.load(*bad.find("blk.0.ffn_up.weight")); }), HasSubstr("does not fit"));
}

TEST(HfFolder, Fp8WhoseScalesArePowersOfTwoIsTheSameNumbersInBf16) {
  std::string codes;  // all that are numbers
  for (int bits = 0; bits < 256; ++bits)
    if ((bits & 0x7f) != 0x7f) codes += char(bits);
  std::vector<float> expected(codes.size());
  dequantize_row(DType::f8_e4m3, reinterpret_cast<const std::byte*>(codes.data()), expected);
  for (const float scale : {0x1p-100f / 2, 0x1p-9f, 4.0f, 0x1p99f, 3.0f, -2.0f, 0x1p101f}) {
    FolderMaker maker;
    maker.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
    maker.add("model.layers.0.mlp.up_proj.weight", "F8_E4M3", {1, codes.size()}, codes);
    maker.add("model.layers.0.mlp.up_proj.weight_scale_inv", {1, 2}, {scale, 1});
    const HfFolder folder(maker.write());
    const bool is_power = scale == 0x1p-9f || scale == 4.0f || scale == 0x1p99f;
    EXPECT_EQ(folder.find("blk.0.ffn_up.weight")->dtype, is_power ? DType::bf16 : DType::f32) << scale;
    const std::vector<float> values = values_of(folder, "blk.0.ffn_up.weight");
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(values[i], expected[i] * (i < 128 ? scale : 1)) << scale << " " << i;
  }
}

TEST(HfFolder, ComputesLlama3sDivisorsOfFrequencies) {
  FolderMaker maker;
  maker.config["rope_scaling"] = {{"rope_type", "llama3"},
                                  {"factor", 8.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 64}};
  maker.config["rope_theta"] = 10000.0;
  const std::vector<float> divisors = values_of(HfFolder(maker.write()), "rope_freqs.weight");
  EXPECT_THAT(divisors, ElementsAre(1, 8));  // wavelengths 6.3 and 628
}

TEST(HfFolder, ReadsRotationAsTransformers4And5WriteIt) {
  FolderMaker maker;
  maker.config["rope_theta"] = 500.0;
  maker.config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  const Metadata old = HfFolder(maker.write()).metadata();
  maker.config.erase("rope_theta");
  maker.config.erase("rope_scaling");
  maker.config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 500.0}};
  EXPECT_EQ(HfFolder(maker.write()).metadata().all(), old.all());
  EXPECT_EQ(old.real("llama.rope.freq_base"), 500);
  EXPECT_EQ(old.text("llama.rope.scaling.type"), "linear");
}

TEST(HfFolder, SaysWhichLayersHaveAWindow) {
  FolderMaker maker;
  maker.config["num_hidden_layers"] = 4;
  maker.config["sliding_window"] = 16;
  const auto pattern = [&](const char* type, const char* arch) {
    maker.config["model_type"] = type;
    const Metadata metadata = HfFolder(maker.write()).metadata();
    const MetadataValue* value = metadata.find(fmt::format("{}.attention.sliding_window_pattern", arch));
    return value ? *value : MetadataValue(false);
  };
  EXPECT_EQ(pattern("mistral", "llama"), MetadataValue(std::vector<bool>(4, true)));
  EXPECT_EQ(pattern("gemma2", "gemma2"), MetadataValue(uint64_t(2)));
  EXPECT_EQ(pattern("qwen2", "qwen2"), MetadataValue(false));
  maker.config["use_sliding_window"] = true;
  maker.config["max_window_layers"] = 3;
  EXPECT_EQ(pattern("qwen2", "qwen2"), MetadataValue(std::vector<bool>{false, false, false, true}));
  maker.config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(pattern("qwen3", "qwen3"), MetadataValue(std::vector<bool>{false, true, false, false}));
}

TEST(HfFolder, RefusesWhatItDoesNotKnow) {
  FolderMaker maker;
  maker.config["model_type"] = "rwkv";
  EXPECT_THAT(maker.error(),
              HasSubstr("models of type \"rwkv\" are not supported; known are llama, mistral"));
  maker.config["model_type"] = "llama";
  maker.config["hidden_act"] = "relu";
  EXPECT_THAT(maker.error(), HasSubstr("\"hidden_act\" is \"relu\"; for llama only silu"));
  maker.config.erase("hidden_act");
  maker.config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_THAT(maker.error(), HasSubstr("scaled by \"dynamic\" are not supported"));
  maker.config.erase("rope_scaling");
  maker.config["quantization_config"] = {{"quant_method", "aqlm"}};
  EXPECT_THAT(maker.error(), HasSubstr("quantized by \"aqlm\""));
  maker.config.erase("quantization_config");
  maker.add("model.layers.0.self_attn.q_proj.lora_A.weight", {1}, {1});
  EXPECT_THAT(maker.error(), HasSubstr("q_proj.lora_A.weight\" of shape [1] is not known"));
}

TEST(HfFolder, RefusesHostileNumbers) {
  for (const char* key : {"num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("4"), Json(uint64_t(1) << 60)}) {
      FolderMaker maker;
      maker.config[key] = value;
      EXPECT_THAT(maker.error(), HasSubstr(fmt::format("\"{}\"", key))) << value;
    }
  }
}

TEST(HfFolder, NamesWhatIsMissing) {
  FolderMaker untied;
  untied.config["tie_word_embeddings"] = false;
  EXPECT_THAT(untied.error(), HasSubstr("has no tensor \"lm_head.weight\""));
  MoeMaker expert("mixtral");
  expert.add("model.layers.0.block_sparse_moe.experts.0.w1.weight", {2, 1}, {1, 2});
  EXPECT_THAT(expert.error(), HasSubstr("blk.0.ffn_gate_exps.weight is missing expert 1"));
  FolderMaker layer;
  layer.add("model.layers.7.input_layernorm.weight", {1}, {1});
  EXPECT_THAT(layer.error(), HasSubstr("is of none of 1 layers"));
  FolderMaker fp8;
  fp8.add("model.layers.0.mlp.up_proj.weight", "F8_E4M3", {1, 1}, "\x38");
  EXPECT_THAT(fp8.error(), HasSubstr("is FP8 and has no scale beside it"));
}

TEST(HfFolder, RecommendsWhatGenerationConfigSays) {
  FolderMaker maker;
  maker.config["eos_token_id"] = 1;
  maker.folder().write("generation_config.json",
                       R"({"temperature": 0.6, "top_k": 20, "eos_token_id": [5, 6]})");
  const Metadata metadata = HfFolder(maker.write()).metadata();
  EXPECT_EQ(metadata.real("general.sampling.temp"), 0.6);
  EXPECT_EQ(metadata.number("general.sampling.top_k"), 20u);
  EXPECT_EQ(metadata.number("tokenizer.ggml.eos_token_id"), 5u);
  EXPECT_THAT(metadata.integers("quire.eos_token_ids"), ElementsAre(5, 6));
}

TEST(HfFolder, OpensEveryGoldenAndItsGgufIsTheSame) {
  const TestFolder folder;
  size_t models = 0;
  for (const auto& golden : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/goldens")) {
    if (!std::filesystem::exists(golden.path() / "config.json")) continue;
    ++models;
    const auto source = open_model_file(golden.path().string());
    write_gguf(folder.file("model.gguf"), *source);
    const auto copy = open_model_file(folder.file("model.gguf"));
    ASSERT_EQ(copy->tensors().size(), source->tensors().size()) << golden.path();
    for (const TensorEntry& tensor : source->tensors()) {
      const TensorEntry* same = copy->find(tensor.name);
      ASSERT_TRUE(same && same->shape == tensor.shape && same->dtype == tensor.dtype)
          << golden.path() << tensor.name;
      const TensorData a = source->load(tensor), b = copy->load(*same);
      ASSERT_TRUE(std::ranges::equal(a.bytes, b.bytes)) << golden.path() << tensor.name;
    }
  }
  EXPECT_GE(models, 20u);
}

TEST(HfFolder, LayersThatPredictFurtherTokensFollowTheOthers) {
  FolderMaker glm;
  glm.config.update({{"model_type", "glm4_moe"}, {"num_nextn_predict_layers", 1}, {"head_dim", 4}});
  glm.add("model.embed_tokens.weight", {2, 4}, count_from(0, 8));
  EXPECT_EQ(HfFolder(glm.write()).metadata().number("glm4moe.block_count"), 1u);  // announced, and not there
  glm.add("model.layers.1.eh_proj.weight", {4, 8}, count_from(0, 32))
      .add("model.layers.1.enorm.weight", {4}, count_from(0, 4))
      .add("model.layers.1.shared_head.norm.weight", {4}, count_from(5, 4))
      .add("model.layers.1.shared_head.head.weight", {2, 4}, count_from(0, 8))
      .add("model.layers.1.embed_tokens.weight", {2, 4}, count_from(0, 8))
      .add("model.layers.1.input_layernorm.weight", {4}, count_from(0, 4));
  const HfFolder folder(glm.write());
  EXPECT_EQ(folder.metadata().number("glm4moe.block_count"), 2u);
  EXPECT_EQ(folder.metadata().number("glm4moe.nextn_predict_layers"), 1u);
  EXPECT_THAT(values_of(folder, "blk.1.nextn.shared_head_norm.weight"), ElementsAre(5, 6, 7, 8));
  EXPECT_NE(folder.find("blk.1.nextn.eh_proj.weight"), nullptr);
  EXPECT_NE(folder.find("blk.1.attn_norm.weight"), nullptr);
  EXPECT_EQ(folder.tensors().size(), 5u);  // embedding and head are the model's
}

TEST(HfFolder, LayersThatPredictMayStandApart) {
  FolderMaker qwen;
  qwen.config.update({{"model_type", "qwen3_5_text"},
                      {"mtp_num_hidden_layers", 1},
                      {"head_dim", 4},
                      {"partial_rotary_factor", 1.0},
                      {"linear_num_key_heads", 1},
                      {"linear_num_value_heads", 1},
                      {"linear_key_head_dim", 4},
                      {"linear_value_head_dim", 4}});
  qwen.add("model.embed_tokens.weight", {2, 4}, count_from(0, 8))
      .add("mtp.fc.weight", {4, 8}, count_from(0, 32))
      .add("mtp.pre_fc_norm_embedding.weight", {4}, count_from(0, 4))
      .add("mtp.pre_fc_norm_hidden.weight", {4}, count_from(0, 4))
      .add("mtp.norm.weight", {4}, count_from(5, 4))
      .add("mtp.layers.0.self_attn.o_proj.weight", {4, 4}, count_from(0, 16));
  const HfFolder folder(qwen.write());
  EXPECT_EQ(folder.metadata().number("qwen35.nextn_predict_layers"), 1u);
  EXPECT_THAT(values_of(folder, "blk.1.nextn.shared_head_norm.weight"), ElementsAre(6, 7, 8, 9));  // plus one
  for (const char* name : {"nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_output"})
    EXPECT_NE(folder.find("blk.1." + std::string(name) + ".weight"), nullptr) << name;
  qwen.config.erase("mtp_num_hidden_layers");
  EXPECT_EQ(HfFolder(qwen.write()).tensors().size(), 1u);  // nobody speaks of them
}

}  // namespace
}  // namespace quire
