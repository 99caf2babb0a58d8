#include "backend/cpu/kernel_choice.h"
#include "cli_fixture.h"
#include "made_model.h"

namespace quire {
namespace {

class Inspect : public Cli {};

const Json& row_named(const Json& rows, const std::string& beginning) {
  for (const Json& row : rows) {
    if (row["name"].get<std::string>().starts_with(beginning)) return row;
  }
  throw std::runtime_error("no row begins with " + beginning);
}

TEST_F(Inspect, PlansAShapeWithoutAFile) {
  const Json plan = quire_json("inspect --shape llama-13b --kv f16 --ctx 4096 --memory 24GiB --json");
  EXPECT_EQ(plan["layers"], 40);
  const Json f16 = row_named(plan["kv_formats"], "f16");
  EXPECT_EQ(f16["bytes_per_token"], 40 * 40 * 128 * 2 * 2);  // layers, heads, values, key and value, bytes
  EXPECT_EQ(f16["bytes_at_context"], 819200ull * 4096);
  EXPECT_TRUE(f16["chosen"]);
  const double left = double(24ull << 30) - plan["weight_bytes"].get<double>();
  EXPECT_DOUBLE_EQ(f16["sequences"], left / (819200.0 * 4096));
  EXPECT_EQ(f16["tokens"], uint64_t(left / (819200.0 * 32)) * 32);  // whole pages

  const std::string text = quire("inspect --shape llama-13b --ctx 4096").out;
  EXPECT_TRUE(contains(text, "819200          3.125 GiB")) << text;
  EXPECT_EQ(quire("inspect --shape llama-13b house").code, 2);
  EXPECT_EQ(quire("inspect --shape gigantic").code, 2);
}

TEST_F(Inspect, CodesTakeTheirBytesAndTheirScales) {
  const Json plan = quire_json("inspect --shape llama-8b --ctx 8192 --memory 64G --json");
  const uint64_t rows = 32 * 8;  // of keys, and as many of values
  const Json& formats = plan["kv_formats"];
  EXPECT_EQ(row_named(formats, "int8")["bytes_per_token"], rows * 2 * (128 + 2));
  EXPECT_EQ(row_named(formats, "fp8")["bytes_per_token"], rows * 2 * (128 + 2));
  EXPECT_EQ(row_named(formats, "q4")["bytes_per_token"], rows * 2 * (64 + 4 * 4));
  EXPECT_EQ(row_named(formats, "k=int8,v=q4")["bytes_per_token"], rows * (130 + 80));
}

TEST_F(Inspect, SaysWhatSharedHeadsAndWindowsSave) {
  const Json plan = quire_json("inspect --shape llama-8b --ctx 32768 --memory 64G --json");
  const Json& kinds = plan["attention_kinds"];
  const uint64_t head = 32 * 128 * 2 * 2;  // one KV head of all layers
  EXPECT_EQ(row_named(kinds, "full heads")["bytes_per_token"], 32 * head);
  EXPECT_EQ(row_named(kinds, "grouped")["bytes_per_token"], 8 * head);
  EXPECT_TRUE(row_named(kinds, "grouped")["chosen"]);
  EXPECT_EQ(row_named(kinds, "one KV head")["bytes_per_token"], head);
  // What a window and one chunk of 512 span, and a page where it begins.
  EXPECT_EQ(row_named(kinds, "window of 4096")["bytes_at_context"], (4096 + 512 + 32) * 8 * head);
}

TEST_F(Inspect, SaysThatOnlyTheTextOfAModelIsUsedAndWhatStandsBesideExperts) {
  const std::string goldens = QUIRE_SOURCE_DIR "/tests/goldens/";
  const std::string text = quire("inspect " + goldens + "qwen3_vl").out;
  EXPECT_TRUE(contains(text, "text only     of qwen3_vl, which also sees images")) << text;
  EXPECT_EQ(quire_json("inspect " + goldens + "qwen3_vl --json")["text_of"], "qwen3_vl");
  EXPECT_TRUE(quire_json("inspect " + goldens + "qwen3 --json")["text_of"].is_null());
  const std::string mixed = quire("inspect --shape glm-4.5-air").out;
  EXPECT_TRUE(contains(mixed, "beside them   1408 for every token, in 45 of 46 layers")) << mixed;
}

TEST_F(Inspect, AModelHasTheSameTableByFormat) {
  const Json plan = quire_json("inspect house --kv bf16 --json");
  EXPECT_EQ(plan["kv_formats"].size(), 6);
  EXPECT_EQ(row_named(plan["kv_formats"], "bf16")["bytes_per_token"], plan["kv"]["bytes_per_token"]);
  EXPECT_EQ(plan.count("attention_kinds"), 0);
  EXPECT_TRUE(contains(quire("inspect house").out, "KV format"));
}

TEST_F(Inspect, SaysWhereLayersDiffer) {
  Metadata metadata = small_llama();
  metadata.set("llama.attention.head_count_kv", std::vector<uint64_t>{4, 2, 1, 2});
  metadata.set("llama.expert_count", uint64_t(5));
  metadata.set("llama.expert_used_count", uint64_t(2));
  metadata.set("llama.leading_dense_block_count", uint64_t(1));
  const std::string file = path("layers.gguf");
  MadeFile(metadata).write(file);
  const std::string text = quire("inspect --tensors " + file).out;
  EXPECT_TRUE(contains(text, "4 query heads and 1 to 4 KV heads of 8")) << text;
  EXPECT_TRUE(contains(text, "2 of 5 per token, width 48, in 3 of 4 layers")) << text;
  EXPECT_TRUE(contains(text, "feed-forward  48, in 1 of 4 layers")) << text;
  EXPECT_TRUE(contains(text, "router")) << text;
  const Json json = quire_json("inspect --json " + file);
  EXPECT_EQ(json["heads"], 4);
  EXPECT_EQ(json["kv_heads"], Json({4, 2, 1, 2}));
  EXPECT_EQ(json["kv"]["bytes_per_token"], (4 + 2 + 1 + 2) * (8 + 8) * 2);
}

TEST_F(Inspect, AScaleBesideAMatrixSaysWhoseItIs) {
  const std::string folder = QUIRE_SOURCE_DIR "/tests/goldens/llama_modelopt_nvfp4";
  size_t scales = 0;
  const Json plan = quire_json("inspect --tensors --json " + folder);
  for (const Json& tensor : plan["tensors"]) {
    EXPECT_NE(tensor["role"], "") << tensor["name"];
    scales += tensor["role"].get<std::string>().starts_with("scale of ") ? 1 : 0;
  }
  EXPECT_GT(scales, 0u);
}

TEST_F(Inspect, AMachineTwiceAsFastTakesHalfTheTime) {
  const Json told = quire_json(
      "inspect house --what-if bandwidth=2x,flops=2x --prompt 64,1000 --depth 10,2000 --seconds 0.05 "
      "--memory 1G --json");
  for (const char* phase : {"ttft", "itl"}) {
    ASSERT_EQ(told["base"][phase].size(), 2);
    for (size_t i = 0; i < 2; ++i) {
      const double base = told["base"][phase][i]["ms"];
      EXPECT_GT(base, 0);
      EXPECT_NEAR(told["what_if"][phase][i]["ms"], base / 2, base * 1e-9);
    }
    EXPECT_GT(told["base"][phase][1]["ms"], told["base"][phase][0]["ms"]);
  }
  EXPECT_EQ(told["base"]["sequences"], told["what_if"]["sequences"]);
}

TEST_F(Inspect, WhatIfCountsTheRoomOfAnotherFormatContextAndBatch) {
  const Json told = quire_json(
      "inspect house --what-if kv=k=int8,v=q4,0:f16,ctx=1024,batch=4 --memory 1G --prompt 32 --seconds 0.05 "
      "--json");
  const Json plan = quire_json("inspect house --kv k=int8,v=q4,0:f16 --ctx 1024 --memory 1G --json");
  EXPECT_EQ(told["what_if"]["sequences"], row_named(plan["kv_formats"], "k=int8,v=q4,0:f16")["sequences"]);
  EXPECT_EQ(told["what_if"]["batch"], 4);
  EXPECT_EQ(told["base"]["kv"], std::string(name(kernels_named("auto").pages)));
  EXPECT_TRUE(
      contains(quire("inspect house --what-if kv=q4 --prompt 8 --seconds 0.05").out, "TTFT, prompt of 8"));
}

TEST_F(Inspect, WhatIfSaysWhatItDoesNotUnderstand) {
  for (const char* changes :
       {"speed=2x", "bandwidth=fast", "bandwidth=-1x", "kv=q3", "ctx=1", "batch=0", "ctx"}) {
    const Outcome outcome = quire(std::string("inspect house --what-if ") + changes);
    EXPECT_EQ(outcome.code, 2) << changes;
    EXPECT_FALSE(outcome.err.empty());
  }
  EXPECT_EQ(quire("inspect house --what-if ctx=1024 --prompt 2000").code, 2);
  EXPECT_EQ(quire("inspect --shape tiny --what-if ctx=1024").code, 2);
}

}  // namespace
}  // namespace quire
