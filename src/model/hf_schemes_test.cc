// Folders whose matrices are packed: what they become, and what is refused. tests/goldens has a whole model of each scheme.
#include "model/hf_schemes.h"

#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/hf_folder.h"
#include "model/test_folder.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kUp[] = "model.layers.0.mlp.up_proj";

// A llama of one layer, of which only the up projection is there.
class PackedFolder {
 public:
  explicit PackedFolder(Json quantization, const char* key = "quantization_config") {
    config_ = {
        {"model_type", "llama"},         {"hidden_size", 64},           {"intermediate_size", 8},
        {"num_hidden_layers", 1},        {"num_attention_heads", 1},    {"vocab_size", 2},
        {"max_position_embeddings", 64}, {"tie_word_embeddings", true}, {key, std::move(quantization)}};
  }

  template <class T>
  PackedFolder& add(const std::string& suffix, const char* type, std::vector<uint64_t> shape,
                    const std::vector<T>& values) {
    tensors_[kUp + suffix] = {{type, std::move(shape)},
                              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}};
    return *this;
  }
  PackedFolder& remove(const std::string& suffix) {
    tensors_.erase(kUp + suffix);
    return *this;
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
    folder_->write("model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
    folder_->write("config.json", config_.dump());
    return folder_->path();
  }
  std::string error() {
    return error_of([&] { HfFolder folder(write()); });
  }

 private:
  std::unique_ptr<TestFolder> folder_ = std::make_unique<TestFolder>();
  Json config_;
  std::map<std::string, std::pair<std::pair<const char*, std::vector<uint64_t>>, std::string>> tensors_;
};

struct Made {
  DType dtype;
  std::vector<float> values;
  std::vector<std::string> losses;
};
Made made(PackedFolder& folder) {
  const HfFolder file(folder.write());
  const TensorEntry& entry = *file.find("blk.0.ffn_up.weight");
  EXPECT_THAT(entry.shape, ElementsAre(8, 64));
  Made result{entry.dtype, std::vector<float>(8 * 64), {}};
  const TensorData data = file.load(entry);
  EXPECT_EQ(data.bytes.size(), entry.bytes);
  dequantize_row(entry.dtype, data.bytes.data(), result.values);
  result.losses = file.losses();
  return result;
}

constexpr uint16_t kHalf = 0x3800, kOne = 0x3c00;

PackedFolder gptq(const Json& more = Json::object()) {
  Json config = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  config.update(more);
  PackedFolder folder(config);
  folder.add<uint32_t>(".qweight", "I32", {8, 8}, std::vector<uint32_t>(64, 0x76543210));
  folder.add<uint32_t>(".qzeros", "I32", {2, 1},
                       {0x77777777, 0xf7777777});  // 8, stored less one; the last is 0
  folder.add<uint16_t>(".scales", "F16", {2, 8}, std::vector<uint16_t>(16, kHalf));
  return folder;
}

TEST(HfSchemes, ZerosOfGptqAreStoredLessOne) {
  PackedFolder folder = gptq();
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::q5_0);  // 15 - 0 has no place in four bits
  for (int i = 0; i < 32; ++i) EXPECT_EQ(up.values[size_t(i)], 0.5f * float(i % 8 - 8)) << i;
  EXPECT_EQ(up.values[7 * 64 + 32 + 5], 0.5f * 5);
  EXPECT_TRUE(up.losses.empty());
  PackedFolder newer = gptq({{"checkpoint_format", "gptq_v2"}});
  EXPECT_EQ(made(newer).values[0], 0.5f * -7);
}

TEST(HfSchemes, ZerosInTheMiddleMakeFourBits) {
  PackedFolder folder = gptq();
  folder.add<uint32_t>(".qzeros", "I32", {2, 1}, {0x77777777, 0x77777777});
  EXPECT_EQ(made(folder).dtype, DType::q4_0);
}

TEST(HfSchemes, ColumnsInTheOrderOfTheirGroupsAreNoBlocks) {
  PackedFolder folder = gptq();
  std::vector<int32_t> order(64);
  for (size_t i = 0; i < 64; ++i) order[i] = int32_t(i % 2);
  folder.add<int32_t>(".g_idx", "I32", {64}, order);
  std::vector<uint16_t> scales(16, kHalf);
  std::fill_n(scales.begin() + 8, 8, kOne);
  folder.add<uint16_t>(".scales", "F16", {2, 8}, scales);
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::f16);
  EXPECT_EQ(up.values[2], 0.5f * (2 - 8));
  EXPECT_EQ(up.values[3], 1.0f * (3 - 8));
  order[9] = 2;
  folder.add<int32_t>(".g_idx", "I32", {64}, order);
  EXPECT_THAT(folder.error(), HasSubstr("g_idx\" says group 2 of column 9, and there are 2"));
  order[9] = -1;
  folder.add<int32_t>(".g_idx", "I32", {64}, order);
  EXPECT_THAT(folder.error(), HasSubstr("says group -1 of column 9"));
}

// Eight rows of 64 values with four scales each: 0x38 is 1 in E4M3.
PackedFolder float4(uint8_t last_scale) {
  PackedFolder folder({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}});
  std::vector<uint8_t> codes(8 * 32), scales(8 * 4, 0x38);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i * 7);
  scales[1] = 0x01;  // 2^-9
  scales.back() = last_scale;
  folder.add<uint8_t>(".weight", "U8", {8, 32}, codes);
  folder.add<uint8_t>(".weight_scale", "F8_E4M3", {8, 4}, scales);
  folder.add<float>(".weight_scale_2", "F32", {}, {0.25f});
  return folder;
}

TEST(HfSchemes, Float4WithShortScalesStaysAsItIsAndItsCommonScaleStandsBesideIt) {
  PackedFolder folder = float4(0x7e);
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::nvfp4);
  const float floats[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (size_t i = 0; i < up.values.size(); ++i) {
    const uint8_t byte = uint8_t(i / 2 * 7);
    const float scale = i / 16 == 1 ? 0x1p-9f : i / 16 == 31 ? 448.0f : 1.0f;
    ASSERT_EQ(up.values[i], scale * floats[i % 2 == 0 ? byte & 15 : byte >> 4]) << i;
  }
  EXPECT_TRUE(up.losses.empty());
  const HfFolder file(folder.write());
  EXPECT_EQ(file.scales_of(*file.find("blk.0.ffn_up.weight")), (std::vector<float>{0.25f}));
}

TEST(HfSchemes, Float4WhoseScalesHaveASignBecomesF16) {
  PackedFolder folder = float4(0xb8);  // -1
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::f16);
  EXPECT_EQ(up.values[1], 0.25f * 0.0f);
  EXPECT_EQ(up.values[511], -0.25f * -6.0f);
}

TEST(HfSchemes, TellsWhatRoundingCost) {
  PackedFolder folder = gptq({{"bits", 8}});
  folder.add<uint32_t>(".qweight", "I32", {16, 8}, std::vector<uint32_t>(128, 0xff107f03));
  folder.add<uint32_t>(".qzeros", "I32", {2, 2}, {0, 0, 0, 0});
  folder.add<uint16_t>(".scales", "F16", {2, 8}, std::vector<uint16_t>(16, 0x3555));
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::f16);
  ASSERT_EQ(up.losses.size(), 1u);
  EXPECT_THAT(up.losses[0],
              HasSubstr("1 tensors quantized by gptq are kept as f16, which moves their values by 0.0"));
}

TEST(HfSchemes, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(gptq().remove(".scales").error(), HasSubstr("up_proj.scales\" is missing, which gptq needs"));
  EXPECT_THAT(gptq().add<uint32_t>(".qzeros", "I32", {1, 2}, {0, 0}).error(),
              HasSubstr("qzeros\" of shape [1, 2] is not [2, 1]"));
  EXPECT_THAT(gptq({{"group_size", 16}}).error(), HasSubstr("is not of 4 groups of 16 columns"));
  EXPECT_THAT(gptq({{"group_size", 0}}).error(), HasSubstr("\"group_size\" is 0"));
  EXPECT_THAT(gptq({{"group_size", uint64_t(1) << 60}}).error(), HasSubstr("\"group_size\" is"));
  EXPECT_THAT(gptq({{"bits", 3}}).error(), HasSubstr("\"bits\" is 3; known are 2, 4, 8"));
  EXPECT_THAT(gptq({{"checkpoint_format", "marlin"}}).error(),
              HasSubstr("\"marlin\"; known are gptq and gptq_v2"));
  EXPECT_THAT(gptq().add<uint16_t>(".scales", "I16", {2, 8}, std::vector<uint16_t>(16)).error(),
              HasSubstr("is of type I16"));
  EXPECT_THAT(gptq().add<float>(".weight", "F32", {8, 64}, std::vector<float>(512)).error(),
              HasSubstr("has two packed weights"));
  EXPECT_THAT(PackedFolder(Json{{"quant_method", "hqq"}}).error(),
              HasSubstr("quantized by \"hqq\", which is not supported; known are fp8, mxfp4, "
                        "compressed-tensors, modelopt, awq, gptq, bitsandbytes"));
}

PackedFolder mlx(const Json& more = Json::object()) {
  Json config = {{"bits", 4}, {"group_size", 32}};
  config.update(more);
  PackedFolder folder(config, "quantization");
  folder.add<uint32_t>(".weight", "U32", {8, 8}, std::vector<uint32_t>(64, 0xfedcba98));
  folder.add<uint16_t>(".scales", "F16", {8, 2}, std::vector<uint16_t>(16, kHalf));
  folder.add<uint16_t>(".biases", "F16", {8, 2}, std::vector<uint16_t>(16, 0xc000));
  return folder;
}

TEST(HfSchemes, OfMlxHaveOffsets) {
  PackedFolder folder = mlx();
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::q4_1);
  for (size_t i = 0; i < 512; ++i) EXPECT_EQ(up.values[i], 0.5f * float(i % 8 + 8) - 2.0f) << i;
  PackedFolder own = mlx({{"group_size", 64}, {kUp, {{"bits", 4}, {"group_size", 32}}}});
  EXPECT_EQ(made(own).values, up.values);
  EXPECT_THAT(mlx({{"group_size", 128}}).error(), HasSubstr("is not of 256 columns of 2, 4 or 8 bits"));
  EXPECT_THAT(mlx({{"mode", "mxfp4"}}).error(), HasSubstr("\"mode\" is \"mxfp4\"; known is affine"));
  EXPECT_THAT(mlx().remove(".biases").error(), HasSubstr("biases\" is missing"));
}

TEST(HfSchemes, Mxfp4OfCompressedTensorsBecomesItsBlocks) {
  PackedFolder folder(Json{{"quant_method", "compressed-tensors"}, {"format", "mxfp4-pack-quantized"}});
  std::vector<uint8_t> codes(8 * 32), exponents(16);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i * 37);
  for (size_t i = 0; i < 16; ++i) exponents[i] = uint8_t(i == 0 ? 0 : i == 1 ? 1 : 110 + i);
  folder.add(".weight_packed", "U8", {8, 32}, codes).add(".weight_scale", "U8", {8, 2}, exponents);
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::mxfp4);
  constexpr float kFloats[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (size_t i = 0; i < 512; ++i) {
    const float scale = std::ldexp(1.0f, int(exponents[i / 32]) - 127);
    EXPECT_EQ(up.values[i], kFloats[codes[i / 2] >> (i % 2 * 4) & 15] * scale) << i;
  }
}

TEST(HfSchemes, RefusesStatesOfBitsandbytesThatDoNotFit) {
  const auto folder = [](const Json& state) {
    PackedFolder made(Json{{"quant_method", "bitsandbytes"}});
    const std::string text = state.dump();
    made.add(".weight", "U8", {256, 1}, std::vector<uint8_t>(256));
    made.add(".weight.absmax", "F32", {8}, std::vector<float>(8, 1.0f));
    made.add(".weight.quant_map", "F32", {16}, std::vector<float>(16, 0.25f));
    made.add(".weight.quant_state.bitsandbytes__nf4", "U8", {text.size()},
             std::vector<char>(text.begin(), text.end()));
    return made;
  };
  const Json good = {{"blocksize", 64}, {"shape", {8, 64}}};
  PackedFolder right = folder(good);
  EXPECT_EQ(made(right).values, std::vector<float>(512, 0.25f));
  const auto with = [&](const char* key, const Json& value) {
    Json state = good;
    state[key] = value;
    return folder(state).error();
  };
  EXPECT_THAT(with("blocksize", 48), HasSubstr("\"blocksize\" is 48"));
  EXPECT_THAT(with("blocksize", 0), HasSubstr("\"blocksize\" is 0"));
  EXPECT_THAT(with("shape", {8, 63}), HasSubstr("is not of [8, 63] values"));
  EXPECT_THAT(with("shape", {uint64_t(1) << 40, uint64_t(1) << 40}), HasSubstr("\"shape\" is no matrix's"));
  EXPECT_THAT(with("shape", {8}), HasSubstr("\"shape\" is no matrix's"));
}

// As DeepSeek V4 has its experts beside matrices of FP8.
PackedFolder fp4() {
  PackedFolder folder({{"quant_method", "fp8"}, {"expert_dtype", "fp4"}, {"weight_block_size", {128, 128}}});
  std::vector<uint8_t> codes(8 * 32, 0x52), exponents(8 * 2, 127);  // 1 and 3
  exponents[1] = 129;
  folder.add<uint8_t>(".weight", "I8", {8, 32}, codes);
  folder.add<uint8_t>(".scale", "F8_E8M0", {8, 2}, exponents);
  return folder;
}

TEST(HfSchemes, ExpertsOfFourBitsBesideFp8StayInBlocks) {
  PackedFolder folder = fp4();
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::mxfp4);
  EXPECT_EQ(up.values[0], 1);
  EXPECT_EQ(up.values[1], 3);
  EXPECT_EQ(up.values[32], 4);
  EXPECT_EQ(up.values[33], 12);
  EXPECT_EQ(up.values[64 + 33], 3);
  EXPECT_TRUE(up.losses.empty());
}

TEST(HfSchemes, WhatDoesNotFitBesideFp8IsRefused) {
  PackedFolder shorter = fp4();
  shorter.remove(".scale").add<uint8_t>(".scale", "F8_E8M0", {8, 1}, std::vector<uint8_t>(8, 127));
  EXPECT_THAT(shorter.error(), HasSubstr(".scale\" of shape [8, 1] is not [8, 2]"));
  PackedFolder floats = fp4();
  floats.remove(".scale").add<uint16_t>(".scale", "F16", {8, 2}, std::vector<uint16_t>(16, kOne));
  EXPECT_THAT(floats.error(), HasSubstr("is of type F16"));
  PackedFolder alone = fp4();
  alone.remove(".scale");
  EXPECT_THAT(alone.error(), HasSubstr("of type I8"));
}

TEST(HfSchemes, ExponentsMultiplyFp8AndMustBeNumbers) {
  const auto folder_of = [](uint8_t exponent) {
    PackedFolder folder({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}});
    folder.add<uint8_t>(".weight", "F8_E4M3", {8, 64}, std::vector<uint8_t>(8 * 64, 0x38));  // 1
    folder.add<uint8_t>(".scale", "F8_E8M0", {1, 1}, {exponent});
    return folder;
  };
  PackedFolder folder = folder_of(124);
  const Made up = made(folder);
  EXPECT_EQ(up.dtype, DType::bf16);  // which has the same numbers
  EXPECT_EQ(up.values[100], 0.125f);
  PackedFolder none = folder_of(255);
  const HfFolder file(none.write());
  EXPECT_THAT(error_of([&] { file.load(*file.find("blk.0.ffn_up.weight")); }), HasSubstr("is no number"));
}

}  // namespace
}  // namespace quire
