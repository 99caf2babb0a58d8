#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "base/error.h"
#include "base/philox.h"
#include "model/gguf_writer.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr size_t kDistinctRows = 64;
constexpr uint32_t kByteTokens = 256;
constexpr const char* kSpecialTokens[] = {"<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"};
constexpr const char* kChatTemplate =
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{{ m['content'] }}{{ eos_token }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

void append_utf8(uint32_t character, std::string& out) {
  if (character < 0x80) {
    out += char(character);
  } else {
    out += char(0xC0 | character >> 6);
    out += char(0x80 | (character & 0x3F));
  }
}

// The characters that stand for bytes in byte-level vocabularies: printable bytes are themselves, the others
// follow from U+0100 on.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens(kByteTokens);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < kByteTokens; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append_utf8(printable ? byte : next++, tokens[byte]);
  }
  return tokens;
}

// Bytes, then every string of two, three and four small letters in order, then names without meaning.
void add_vocabulary(uint32_t size, Metadata& metadata) {
  std::vector<std::string> tokens = byte_tokens();
  std::vector<int64_t> types(kByteTokens, 1);
  std::vector<std::string> merges;
  const uint32_t words = size - uint32_t(std::size(kSpecialTokens));
  std::vector<std::string> shorter;
  for (char c = 'a'; c <= 'z'; ++c) shorter.emplace_back(1, c);
  for (int length = 2; length <= 4 && tokens.size() < words; ++length) {
    std::vector<std::string> longer;
    for (const std::string& prefix : shorter) {
      for (char c = 'a'; c <= 'z' && tokens.size() < words; ++c) {
        merges.push_back(prefix + " " + c);
        longer.push_back(prefix + c);
        tokens.push_back(longer.back());
        types.push_back(1);
      }
    }
    shorter = std::move(longer);
  }
  for (uint32_t i = 0; tokens.size() < words; ++i) {
    tokens.push_back(fmt::format("<unused{}>", i));
    types.push_back(5);
  }
  const uint64_t first_special = tokens.size();
  for (const char* token : kSpecialTokens) {
    tokens.emplace_back(token);
    types.push_back(3);
  }
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", std::string("gpt-2"));
  metadata.set("tokenizer.ggml.tokens", std::move(tokens));
  metadata.set("tokenizer.ggml.token_type", std::move(types));
  metadata.set("tokenizer.ggml.merges", std::move(merges));
  metadata.set("tokenizer.ggml.bos_token_id", first_special);
  metadata.set("tokenizer.ggml.eos_token_id", first_special + 1);
  metadata.set("tokenizer.ggml.add_bos_token", false);
  metadata.set("tokenizer.chat_template", std::string(kChatTemplate));
}

Metadata synth_metadata(const SynthShape& s, const TypeMix& mix) {
  Metadata metadata(s.name);
  metadata.set("general.architecture", std::string("llama"));
  metadata.set("general.name", "synthetic " + s.name);
  metadata.set("general.file_type", uint64_t(mix.file_type()));
  metadata.set("general.quantization_version", uint64_t(2));
  metadata.set("llama.block_count", uint64_t(s.layers));
  metadata.set("llama.context_length", uint64_t(s.context));
  metadata.set("llama.embedding_length", uint64_t(s.dim));
  metadata.set("llama.feed_forward_length", uint64_t(s.mlp_width));
  metadata.set("llama.attention.head_count", uint64_t(s.heads));
  metadata.set("llama.attention.head_count_kv", uint64_t(s.kv_heads));
  metadata.set("llama.attention.key_length", uint64_t(s.head_dim));
  metadata.set("llama.attention.value_length", uint64_t(s.head_dim));
  metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5);
  metadata.set("llama.rope.dimension_count", uint64_t(s.head_dim));
  metadata.set("llama.rope.freq_base", double(s.rope_base));
  metadata.set("llama.vocab_size", uint64_t(s.vocab));
  add_vocabulary(s.vocab, metadata);
  return metadata;
}

std::vector<TensorEntry> synth_tensors(const SynthShape& s) {
  const uint64_t query = uint64_t(s.heads) * s.head_dim;
  const uint64_t key = uint64_t(s.kv_heads) * s.head_dim;
  std::vector<TensorEntry> tensors;
  const auto add = [&](std::string name, std::vector<uint64_t> shape) {
    tensors.push_back({std::move(name), DType::f32, std::move(shape), 0});
  };
  add("token_embd.weight", {s.vocab, s.dim});
  add("output_norm.weight", {s.dim});
  if (!s.tied) add("output.weight", {s.vocab, s.dim});
  for (uint32_t i = 0; i < s.layers; ++i) {
    const std::string layer = fmt::format("blk.{}.", i);
    add(layer + "attn_norm.weight", {s.dim});
    add(layer + "attn_q.weight", {query, s.dim});
    add(layer + "attn_k.weight", {key, s.dim});
    add(layer + "attn_v.weight", {key, s.dim});
    add(layer + "attn_output.weight", {s.dim, query});
    add(layer + "ffn_norm.weight", {s.dim});
    add(layer + "ffn_gate.weight", {s.mlp_width, s.dim});
    add(layer + "ffn_up.weight", {s.mlp_width, s.dim});
    add(layer + "ffn_down.weight", {s.dim, s.mlp_width});
  }
  return tensors;
}

// Gaussian values keyed by tensor, row and place.
void fill_row(uint32_t tensor, uint32_t row, float scale, std::span<float> out) {
  for (uint32_t i = 0; i < out.size(); ++i) {
    const auto random = philox({i, row, tensor, 0}, {0x71756972, 0x65});
    const double radius = std::sqrt(-2 * std::log((double(random[0]) + 0.5) * 0x1p-32));
    out[i] = scale * float(radius * std::cos(2 * std::numbers::pi * double(random[1]) * 0x1p-32));
  }
}

}  // namespace

const std::vector<SynthShape>& synth_shapes() {
  static const std::vector<SynthShape> shapes = {
      {"tiny", 256, 4, 4, 2, 64, 512, 512, 2048, true, 10000},
      {"smollm-135m", 576, 30, 9, 3, 64, 1536, 49152, 8192, true, 100000},
      {"smollm-360m", 960, 32, 15, 5, 64, 2560, 49152, 8192, true, 100000},
      {"llama-1b", 2048, 16, 32, 8, 64, 8192, 128256, 131072, true, 500000},
      {"llama-3b", 3072, 28, 24, 8, 128, 8192, 128256, 131072, true, 500000},
      {"llama-8b", 4096, 32, 32, 8, 128, 14336, 128256, 131072, false, 500000},
  };
  return shapes;
}

const SynthShape& synth_shape(std::string_view name) {
  std::string known;
  for (const SynthShape& shape : synth_shapes()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  throw Error("'{}' is not a shape; known are {}", name, known);
}

void write_synthetic_model(const SynthShape& shape, const TypeMix& mix, const std::string& out,
                           ThreadPool& pool, const std::function<void(size_t done, size_t total)>& progress) {
  std::vector<TensorEntry> tensors = synth_tensors(shape);
  size_t total = 0;
  for (TensorEntry& tensor : tensors) {
    tensor.dtype = mix.type_for(tensor, shape.layers, shape.tied);
    const size_t rows = tensor.shape.size() > 1 ? tensor.shape[0] : 1;
    tensor.bytes = rows * row_bytes(tensor.dtype, tensor.shape.back());
    total += tensor.bytes;
  }
  GgufWriter writer(out, synth_metadata(shape, mix), tensors);
  size_t done = 0;
  for (uint32_t index = 0; index < tensors.size(); ++index) {
    const TensorEntry& tensor = tensors[index];
    const size_t cols = tensor.shape.back();
    const size_t rows = tensor.shape.size() > 1 ? tensor.shape[0] : 1;
    const size_t distinct = std::min(rows, kDistinctRows);
    const size_t bytes = row_bytes(tensor.dtype, cols);
    std::vector<std::byte> block(distinct * bytes);
    pool.parallel_for(distinct, 1, [&](size_t begin, size_t end) {
      std::vector<float> values(cols);
      for (size_t row = begin; row < end; ++row) {
        if (tensor.shape.size() == 1) {
          std::fill(values.begin(), values.end(), 1.0f);  // a norm
        } else {
          fill_row(index, uint32_t(row), 1.0f / std::sqrt(float(cols)), values);
        }
        quantize_row(tensor.dtype, values, block.data() + row * bytes);
      }
    });
    for (size_t row = 0; row < rows; row += distinct) {
      writer.append({block.data(), std::min(distinct, rows - row) * bytes});
    }
    done += tensor.bytes;
    if (progress) progress(done, total);
  }
  writer.finish();
}

}  // namespace quire
