#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"
#include "model/gguf_writer.h"
#include "model/layer_blocks.h"
#include "model/synth_vocabulary.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr size_t kDistinctRows = 64;
Metadata synth_metadata(const SynthShape& s, const TypeMix& mix) {
  Metadata metadata(s.name);
  const bool recurrent = s.recurrence.key_heads > 0;
  const std::string architecture = recurrent ? "qwen35" : "llama";
  const auto key = [&](const char* name) { return architecture + "." + name; };
  metadata.set("general.architecture", architecture);
  metadata.set("general.name", "synthetic " + s.name);
  metadata.set("general.file_type", uint64_t(mix.file_type()));
  metadata.set("general.quantization_version", uint64_t(2));
  metadata.set(key("block_count"), uint64_t(s.layers));
  metadata.set(key("context_length"), uint64_t(s.context));
  metadata.set(key("embedding_length"), uint64_t(s.dim));
  metadata.set(key("feed_forward_length"), uint64_t(s.mlp_width));
  metadata.set(key("attention.head_count"), uint64_t(s.heads));
  metadata.set(key("attention.head_count_kv"), uint64_t(s.kv_heads));
  metadata.set(key("attention.key_length"), uint64_t(s.head_dim));
  metadata.set(key("attention.value_length"), uint64_t(s.head_dim));
  metadata.set(key("attention.layer_norm_rms_epsilon"), 1e-5);
  metadata.set(key("rope.dimension_count"), uint64_t(recurrent ? s.head_dim / 4 : s.head_dim));
  metadata.set(key("rope.freq_base"), double(s.rope_base));
  metadata.set(key("vocab_size"), uint64_t(s.vocab));
  if (recurrent) {
    metadata.set(key("full_attention_interval"), uint64_t(s.recurrence.attention_every));
    metadata.set(key("ssm.conv_kernel"), uint64_t(4));
    metadata.set(key("ssm.group_count"), uint64_t(s.recurrence.key_heads));
    metadata.set(key("ssm.time_step_rank"), uint64_t(s.recurrence.value_heads));
    metadata.set(key("ssm.state_size"), uint64_t(s.recurrence.head_dim));
    metadata.set(key("ssm.inner_size"), uint64_t(s.recurrence.value_heads) * s.recurrence.head_dim);
  }
  set_vocabulary(make_synth_vocabulary(s.vocab), metadata);
  return metadata;
}

class SynthHead : public ModelFile {
 public:
  SynthHead(const SynthShape& shape, const TypeMix& mix) : ModelFile(shape.name) {
    metadata_ = synth_metadata(shape, mix);
    const auto add = [&](const Role& role) {
      TensorEntry tensor{role.tensor, DType::f32, role.shape, 0};
      tensor.dtype = mix.type_for(tensor, shape.layers, shape.tied);
      const size_t rows = tensor.shape.size() > 1 ? tensor.shape[0] : 1;
      tensor.bytes = rows * row_bytes(tensor.dtype, tensor.shape.back());
      add_tensor(std::move(tensor));
    };
    ModelSpec measures;  // what a spec is read from must have an embedding
    measures.vocab = shape.vocab;
    measures.dim = shape.dim;
    const Role embedding = model_roles(measures).embedding;
    add(embedding);
    for (const Role& role : all_roles(read_model_spec(*this))) {
      const bool wanted = role.presence == Presence::required || (role.name == "head" && !shape.tied);
      if (wanted && role.tensor != embedding.tensor) add(role);
    }
  }
  TensorData load(const TensorEntry&) const override {
    throw Error("{} is a shape: it has no weights", path_);
  }
  std::vector<std::span<const std::byte>> stored(const TensorEntry&) const override { return {}; }
};

// Gaussian values keyed by tensor, row and place.
void fill_row(uint32_t tensor, uint32_t row, float scale, std::span<float> out) {
  for (uint32_t i = 0; i < out.size(); ++i) {
    const auto random = philox({i, row, tensor, 0}, {0x71756972, 0x65});
    const double radius = std::sqrt(-2 * std::log((double(random[0]) + 0.5) * 0x1p-32));
    out[i] = scale * float(radius * std::cos(2 * std::numbers::pi * double(random[1]) * 0x1p-32));
  }
}

// Norms, but for what says how fast a state forgets: over some tens of tokens.
float one_value_of(const std::string& tensor) {
  if (tensor.ends_with(".ssm_a")) return -0.05f;
  return tensor.ends_with(".ssm_dt.bias") ? -1.0f : 1.0f;
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
      {"tiny-hybrid", 256, 8, 4, 2, 64, 512, 512, 8192, true, 10000, {2, 4, 32}},
      {"hybrid-1b", 2048, 16, 8, 2, 256, 8192, 128256, 131072, true, 10000000, {16, 16, 128}},
      {"qwen3.5-9b", 4096, 32, 16, 4, 256, 12288, 248320, 262144, false, 10000000, {16, 32, 128}},
      {"llama-13b", 5120, 40, 40, 40, 128, 13824, 32000, 4096, false, 10000},
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

std::unique_ptr<ModelFile> synth_head(const SynthShape& shape, const TypeMix& mix) {
  return std::make_unique<SynthHead>(shape, mix);
}

void write_synthetic_model(const SynthShape& shape, const TypeMix& mix, const std::string& out,
                           ThreadPool& pool, const std::function<void(size_t done, size_t total)>& progress) {
  const SynthHead head(shape, mix);
  const std::span<const TensorEntry> tensors = head.tensors();
  size_t total = 0;
  for (const TensorEntry& tensor : tensors) total += tensor.bytes;
  GgufWriter writer(out, head.metadata(), tensors);
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
          std::fill(values.begin(), values.end(), one_value_of(tensor.name));
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
