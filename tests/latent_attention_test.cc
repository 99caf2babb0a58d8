// Layers that keep a latent row for each token: beside a plain computation that expands keys and values for every head, from files old
// and new; what such rows cost; and what is refused. That they compute what Transformers does is shown by goldens, and that nothing else
// shows by the invariance tests.
#include <filesystem>

#include <gmock/gmock.h>
#include <unistd.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "base/json.h"
#include "layers_case.h"
#include "model/gguf_writer.h"
#include "model/hf_config.h"
#include "model/refusal.h"
#include "model/synth.h"

namespace quire {
namespace {

using testing::HasSubstr;
using Row = std::vector<double>;

constexpr uint64_t kHeads = 4, kPlain = 12, kRotated = 8, kValues = 10, kRank = 20;

std::string error_from(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// `query_rank`: 0 for none.
Metadata small_latent(uint64_t query_rank, const std::string& architecture = "deepseek2") {
  Metadata metadata("made");
  metadata.set("general.architecture", architecture);
  const std::pair<const char*, uint64_t> kCounts[] = {
      {"block_count", 3},
      {"context_length", 256},
      {"embedding_length", 32},
      {"feed_forward_length", 48},
      {"attention.head_count", kHeads},
      {"attention.head_count_kv", 1},
      {"vocab_size", 40},
      {"attention.key_length", kRank + kRotated},
      {"attention.value_length", kRank},
      {"attention.key_length_mla", kPlain + kRotated},
      {"attention.value_length_mla", kValues},
      {"attention.kv_lora_rank", kRank},
      {"attention.q_lora_rank", query_rank},
      {"rope.dimension_count", kRotated},
      {"rope.scaling.original_context_length", 16},
  };
  for (const auto& [key, value] : kCounts) metadata.set(architecture + "." + key, value);
  metadata.set(architecture + ".rope.scaling.type", std::string("yarn"));
  metadata.set(architecture + ".rope.scaling.factor", 8.0);
  metadata.set(architecture + ".rope.scaling.yarn_log_multiplier", 0.1);
  metadata.set("llama.vocab_size", uint64_t(40));  // which a MadeFile looks for
  metadata.set("llama.embedding_length", uint64_t(32));
  return metadata;
}

Row product(const std::vector<double>& weights, std::span<const double> in) {
  Row out(weights.size() / in.size());
  for (size_t r = 0; r < out.size(); ++r) {
    for (size_t c = 0; c < in.size(); ++c) out[r] += weights[r * in.size() + c] * in[c];
  }
  return out;
}

void norm(std::span<double> values, const std::vector<double>& weights) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  for (size_t i = 0; i < values.size(); ++i)
    values[i] *= weights[i] / std::sqrt(sum / double(values.size()) + 1e-6);
}

void rotate(const RopeSpec& rope, size_t position, double* pairs) {
  for (size_t i = 0; i < kRotated / 2; ++i) {
    const double angle = double(position) * double(rope.inverse_frequencies[i]);
    const double x = pairs[2 * i], y = pairs[2 * i + 1];
    pairs[2 * i] = x * std::cos(angle) - y * std::sin(angle);
    pairs[2 * i + 1] = x * std::sin(angle) + y * std::cos(angle);
  }
}

// Every head with keys and values of its own.
PlainRows plain_latent(const MadeFile& file, size_t layer, const PlainRows& in) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const auto values = [&](const char* name) { return file.values(prefix + name); };
  const auto& spec = std::get<LatentSpec>(file.spec().layers[layer].mixer);
  const RopeSpec& rope = file.spec().ropes[0];
  const std::vector<double> key_of = values("attn_k_b.weight"), value_of = values("attn_v_b.weight");
  const size_t head_dim = kPlain + kRotated;
  PlainRows queries, keys, head_values, out;
  for (size_t t = 0; t < in.size(); ++t) {
    Row asked = in[t];
    if (spec.query_rank > 0) {
      asked = product(values("attn_q_a.weight"), asked);
      norm(asked, values("attn_q_a_norm.weight"));
    }
    Row query = product(values(spec.query_rank > 0 ? "attn_q_b.weight" : "attn_q.weight"), asked);
    Row row = product(values("attn_kv_a_mqa.weight"), in[t]);
    norm(std::span(row).first(kRank), values("attn_kv_a_norm.weight"));
    rotate(rope, t, &row[kRank]);
    Row key(kHeads * head_dim), value = product(value_of, std::span(row).first(kRank));
    Row of_heads(kHeads * kValues);
    for (size_t h = 0; h < kHeads; ++h) {
      rotate(rope, t, &query[h * head_dim + kPlain]);
      for (size_t i = 0; i < kPlain; ++i)
        for (size_t r = 0; r < kRank; ++r)
          key[h * head_dim + i] += key_of[(h * kRank + r) * kPlain + i] * row[r];
      for (size_t i = 0; i < kRotated; ++i) key[h * head_dim + kPlain + i] = row[kRank + i];
      for (size_t i = 0; i < kValues; ++i)
        for (size_t r = 0; r < kRank; ++r)
          of_heads[h * kValues + i] += value_of[(h * kValues + i) * kRank + r] * row[r];
    }
    queries.push_back(query);
    keys.push_back(key);
    head_values.push_back(of_heads);
    Row read(kHeads * kValues);
    for (size_t h = 0; h < kHeads; ++h) {
      Row shares;
      double sum = 0;
      for (size_t p = 0; p <= t; ++p) {
        double score = 0;
        for (size_t i = 0; i < head_dim; ++i)
          score += queries[t][h * head_dim + i] * keys[p][h * head_dim + i];
        const double growth = 0.1 * std::log(8.0) + 1;
        shares.push_back(std::exp(score * growth * growth / std::sqrt(double(head_dim))));
        sum += shares.back();
      }
      for (size_t p = 0; p <= t; ++p)
        for (size_t i = 0; i < kValues; ++i)
          read[h * kValues + i] += shares[p] / sum * head_values[p][h * kValues + i];
    }
    out.push_back(product(values("attn_output.weight"), read));
  }
  return out;
}

TEST(LatentAttention, IsThatOfHeadsWithKeysAndValuesOfTheirOwn) {
  for (const uint64_t query_rank : {0u, 14u}) {
    const auto file = make(small_latent(query_rank), {});
    const std::vector<double> plain =
        plain_logits(*file, some_tokens(),
                     [&](size_t layer, const PlainRows& in) { return plain_latent(*file, layer, in); });
    expect_near(logits(file, exact_kernels()), plain, 2e-5);
    const std::vector<float> whole = logits(file, kernels_named("auto"));
    for (const uint32_t chunk : {1u, 7u, 32u})
      EXPECT_EQ(logits(file, kernels_named("auto"), chunk), whole) << chunk;
  }
}

// Keys and values of heads in one tensor, and measures of heads and not of rows.
void write_old(const MadeFile& file, const std::string& path) {
  Metadata metadata = file.metadata();
  metadata.set("deepseek2.attention.head_count_kv", kHeads);
  metadata.set("deepseek2.attention.key_length", kPlain + kRotated);
  metadata.set("deepseek2.attention.value_length", kValues);
  metadata.erase("deepseek2.attention.key_length_mla");
  metadata.erase("deepseek2.attention.value_length_mla");
  std::vector<TensorEntry> entries;
  std::vector<std::vector<float>> both;
  for (const TensorEntry& tensor : file.tensors()) {
    const size_t at = tensor.name.find("attn_k_b");
    if (tensor.name.find("attn_v_b") != std::string::npos) continue;
    entries.push_back(tensor);
    if (at == std::string::npos) continue;
    const std::string prefix = tensor.name.substr(0, at);
    const std::vector<double> keys = file.values(tensor.name),
                              values = file.values(prefix + "attn_v_b.weight");
    std::vector<float>& made = both.emplace_back();
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t i = 0; i < kPlain; ++i)
        for (size_t r = 0; r < kRank; ++r) made.push_back(float(keys[(h * kRank + r) * kPlain + i]));
      for (size_t i = 0; i < kValues * kRank; ++i) made.push_back(float(values[h * kValues * kRank + i]));
    }
    entries.back() = {prefix + "attn_kv_b.weight",
                      DType::f32,
                      {kHeads * (kPlain + kValues), kRank},
                      made.size() * sizeof(float)};
  }
  GgufWriter writer(path, metadata, entries);
  size_t next = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.name.find("attn_kv_b") == std::string::npos) {
      writer.append(file.load(*file.find(entry.name)).bytes);
    } else {
      writer.append(std::as_bytes(std::span(both[next++])));
    }
  }
  writer.finish();
}

TEST(LatentAttention, OldFilesWithBothMatricesInOneGiveTheSameBits) {
  const auto file = make(small_latent(14), {});
  const std::string path = testing::TempDir() + "/quire_latent_" + std::to_string(::getpid()) + ".gguf";
  write_old(*file, path);
  BareModel now(file, file->spec(), exact_kernels(), 2);
  BareModel old(path, exact_kernels(), 2);
  std::filesystem::remove(path);  // it is mapped
  EXPECT_EQ(all_logits(old, some_tokens(), 16), all_logits(now, some_tokens(), 16));
}

TEST(LatentAttention, KeepsOneRowForEachTokenWhateverTheHeads) {
  const auto bytes = [](const char* shape, const KvFormats& formats = KvFormat::f16) {
    const ModelSpec spec = read_model_spec(*synth_head(synth_shape(shape), TypeMix("q4_0")));
    return make_kv_layout(kv_shapes(spec, formats)).bytes_per_token();
  };
  EXPECT_EQ(bytes("deepseek-v3"), 70272u);
  EXPECT_EQ(bytes("kimi-k2"), 70272u);
  EXPECT_EQ(bytes("deepseek-v2-lite"), 27u * 576 * 2);
  EXPECT_EQ(bytes("glm-4.7-flash"), 47u * 576 * 2);
  EXPECT_EQ(bytes("mistral-small-4"), 36u * 320 * 2);
  EXPECT_EQ(bytes("qwen3-235b-a22b"), 192512u);
  EXPECT_EQ(bytes("llama-70b"), 327680u);
  EXPECT_EQ(bytes("deepseek-v3.2"), 85888u);  // and a key of its index
  EXPECT_EQ(bytes("deepseek-v3.2", KvFormat::int8), 61u * (576 + 4 + 128 + 2));
  EXPECT_EQ(bytes("deepseek-v3", KvFormat::int8), 61u * (576 + 4));
  EXPECT_EQ(bytes("deepseek-v3", KvFormats::parse("k=f16,v=q4")), 61u * (128 + 256 + 64));
}

TEST(LatentAttention, AbsurdKeysAreRefusedByName) {
  const auto refused = [](const std::string& key, MetadataValue value) {
    Metadata metadata = small_latent(14);
    metadata.set("deepseek2." + key, std::move(value));
    EXPECT_THAT(error_from([&] { MadeFile made(metadata); }), HasSubstr("deepseek2." + key));
  };
  refused("attention.kv_lora_rank", uint64_t(0));
  refused("attention.kv_lora_rank", uint64_t(1) << 17);
  refused("attention.kv_lora_rank", uint64_t(1) << 40);
  refused("attention.q_lora_rank", uint64_t(1) << 33);
  refused("attention.key_length_mla", uint64_t(0));
  refused("attention.value_length_mla", uint64_t(1) << 30);
  refused("rope.dimension_count", uint64_t(7));
  refused("rope.dimension_count", kPlain + kRotated);
  refused("rope.scaling.yarn_log_multiplier", 1e9);
  Metadata metadata = small_latent(14);
  metadata.set("deepseek2.attention.value_length_mla", uint64_t(1) << 23);
  EXPECT_THAT(error_from([&] { MadeFile made(metadata); }), HasSubstr("more than any model has"));
}

// The same with an index.
Metadata small_indexed(uint64_t query_rank) {
  Metadata metadata = small_latent(query_rank, "deepseek32");
  metadata.set("deepseek32.attention.indexer.head_count", uint64_t(16));
  metadata.set("deepseek32.attention.indexer.key_length", uint64_t(12));
  metadata.set("deepseek32.attention.indexer.top_k", uint64_t(24));
  return metadata;
}

TEST(LatentAttention, AbsurdIndexesAreRefusedByName) {
  const auto error_of = [](const std::string& key, MetadataValue value) {
    Metadata metadata = small_indexed(14);
    metadata.set("deepseek32.attention." + key, std::move(value));
    return error_from([&] { MadeFile made(metadata); });
  };
  EXPECT_EQ(error_of("indexer.top_k", uint64_t(1)), "no error");
  for (const char* key : {"indexer.head_count", "indexer.key_length", "indexer.top_k"}) {
    for (const uint64_t value : {uint64_t(0), uint64_t(1) << 30, uint64_t(1) << 40})
      EXPECT_THAT(error_of(key, value), HasSubstr(std::string("deepseek32.attention.") + key)) << value;
  }
  EXPECT_THAT(error_of("indexer.key_length", uint64_t(4)), HasSubstr("of which 8 rotate"));
  EXPECT_THAT(error_of("indexer.key_length", uint64_t(13)), HasSubstr("multiples of four"));
  EXPECT_THAT(error_of("q_lora_rank", uint64_t(0)), HasSubstr("deepseek32.attention.q_lora_rank"));
}

TEST(LatentAttention, AnIndexThatMayChooseAllRowsChangesNothing) {
  const auto with_top = [](uint64_t top) {
    Metadata metadata = small_indexed(14);
    metadata.set("deepseek32.attention.indexer.top_k", top);
    const auto file = make(metadata, {});
    BareModel model(file, file->spec(), exact_kernels(), 2);
    return all_logits(model, some_tokens(), 16);
  };
  const auto all = with_top(60), few = with_top(24);
  EXPECT_EQ(with_top(200), all);
  ASSERT_EQ(few.size(), all.size());
  const size_t dense = all.size() / some_tokens().size() * 24;
  EXPECT_TRUE(std::equal(all.begin(), all.begin() + ptrdiff_t(dense), few.begin()));
  EXPECT_NE(few, all);
}

TEST(LatentAttention, MissingTensorsAreNamed) {
  const auto file = make(small_latent(14), {});
  ModelSpec other = file->spec();
  std::get<LatentSpec>(other.layers[1].mixer).query_rank = 0;
  EXPECT_THAT(error_from([&] { load_weights(file, other); }), HasSubstr("blk.1.attn_q.weight is missing"));
  other = file->spec();
  std::get<LatentSpec>(other.layers[2].mixer).value_dim = kValues + 1;
  EXPECT_THAT(error_from([&] { load_weights(file, other); }),
              HasSubstr("blk.2.attn_v_b.weight has the shape"));
}

Json deepseek_config() {
  return {{"model_type", "deepseek_v3"}, {"hidden_size", 32}, {"intermediate_size", 48},
          {"num_hidden_layers", 3},      {"vocab_size", 64},  {"num_attention_heads", 4},
          {"kv_lora_rank", 16},          {"q_lora_rank", 24}, {"qk_nope_head_dim", 8},
          {"qk_rope_head_dim", 8},       {"v_head_dim", 12},  {"max_position_embeddings", 64}};
}

TEST(LatentAttention, AbsurdConfigsAreRefusedByName) {
  const auto error_of_config = [](const char* key, Json value) {
    Json config = deepseek_config();
    config[key] = std::move(value);
    return error_from([&] {
      convert_hf_config({parse_json(config.dump(), "config.json"), "config.json"}, "model");
    });
  };
  for (const char* key :
       {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    EXPECT_THAT(error_of_config(key, 0), HasSubstr(key));
    EXPECT_THAT(error_of_config(key, 1 << 20), HasSubstr(key));
    EXPECT_THAT(error_of_config(key, "many"), HasSubstr(key));
  }
  EXPECT_THAT(error_of_config("qk_rope_head_dim", 7), HasSubstr("\"qk_rope_head_dim\" is 7"));
  EXPECT_THAT(error_of_config("rope_interleave", false), HasSubstr("rope_interleave"));
  EXPECT_THAT(error_of_config("moe_layer_freq", 2), HasSubstr("moe_layer_freq"));
  EXPECT_EQ(error_of_config("q_lora_rank", nullptr), "no error");
}

TEST(LatentAttention, AbsurdIndexConfigsAreRefusedByName) {
  const auto error_of_config = [](const char* key, Json value) {
    Json config = deepseek_config();
    config["model_type"] = "glm_moe_dsa";
    config["index_n_heads"] = 16;
    config["index_head_dim"] = 12;
    config["index_topk"] = 24;
    config[key] = std::move(value);
    return error_from([&] {
      convert_hf_config({parse_json(config.dump(), "config.json"), "config.json"}, "model");
    });
  };
  EXPECT_EQ(error_of_config("indexer_types", {"full", "full", "full"}), "no error");
  EXPECT_THAT(error_of_config("indexer_types", {"full", "half", "full"}),
              HasSubstr("known are full and shared"));
  EXPECT_THAT(error_of_config("indexer_types", {"full", "shared"}), HasSubstr("speaks of 2 layers"));
  EXPECT_THAT(error_of_config("indexer_types", {"shared", "full", "full"}),
              HasSubstr("no choice to take over"));
  EXPECT_THAT(error_of_config("index_topk_pattern", "SFF"), HasSubstr("no choice to take over"));
  EXPECT_THAT(error_of_config("index_topk_pattern", "FXF"), HasSubstr("index_topk_pattern"));
  for (const char* key : {"index_n_heads", "index_head_dim", "index_topk"}) {
    EXPECT_THAT(error_of_config(key, 0), HasSubstr(key));
    EXPECT_THAT(error_of_config(key, 1 << 20), HasSubstr(key));
    EXPECT_THAT(error_of_config(key, "many"), HasSubstr(key));
  }
}

TEST(LatentAttention, LayersThatTakeOverAChoiceAreSaidInThreeWays) {
  const auto own = [](const char* key, Json value) {
    Json config = deepseek_config();
    config["model_type"] = "glm_moe_dsa";
    config["num_hidden_layers"] = 8;
    config["index_n_heads"] = 16;
    config["index_head_dim"] = 12;
    config["index_topk"] = 24;
    config[key] = std::move(value);
    const Metadata read =
        convert_hf_config({parse_json(config.dump(), "config.json"), "config.json"}, "model").metadata;
    std::string letters;
    if (!read.has("glm-dsa.attention.indexer.types")) return letters;
    for (const bool one : read.flags("glm-dsa.attention.indexer.types")) letters += one ? 'F' : 'S';
    return letters;
  };
  EXPECT_EQ(own("index_topk_pattern", "FFSSFSSS"), "FFSSFSSS");
  EXPECT_EQ(own("indexer_types", {"full", "shared", "full", "full", "full", "full", "full", "shared"}),
            "FSFFFFFS");
  EXPECT_EQ(own("index_topk_freq", 3), "FFSSFSSF");
  EXPECT_EQ(own("index_topk_freq", 1), "");
  Json other = deepseek_config();
  other["model_type"] = "deepseek_v32";
  other["index_topk_pattern"] = "FSF";
  EXPECT_THAT(error_from([&] {
                convert_hf_config({parse_json(other.dump(), "config.json"), "config.json"}, "model");
              }),
              HasSubstr("not supported for deepseek_v32"));
}

TEST(LatentAttention, DevicesWhoseKernelsHaveNoSuchRowsRefuseThem) {
  const auto file = make(small_latent(14), {});
  BackendTraits device;
  device.device = "cuda:0";
  EXPECT_EQ(refusal_of(*file, file->spec(), device), "");
  device.limits.latent_rows = false;
  EXPECT_THAT(refusal_of(*file, file->spec(), device), HasSubstr("layer 0 has latent keys and values"));
  device.limits = {.head_dim_multiple = 5};
  EXPECT_THAT(refusal_of(*file, file->spec(), device), HasSubstr("no multiple of 5"));
  device.limits = {.latent_dim = 20};
  EXPECT_THAT(refusal_of(*file, file->spec(), device), HasSubstr("and 20 are the most"));
  device.limits = {.latent_heads = 1};
  EXPECT_THAT(refusal_of(*file, file->spec(), device), HasSubstr("query heads, and 1 are the most"));
  device.limits = {.chosen_rows = false};
  EXPECT_EQ(refusal_of(*file, file->spec(), device), "");
  ModelSpec chooses = file->spec();
  std::get<LatentSpec>(chooses.layers[0].mixer).index = RowIndexSpec{};
  EXPECT_THAT(refusal_of(*file, chooses, device), HasSubstr("layer 0 chooses the rows"));
  device.limits.latent_rows = false;
  ModelSpec beside = file->spec();
  for (LayerSpec& layer : beside.layers) layer.sides.mixer = Side::host;
  EXPECT_EQ(refusal_of(*file, beside, device), "");
}

}  // namespace
}  // namespace quire
