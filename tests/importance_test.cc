// What products read, summed up over a text: beside a plain computation, and beside what must be the same.
#include <filesystem>

#include <unistd.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "engine/importance_meter.h"
#include "layers_case.h"
#include "model/convert.h"
#include "model/gguf.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

Importance measured(const std::shared_ptr<const MadeFile>& file, uint32_t chunk = 64) {
  BareModel model(file, file->spec(), exact_kernels(), 2);
  return measure_importance(model.engine_model(), some_tokens(),
                            {.part_tokens = 64, .prefill_chunk = chunk, .kv_formats = KvFormat::f32});
}

const Importance::Entry& entry(const Importance& importance, const std::string& tensor) {
  const auto found = importance.entries().find(tensor);
  if (found == importance.entries().end()) throw Error("nothing is known of {}", tensor);
  return found->second;
}

void expect_same(const std::vector<float>& seen, const std::vector<float>& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t i = 0; i < seen.size(); ++i)
    EXPECT_NEAR(seen[i], wanted[i], 1e-4 * std::max(1.0f, wanted[i])) << i;
}

Metadata some_experts(uint64_t count, uint64_t used) {
  Metadata metadata = small_llama();
  metadata.set("llama.expert_count", count);
  metadata.set("llama.expert_used_count", used);
  metadata.set("llama.expert_feed_forward_length", uint64_t(48));
  return metadata;
}

TEST(ImportanceMeter, SumsTheSquaresOfWhatProductsRead) {
  const auto file = make(small_llama());
  const Importance importance = measured(file);
  const std::vector<double> embedding = file->values("token_embd.weight");
  const std::vector<double> norm = file->values("blk.0.attn_norm.weight");
  std::vector<float> plain(32);
  for (const TokenId token : some_tokens()) {
    double squares = 0;
    for (size_t i = 0; i < 32; ++i) squares += embedding[token * 32 + i] * embedding[token * 32 + i];
    const double rms = std::sqrt(squares / 32 + file->spec().output_norm.epsilon);
    for (size_t i = 0; i < 32; ++i) plain[i] += float(std::pow(embedding[token * 32 + i] / rms * norm[i], 2));
  }
  for (const char* tensor : {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"}) {
    expect_same(entry(importance, tensor).squares, plain);
    EXPECT_EQ(entry(importance, tensor).tokens, std::vector<float>{float(some_tokens().size())});
  }
  EXPECT_EQ(importance.entries().size(), 4u * 7);
}

TEST(ImportanceMeter, DoesNotDependOnChunks) {
  const auto file = make(some_experts(5, 2));
  const Importance whole = measured(file), chunks = measured(file, 7);
  ASSERT_EQ(whole.entries().size(), chunks.entries().size());
  for (const auto& [name, one] : whole.entries()) {
    expect_same(entry(chunks, name).squares, one.squares);
    EXPECT_EQ(entry(chunks, name).tokens, one.tokens);
  }
}

TEST(ImportanceMeter, GivesAnOnlyExpertWhatADenseMlpReads) {
  Metadata metadata = some_experts(1, 1);
  metadata.set("llama.leading_dense_block_count", uint64_t(2));
  const auto mixed = make(metadata), dense = make(small_llama());
  for (const char* layer : {"blk.2.", "blk.3."}) {
    for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
      mixed->copy(std::string(layer) + name + "_exps.weight", "blk.0." + std::string(name) + ".weight");
      dense->copy(std::string(layer) + name + ".weight", "blk.0." + std::string(name) + ".weight");
    }
  }
  const Importance of_expert = measured(mixed), of_mlp = measured(dense);
  for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
    const std::string tensor = "blk.3." + std::string(name);
    expect_same(entry(of_expert, tensor + "_exps.weight").squares, entry(of_mlp, tensor + ".weight").squares);
  }
}

TEST(ImportanceMeter, CountsATokenForEachOfItsExperts) {
  const Importance importance = measured(make(some_experts(5, 2)));
  const Importance::Entry& router = entry(importance, "blk.1.ffn_gate_inp.weight");
  for (const char* tensor : {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"}) {
    const Importance::Entry& experts = entry(importance, tensor);
    ASSERT_EQ(experts.tokens.size(), 5u);
    float tokens = 0;
    std::vector<float> squares(32);
    for (size_t e = 0; e < 5; ++e) {
      tokens += experts.tokens[e];
      for (size_t c = 0; c < 32; ++c) squares[c] += experts.squares[e * 32 + c] / 2;
    }
    EXPECT_EQ(tokens, 2.0f * float(some_tokens().size()));
    expect_same(squares, router.squares);
  }
  EXPECT_EQ(entry(importance, "blk.1.ffn_down_exps.weight").squares.size(), 5u * 48);
  EXPECT_EQ(entry(importance, "blk.1.ffn_down_exps.weight").tokens,
            entry(importance, "blk.1.ffn_up_exps.weight").tokens);
}

// What is lost of a tensor, where each column's error weighs as much as it matters.
double loss(const MadeFile& before, const std::string& path, const std::string& tensor,
            const Importance& importance) {
  const GgufFile after(path);
  const TensorEntry& entry = *after.find(tensor);
  const std::vector<float> weights = importance.of(entry, 0);
  const std::vector<double> values = before.values(tensor);
  const TensorData data = after.load(entry);
  std::vector<float> row(entry.shape.back());
  double sum = 0;
  for (size_t r = 0; r < entry.shape[0]; ++r) {
    dequantize_row(entry.dtype, data.bytes.data() + r * row_bytes(entry.dtype, row.size()), row);
    for (size_t c = 0; c < row.size(); ++c)
      sum += double(weights[c]) * std::pow(double(row[c]) - values[r * row.size() + c], 2);
  }
  return sum;
}

TEST(ImportanceMeter, TellsWhatToKeepWhenAModelIsWrittenInFewBits) {
  Metadata metadata = small_llama();
  metadata.set("llama.feed_forward_length", uint64_t(256));
  const auto file = make(metadata);
  Importance importance("made");
  const std::string tensor = "blk.2.ffn_down.weight";
  std::vector<float> squares(256, 1.0f);
  for (size_t i = 0; i < 256; i += 5) squares[i] = 40.0f;
  importance.set(tensor, {squares, {1}});
  ThreadPool pool(2);
  const std::string path = testing::TempDir() + "/quire_importance_" + std::to_string(::getpid()) + ".gguf";
  const auto write = [&](const char* type, const Importance* known) {
    return convert_to_gguf(*file, TypeMix(type), path,
                           {.metadata = file->metadata(), .layers = 4, .importance = known, .progress = {}},
                           pool);
  };
  for (const char* type : {"q4_0", "q4_1", "q5_0", "q2_k", "q3_k_s", "q4_k_s", "q5_k_s", "q6_k", "iq4_nl",
                           "iq4_xs", "iq3_s", "iq3_xxs"}) {
    write(type, nullptr);
    const double without = loss(*file, path, tensor, importance);
    const Converted with = write(type, &importance);
    EXPECT_GT(with.unknown, 0u);
    EXPECT_LT(loss(*file, path, tensor, importance), 0.97 * without) << type;
  }
  for (const char* type : {"iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"}) {
    EXPECT_THROW(write(type, nullptr), Error) << type;
    write(type, &importance);
    EXPECT_EQ(GgufFile(path).find(tensor)->dtype, *dtype_from_name(type));
  }
  Importance of_others("others");
  of_others.set("blk.0.attn_qkv.weight", {{1, 2}, {1}});
  EXPECT_THROW(write("q4_0", &of_others), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace quire
