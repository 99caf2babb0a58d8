#include "made_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/philox.h"
#include "model/gguf_writer.h"
#include "model/layer_blocks.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

size_t rows_of(const TensorEntry& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end() - 1, size_t(1), std::multiplies<>());
}

// Between -1 and 1, by name and place: files of different specs agree where their names do.
float drawn(const std::string& name, uint32_t index) {
  uint32_t key = 2166136261u;
  for (const char c : name) key = (key ^ uint32_t(uint8_t(c))) * 16777619u;
  return float(double(philox({index, 0, 0, 0}, {key, 7})[0]) * 0x1p-31 - 1);
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The indices of the largest, largest first.
std::vector<size_t> largest(const std::vector<double>& values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return values[i]; });
  order.resize(count);
  return order;
}

// The share of every expert, by the letter of Routing.
std::vector<double> plain_shares(const ExpertMlpSpec& spec, std::vector<double> scores,
                                 const std::vector<double>& bias) {
  const Routing& routing = spec.routing;
  std::vector<double> shares(scores.size());
  if (routing.score == RouterScore::sparse_mixer) {
    std::vector<bool> gone(scores.size());
    for (size_t k = 0; k < spec.used; ++k) {
      size_t best = scores.size();
      for (size_t e = 0; e < scores.size(); ++e)
        if (!gone[e] && (best == scores.size() || scores[e] > scores[best])) best = e;
      double sum = 0;
      for (size_t e = 0; e < scores.size(); ++e) {
        const double far = (scores[best] - scores[e]) / std::max(std::abs(scores[e]), scores[best]);
        if (!gone[e] && far <= double(routing.nearness)) sum += std::exp(scores[e] - scores[best]);
      }
      shares[best] = 1 / sum;
      gone[best] = true;
    }
    return shares;
  }
  double all = 0;
  for (const double score : scores) all += std::exp(score);
  for (double& score : scores) {
    if (routing.score == RouterScore::softmax) score = std::exp(score) / all;
    if (routing.score == RouterScore::sigmoid) score = sigmoid(score);
    if (routing.score == RouterScore::sqrt_softplus) score = std::sqrt(std::log(1 + std::exp(score)));
  }
  std::vector<double> choice = scores;
  for (size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
  const size_t size = scores.size() / routing.groups;
  std::vector<double> groups;
  for (size_t g = 0; g < routing.groups; ++g) {
    std::vector<double> members(choice.begin() + ptrdiff_t(g * size),
                                choice.begin() + ptrdiff_t((g + 1) * size));
    std::ranges::sort(members, std::greater());
    groups.push_back(0);
    for (size_t i = 0; i < std::min<size_t>(size, routing.group_best); ++i) groups.back() += members[i];
  }
  const std::vector<size_t> kept = largest(groups, routing.groups_used);
  for (size_t e = 0; e < choice.size(); ++e)
    if (std::ranges::find(kept, e / size) == kept.end()) choice[e] = -INFINITY;
  double sum = 0;
  for (const size_t e : largest(choice, spec.used)) {
    shares[e] = routing.score == RouterScore::softmax_of_chosen ? std::exp(scores[e]) : scores[e];
    sum += shares[e];
  }
  const bool divides = routing.normalized || routing.score == RouterScore::softmax_of_chosen;
  for (double& share : shares) share = share / (divides ? sum : 1) * double(routing.scale);
  return shares;
}

class PlainModel {
 public:
  PlainModel(const MadeFile& file, std::span<const TokenId> tokens) : file_(file), tokens_(tokens) {}

  std::vector<double> logits(const PlainBlock& toy_mixer, const PlainBlock& toy_mlp) {
    const ModelSpec& spec = file_.spec();
    const std::vector<double> embedding = file_.values("token_embd.weight");
    PlainRows stream;
    for (const TokenId token : tokens_) {
      const auto row = embedding.begin() + ptrdiff_t(token * spec.dim);
      stream.emplace_back(row, row + ptrdiff_t(spec.dim));
    }
    for (size_t l = 0; l < spec.layers.size(); ++l) {
      prefix_ = "blk." + std::to_string(l) + ".";
      const LayerSpec& layer = spec.layers[l];
      const PlainRows before = stream;
      const PlainRows for_mixer = normed(stream, prefix_ + layer.norms.mixer_tensor, layer.norms.norm);
      const auto* gqa = std::get_if<GqaSpec>(&layer.mixer);
      add(stream, gqa != nullptr ? attention(l, *gqa, for_mixer) : toy_mixer(l, for_mixer), layer);
      const BlockInput input = layer.norms.mlp_input;
      const PlainRows for_mlp = input == BlockInput::shared
                                    ? for_mixer
                                    : normed(input == BlockInput::stream ? stream : before,
                                             prefix_ + layer.norms.mlp_tensor, layer.norms.norm);
      if (const auto* dense = std::get_if<DenseMlpSpec>(&layer.mlp)) {
        add(stream, mlp(for_mlp, "", 0, dense->gated), layer);
      } else if (const auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp)) {
        add(stream, mixture(*experts, for_mlp), layer);
      } else {
        add(stream, toy_mlp(l, for_mlp), layer);
      }
      if (layer.shared) add(stream, shared(*layer.shared, for_mlp), layer);
    }
    std::vector<double> all;
    const PlainRows last = normed(stream, "output_norm", spec.output_norm);
    for (const auto& row : product(last, "token_embd.weight", 0, spec.vocab))
      all.insert(all.end(), row.begin(), row.end());
    return all;
  }

 private:
  static void add(PlainRows& stream, const PlainRows& branch, const LayerSpec& layer) {
    for (size_t t = 0; t < stream.size(); ++t) {
      for (size_t i = 0; i < stream[t].size(); ++i)
        stream[t][i] += double(layer.residual_scale) * branch[t][i];
    }
  }

  // `weight` may be empty.
  static void norm_values(std::span<double> values, const NormSpec& spec, std::span<const double> weight) {
    const double count = double(values.size());
    double mean = 0, squares = 0;
    if (spec.kind == NormKind::layer) mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    for (double& value : values) squares += (value - mean) * (value - mean);
    const double root = std::sqrt(squares / count + double(spec.epsilon));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = (values[i] - mean) / root * (weight.empty() ? 1 : weight[i]);
  }

  PlainRows normed(const PlainRows& in, const std::string& name, const NormSpec& spec) const {
    const std::vector<double> weight = file_.values(name + ".weight");
    PlainRows out = in;
    for (auto& row : out) norm_values(row, spec, weight);
    return out;
  }

  PlainRows product(const PlainRows& in, const std::string& name, size_t first, size_t rows) const {
    const std::vector<double> weight = file_.values(name);
    PlainRows out;
    for (const auto& row : in) {
      auto& result = out.emplace_back();
      for (size_t r = first; r < first + rows; ++r)
        result.push_back(
            std::inner_product(row.begin(), row.end(), weight.begin() + ptrdiff_t(r * row.size()), 0.0));
    }
    return out;
  }

  void rotate(PlainRows& rows, const GqaSpec& gqa) const {
    if (!gqa.rope) return;
    const RopeSpec& rope = file_.spec().ropes[*gqa.rope];
    const size_t pairs = rope.inverse_frequencies.size();
    const bool interleaved = rope.pairing == RopePairing::interleaved;
    for (size_t t = 0; t < rows.size(); ++t) {
      for (size_t head = 0; head < rows[t].size(); head += gqa.key_dim) {
        for (size_t i = 0; i < pairs; ++i) {
          double& a = rows[t][head + (interleaved ? 2 * i : i)];
          double& b = rows[t][head + (interleaved ? 2 * i + 1 : i + pairs)];
          const double angle = double(t) * double(rope.inverse_frequencies[i]), x = a, y = b;
          a = x * std::cos(angle) - y * std::sin(angle);
          b = x * std::sin(angle) + y * std::cos(angle);
        }
      }
    }
  }

  void norm_heads(PlainRows& rows, const GqaSpec& gqa, const std::string& name) const {
    using enum QueryKeyNorm;
    if (gqa.query_key_norm == none) return;
    const std::vector<double> weight = gqa.query_key_norm == per_head_weightless
                                           ? std::vector<double>()
                                           : file_.values(prefix_ + name + ".weight");
    for (auto& row : rows) {
      const size_t span = gqa.query_key_norm == whole ? row.size() : gqa.key_dim;
      for (size_t begin = 0; begin < row.size(); begin += span) {
        const size_t first = weight.size() == row.size() ? begin : 0;
        norm_values(std::span(row).subspan(begin, span), gqa.norm,
                    weight.empty() ? weight : std::span(weight).subspan(first, span));
      }
    }
  }

  void turn(PlainRows& rows, const GqaSpec& gqa, const std::string& norm) const {
    const bool after = gqa.norm_order == HeadNormOrder::after_rotation;
    if (!after) norm_heads(rows, gqa, norm);
    rotate(rows, gqa);
    if (after) norm_heads(rows, gqa, norm);
  }

  // The first position that position t sees.
  static size_t first_seen(const GqaSpec& gqa, size_t t) {
    if (gqa.chunk > 0) return t - t % gqa.chunk;
    return gqa.window == 0 || t < gqa.window ? 0 : t + 1 - gqa.window;
  }

  PlainRows attention(size_t layer, const GqaSpec& gqa, const PlainRows& in) {
    PlainRows query = product(in, prefix_ + "attn_q.weight", 0, gqa.heads * gqa.key_dim);
    turn(query, gqa, "attn_q_norm");
    if (!gqa.shares_with) {
      keys_[layer] = product(in, prefix_ + "attn_k.weight", 0, gqa.kv_heads * gqa.key_dim);
      values_[layer] = product(in, prefix_ + "attn_v.weight", 0, gqa.kv_heads * gqa.value_dim);
      turn(keys_[layer], gqa, "attn_k_norm");
    }
    const PlainRows& key = keys_.at(gqa.shares_with.value_or(uint32_t(layer)));
    const PlainRows& value = values_.at(gqa.shares_with.value_or(uint32_t(layer)));
    PlainRows attended(in.size(), std::vector<double>(gqa.heads * gqa.value_dim));
    for (size_t t = 0; t < in.size(); ++t) {
      const size_t first = first_seen(gqa, t);
      const QueryTemperature& temperature = gqa.temperature;
      const double steps = std::floor(double(t + temperature.offset) / temperature.step);
      const double growth = 1 + double(temperature.slope) * std::log(1 + steps);
      for (size_t h = 0; h < gqa.heads; ++h) {
        const size_t kv_head = h / (gqa.heads / gqa.kv_heads);
        std::vector<double> shares;
        for (size_t s = first; s <= t; ++s) {
          const auto q = query[t].begin() + ptrdiff_t(h * gqa.key_dim);
          const auto k = key[s].begin() + ptrdiff_t(kv_head * gqa.key_dim);
          const double score = growth * std::inner_product(q, q + gqa.key_dim, k, 0.0);
          shares.push_back(std::exp(double(gqa.scale) * score));
        }
        const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
        for (size_t s = first; s <= t; ++s) {
          for (size_t i = 0; i < gqa.value_dim; ++i)
            attended[t][h * gqa.value_dim + i] +=
                shares[s - first] / sum * value[s][kv_head * gqa.value_dim + i];
        }
      }
    }
    return product(attended, prefix_ + "attn_output.weight", 0, file_.spec().dim);
  }

  // The expert-th of a stack, or the only one.
  PlainRows mlp(const PlainRows& in, const std::string& kind, size_t expert, bool gated = true) const {
    const TensorEntry& up = *file_.find(prefix_ + "ffn_up" + kind + ".weight");
    const size_t width = up.shape[up.shape.size() - 2], dim = file_.spec().dim;
    const PlainRows ups = product(in, up.name, expert * width, width);
    PlainRows hidden =
        gated ? product(in, prefix_ + "ffn_gate" + kind + ".weight", expert * width, width) : ups;
    for (size_t t = 0; t < hidden.size(); ++t) {
      for (size_t i = 0; i < width; ++i) hidden[t][i] *= sigmoid(hidden[t][i]) * (gated ? ups[t][i] : 1);
    }
    return product(hidden, prefix_ + "ffn_down" + kind + ".weight", expert * dim, dim);
  }

  PlainRows shared(const DenseMlpSpec& spec, const PlainRows& in) const {
    PlainRows out = mlp(in, spec.suffix, 0);
    if (!spec.gated_output) return out;
    const PlainRows gates = product(in, prefix_ + "ffn_gate_inp" + spec.suffix + ".weight", 0, 1);
    for (size_t t = 0; t < out.size(); ++t)
      for (double& value : out[t]) value *= sigmoid(gates[t][0]);
    return out;
  }

  PlainRows mixture(const ExpertMlpSpec& spec, const PlainRows& in) const {
    const PlainRows scores = product(in, prefix_ + "ffn_gate_inp.weight", 0, spec.count);
    const std::string bias = prefix_ + "exp_probs_b.bias";
    const std::vector<double> biases = file_.find(bias) ? file_.values(bias) : std::vector<double>();
    PlainRows out(in.size(), std::vector<double>(in.front().size()));
    for (size_t t = 0; t < in.size(); ++t) {
      const std::vector<double> shares = plain_shares(spec, scores[t], biases);
      for (size_t e = 0; e < spec.count; ++e) {
        if (shares[e] == 0) continue;
        PlainRows row = {in[t]};
        const bool scaled = spec.share_use == ShareUse::of_inputs;
        for (double& value : row[0]) value *= scaled ? shares[e] : 1;
        const PlainRows result = mlp(row, "_exps", e);
        for (size_t i = 0; i < out[t].size(); ++i) out[t][i] += (scaled ? 1 : shares[e]) * result[0][i];
      }
    }
    return out;
  }

  const MadeFile& file_;
  std::span<const TokenId> tokens_;
  std::string prefix_;
  std::map<size_t, PlainRows> keys_, values_;  // by layer that has its own
};

}  // namespace

MadeFile::MadeFile(const Metadata& metadata, const std::function<void(ModelSpec&)>& change, DType products)
    : ModelFile("made") {
  metadata_ = metadata;
  ModelSpec measures;
  measures.vocab = uint32_t(metadata.number("llama.vocab_size"));
  measures.dim = uint32_t(metadata.number("llama.embedding_length"));
  const Role embedding = model_roles(measures).embedding;
  make(embedding, products);
  spec_ = read_model_spec(*this);
  if (change) change(spec_);
  for (const Role& role : all_roles(spec_)) {
    if (role.presence == Presence::required && role.tensor != embedding.tensor)
      make(role, role.kind == RoleKind::product ? products : DType::f32);
  }
}

void MadeFile::add(const ModelSpec& spec) {
  for (const Role& role : all_roles(spec)) {
    if (role.presence == Presence::required && find(role.tensor) == nullptr) make(role, DType::f32);
  }
}

void MadeFile::set(const std::string& name, const std::vector<float>& values) {
  std::vector<std::byte>& bytes = bytes_.at(name);
  CHECK(bytes.size() == values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
}

void MadeFile::make(const Role& role, DType type) {
  if (role.below > 0) return make_numbers(role);
  TensorEntry tensor{role.tensor, type, role.shape, 0};
  const size_t rows = rows_of(tensor), cols = tensor.shape.back();
  std::vector<std::byte>& bytes = bytes_[tensor.name];
  bytes.resize(rows * row_bytes(type, cols));
  const bool norm = tensor.name.ends_with("norm.weight");
  const float scale = norm ? 0.2f : role.kind == RoleKind::vector ? 0.5f : 2.0f / std::sqrt(float(cols));
  std::vector<float> values(cols);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < cols; ++i)
      values[i] = (norm ? 1.0f : 0.0f) + scale * drawn(tensor.name, uint32_t(row * cols + i));
    if (tensor.name.ends_with(".ssm_a")) {  // rates of decay
      for (float& value : values) value = -std::abs(value);
    }
    quantize_row(type, values, bytes.data() + row * row_bytes(type, cols));
  }
  tensor.bytes = bytes.size();
  add_tensor(std::move(tensor));
}

void MadeFile::make_numbers(const Role& role) {
  TensorEntry tensor{role.tensor, DType::i32, role.shape, 0};
  std::vector<std::byte>& bytes = bytes_[tensor.name];
  tensor.bytes = rows_of(tensor) * tensor.shape.back() * sizeof(int32_t);
  bytes.resize(tensor.bytes);
  for (size_t row = 0, at = 0; row < rows_of(tensor); ++row) {
    for (size_t i = 0; i < tensor.shape.back(); ++i, at += sizeof(int32_t)) {  // no two of a row the same
      const int32_t number = int32_t((row * 5 + i) % role.below);
      std::memcpy(bytes.data() + at, &number, sizeof(number));
    }
  }
  add_tensor(std::move(tensor));
}

std::vector<double> MadeFile::values(const std::string& name) const {
  const TensorEntry& tensor = *find(name);
  const size_t rows = rows_of(tensor), cols = tensor.shape.back();
  std::vector<float> values(rows * cols);
  for (size_t row = 0; row < rows; ++row) {
    dequantize_row(tensor.dtype, bytes_.at(name).data() + row * row_bytes(tensor.dtype, cols),
                   std::span(values).subspan(row * cols, cols));
  }
  return {values.begin(), values.end()};
}

void MadeFile::clear(const std::string& name) {
  std::ranges::fill(bytes_.at(name), std::byte(0));
}

void MadeFile::make_optional(const std::string& name) {
  for (const Role& role : all_roles(spec_)) {
    if (role.presence == Presence::optional && role.tensor.ends_with("." + name)) make(role, DType::f32);
  }
}

void MadeFile::write(const std::string& path) const {
  GgufWriter writer(path, metadata_, tensors());
  for (const TensorEntry& tensor : tensors()) writer.append(bytes_.at(tensor.name));
  writer.finish();
}

Metadata small_llama() {
  Metadata metadata("made");
  metadata.set("general.architecture", std::string("llama"));
  const std::pair<const char*, uint64_t> kCounts[] = {
      {"block_count", 4},          {"context_length", 256},     {"embedding_length", 32},
      {"feed_forward_length", 48}, {"attention.head_count", 4}, {"attention.head_count_kv", 2},
      {"vocab_size", 40},
  };
  for (const auto& [key, value] : kCounts) metadata.set(std::string("llama.") + key, value);
  return metadata;
}

Metadata small_compressed() {
  Metadata metadata("made");
  metadata.set("general.architecture", std::string("deepseek4"));
  const std::pair<const char*, uint64_t> kCounts[] = {
      {"block_count", 4},
      {"context_length", 1024},
      {"embedding_length", 32},
      {"attention.head_count", 4},
      {"attention.head_count_kv", 1},
      {"attention.key_length", 16},
      {"attention.value_length", 16},
      {"attention.q_lora_rank", 12},
      {"attention.output_group_count", 2},
      {"attention.output_lora_rank", 8},
      {"attention.sliding_window", 10},
      {"attention.indexer.head_count", 8},
      {"attention.indexer.key_length", 8},
      {"attention.indexer.top_k", 5},
      {"rope.dimension_count", 4},
      {"expert_count", 6},
      {"expert_used_count", 2},
      {"expert_feed_forward_length", 16},
      {"expert_shared_count", 1},
      {"hash_layer_count", 1},
      {"hyper_connection.count", 3},
      {"hyper_connection.sinkhorn_iterations", 5},
      {"vocab_size", 40},
  };
  for (const auto& [key, value] : kCounts) metadata.set(std::string("deepseek4.") + key, value);
  metadata.set("deepseek4.attention.compress_ratios", std::vector<uint64_t>{0, 4, 128, 4});
  metadata.set("deepseek4.swiglu_clamp_exp", std::vector<double>{0.5, 0.5, 0.5, 0.5});
  metadata.set("llama.vocab_size", uint64_t(40));
  metadata.set("llama.embedding_length", uint64_t(32));
  return metadata;
}

std::vector<double> plain_logits(const MadeFile& file, std::span<const TokenId> tokens,
                                 const PlainBlock& toy_mixer, const PlainBlock& toy_mlp) {
  return PlainModel(file, tokens).logits(toy_mixer, toy_mlp);
}

}  // namespace quire
