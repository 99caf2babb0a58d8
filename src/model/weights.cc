#include "model/weights.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

class Loader {
 public:
  Loader(std::shared_ptr<const ModelFile> file, const ModelSpec& spec)
      : file_(std::move(file)), spec_(spec) {}

  // Checks every name and shape, so that a bad file is refused before any tensor is converted.
  void check() {
    checking_ = true;
    load();
    checking_ = false;
    bytes_ = 0;
  }

  Weights load() {
    Weights weights;
    weights.embedding = matrix("token_embd.weight", spec_.vocab, spec_.dim);
    if (spec_.learned_positions) weights.positions = as_f32("position_embd.weight", spec_.context, spec_.dim);
    weights.output_norm = norm("output_norm", spec_.dim);
    weights.head = file_->find("output.weight") != nullptr ? matrix("output.weight", spec_.vocab, spec_.dim)
                                                           : weights.embedding;
    weights.head_bias = maybe_vector("output.bias", spec_.vocab);
    for (size_t i = 0; i < spec_.layers.size(); ++i) weights.layers.push_back(layer(i));
    weights.bytes = bytes_;
    weights.file = file_;
    return weights;
  }

 private:
  LayerWeights layer(size_t index) {
    prefix_ = fmt::format("blk.{}.", index);
    LayerWeights w;
    if (spec_.pre_norms) {
      w.attention_norm = norm(prefix_ + "attn_norm", spec_.dim);
      w.mlp_norm = norm(prefix_ + spec_.mlp_norm_tensor, spec_.dim);
    }
    if (spec_.post_norms) {
      w.attention_post_norm = norm(prefix_ + "post_attention_norm", spec_.dim);
      w.mlp_post_norm = norm(prefix_ + "post_ffw_norm", spec_.dim);
    }
    load_attention(w);
    if (spec_.experts.count > 0) {
      load_experts(w);
    } else {
      load_mlp(w);
    }
    return w;
  }

  void load_attention(LayerWeights& w) {
    const size_t query = size_t(spec_.heads) * spec_.key_dim;
    const size_t key = size_t(spec_.kv_heads) * spec_.key_dim;
    const size_t value = size_t(spec_.kv_heads) * spec_.value_dim;
    if (file_->find(prefix_ + "attn_qkv.weight") != nullptr) {
      const Weight all = matrix(prefix_ + "attn_qkv.weight", query + key + value, spec_.dim);
      w.query = all.slice(0, query);
      w.key = all.slice(query, key);
      w.value = all.slice(query + key, value);
      if (const Weight bias = maybe_vector(prefix_ + "attn_qkv.bias", query + key + value)) {
        w.query_bias = part(bias, 0, query);
        w.key_bias = part(bias, query, key);
        w.value_bias = part(bias, query + key, value);
      }
    } else {
      w.query = matrix(prefix_ + "attn_q.weight", query, spec_.dim);
      w.key = matrix(prefix_ + "attn_k.weight", key, spec_.dim);
      w.value = matrix(prefix_ + "attn_v.weight", value, spec_.dim);
      w.query_bias = maybe_vector(prefix_ + "attn_q.bias", query);
      w.key_bias = maybe_vector(prefix_ + "attn_k.bias", key);
      w.value_bias = maybe_vector(prefix_ + "attn_v.bias", value);
    }
    w.attention_out =
        matrix(prefix_ + "attn_output.weight", spec_.dim, size_t(spec_.heads) * spec_.value_dim);
    w.attention_out_bias = maybe_vector(prefix_ + "attn_output.bias", spec_.dim);
    if (spec_.query_key_norm != QueryKeyNorm::none) {
      const bool whole = spec_.query_key_norm == QueryKeyNorm::whole;
      w.query_norm = norm(prefix_ + "attn_q_norm", whole ? query : spec_.key_dim);
      w.key_norm = norm(prefix_ + "attn_k_norm", whole ? key : spec_.key_dim);
    }
    if (spec_.attention_sinks) w.sinks = vector(prefix_ + "attn_sinks.weight", spec_.heads);
  }

  void load_mlp(LayerWeights& w) {
    const size_t width = spec_.mlp_width;
    if (!spec_.gated_mlp) {
      w.gate = matrix(prefix_ + "ffn_up.weight", width, spec_.dim);
      w.gate_bias = maybe_vector(prefix_ + "ffn_up.bias", width);
    } else if (file_->find(prefix_ + "ffn_gate.weight") == nullptr) {  // gate and up in one
      const Weight both = matrix(prefix_ + "ffn_up.weight", 2 * width, spec_.dim);
      w.gate = both.slice(0, width);
      w.up = both.slice(width, width);
    } else {
      w.gate = matrix(prefix_ + "ffn_gate.weight", width, spec_.dim);
      w.up = matrix(prefix_ + "ffn_up.weight", width, spec_.dim);
      w.gate_bias = maybe_vector(prefix_ + "ffn_gate.bias", width);
      w.up_bias = maybe_vector(prefix_ + "ffn_up.bias", width);
    }
    w.down = matrix(prefix_ + "ffn_down.weight", spec_.dim, width);
    w.down_bias = maybe_vector(prefix_ + "ffn_down.bias", spec_.dim);
  }

  void load_experts(LayerWeights& w) {
    const size_t count = spec_.experts.count;
    const size_t width = spec_.experts.width;
    w.router = matrix(prefix_ + "ffn_gate_inp.weight", count, spec_.dim);
    w.router_bias = maybe_vector(prefix_ + "ffn_gate_inp.bias", count);
    w.gate = stacked(prefix_ + "ffn_gate_exps.weight", width, spec_.dim);
    w.up = stacked(prefix_ + "ffn_up_exps.weight", width, spec_.dim);
    w.down = stacked(prefix_ + "ffn_down_exps.weight", spec_.dim, width);
    w.gate_bias = maybe_stacked_vector(prefix_ + "ffn_gate_exps.bias", width);
    w.up_bias = maybe_stacked_vector(prefix_ + "ffn_up_exps.bias", width);
    w.down_bias = maybe_stacked_vector(prefix_ + "ffn_down_exps.bias", spec_.dim);
  }

  const TensorEntry& entry(const std::string& name, const std::vector<uint64_t>& shape) {
    const TensorEntry* entry = file_->find(name);
    if (entry == nullptr) throw Error("{}: the tensor {} is missing", file_->path(), name);
    if (entry->shape != shape) {
      throw Error("{}: the tensor {} has the shape [{}], and [{}] was expected", file_->path(), name,
                  fmt::join(entry->shape, ", "), fmt::join(shape, ", "));
    }
    if (entry->dtype == DType::i32) throw Error("{}: the tensor {} holds integers", file_->path(), name);
    return *entry;
  }

  Weight load(const TensorEntry& entry, size_t rows, size_t cols) {
    static constexpr std::byte kNotLoaded{};
    if (checking_) return {{&kNotLoaded, entry.dtype, rows, cols}, nullptr};
    TensorData data = file_->load(entry);
    bytes_ += entry.bytes;
    std::shared_ptr<const void> owner = file_;
    if (data.owned != nullptr) owner = data.owned;
    return {{data.bytes.data(), entry.dtype, rows, cols}, owner};
  }

  Weight matrix(const std::string& name, size_t rows, size_t cols) {
    return load(entry(name, {rows, cols}), rows, cols);
  }

  Weight stacked(const std::string& name, size_t rows, size_t cols) {
    const size_t count = spec_.experts.count;
    return load(entry(name, {count, rows, cols}), count * rows, cols);
  }

  // Norms, biases and the like are used as f32 whatever the file holds.
  Weight as_f32(const std::string& name, size_t rows, size_t cols) {
    return to_f32(matrix(name, rows, cols));
  }

  Weight to_f32(const Weight& weight) {
    if (checking_) return weight;
    const size_t count = weight.view.rows * weight.view.cols;
    if (weight.view.dtype == DType::f32 &&
        reinterpret_cast<uintptr_t>(weight.view.data) % alignof(float) == 0) {
      return weight;
    }
    auto copy = std::make_shared<const Buffer>(count * sizeof(float));
    for (size_t row = 0; row < weight.view.rows; ++row) {
      dequantize_row(weight.view.dtype, weight.view.row(row),
                     {copy->as<float>() + row * weight.view.cols, weight.view.cols});
    }
    return {{copy->data(), DType::f32, weight.view.rows, weight.view.cols}, copy};
  }

  Weight vector(const std::string& name, size_t count) {
    return to_f32(load(entry(name, {count}), 1, count));
  }

  Weight maybe_vector(const std::string& name, size_t count) {
    return file_->find(name) != nullptr ? vector(name, count) : Weight{};
  }

  Weight maybe_stacked_vector(const std::string& name, size_t count) {
    if (file_->find(name) == nullptr) return {};
    return to_f32(load(entry(name, {spec_.experts.count, count}), 1, spec_.experts.count * count));
  }

  static Weight part(const Weight& vector, size_t begin, size_t count) {
    return {{vector.view.data + begin * sizeof(float), DType::f32, 1, count}, vector.owner};
  }

  Norm norm(const std::string& name, size_t width) {
    return {.kind = spec_.norm,
            .epsilon = spec_.norm_epsilon,
            .weight = vector(name + ".weight", width),
            .bias = maybe_vector(name + ".bias", width)};
  }

  std::shared_ptr<const ModelFile> file_;
  const ModelSpec& spec_;
  std::string prefix_;
  size_t bytes_ = 0;
  bool checking_ = false;
};

}  // namespace

Weights load_weights(std::shared_ptr<const ModelFile> file, const ModelSpec& spec) {
  Loader loader(std::move(file), spec);
  loader.check();
  return loader.load();
}

void prepare_weights(Weights& weights, const ModelSpec& spec, Backend& backend) {
  const auto prepare = [&](Weight& weight, size_t stacked) {
    weight = backend.prepare(weight, stacked);
    if (weight.packed == nullptr) return;
    weights.packed_bytes += weight.packed->size();
    const bool is_embedding = weight.view.data == weights.embedding.view.data;  // whose rows are still read
    if (weight.owner == weights.file && !is_embedding) forget_pages({weight.view.data, weight.view.bytes()});
    weight.owner = nullptr;
  };
  const size_t experts = std::max<size_t>(1, spec.experts.count);
  for (LayerWeights& layer : weights.layers) {
    for (Weight* weight : {&layer.query, &layer.key, &layer.value, &layer.attention_out, &layer.router}) {
      prepare(*weight, 1);
    }
    for (Weight* weight : {&layer.gate, &layer.up, &layer.down}) prepare(*weight, experts);
  }
  prepare(weights.head, 1);
}

}  // namespace quire
