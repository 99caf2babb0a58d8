#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "golden_model.h"

namespace quire {

// A model of random weights, made in memory for any spec: it has every tensor that the spec's roles require.
class MadeFile : public ModelFile {
 public:
  // The spec is read from the metadata, and then changed.
  explicit MadeFile(const Metadata& metadata, const std::function<void(ModelSpec&)>& change = {},
                    DType products = DType::f32);

  TensorData load(const TensorEntry& entry) const override { return {bytes_.at(entry.name), nullptr}; }
  std::vector<std::span<const std::byte>> stored(const TensorEntry& entry) const override {
    return {bytes_.at(entry.name)};
  }

  const ModelSpec& spec() const { return spec_; }
  // As they are once rounded to their type.
  std::vector<double> values(const std::string& name) const;
  // All that another spec of the same file requires.
  void add(const ModelSpec& spec);
  void set(const std::string& name, const std::vector<float>& values);
  // Gives `name` what `from` of the same shape has.
  void copy(const std::string& name, const std::string& from) { bytes_[name] = bytes_.at(from); }
  void clear(const std::string& name);
  // Gives every layer that may have it the optional tensor of that name: "exp_probs_b.bias".
  void make_optional(const std::string& name);
  // As a GGUF file.
  void write(const std::string& path) const;

 private:
  void make(const Role& role, DType type);
  void make_numbers(const Role& role);

  ModelSpec spec_;
  std::map<std::string, std::vector<std::byte>> bytes_;
};

// A llama of 4 layers, width 32, 4 heads of 8, 2 of them with keys and values, an MLP of 48, a vocabulary of 40.
Metadata small_llama();
// A DeepSeek V4 of 4 layers, width 32, 4 heads of 16, a window of 10, rows of four tokens in two layers and of 128 in one; experts of tokens
// in the first.
Metadata small_compressed();

// What one mixer or MLP makes of the normed stream, [tokens][dim]; nothing: what its spec says.
using PlainRows = std::vector<std::vector<double>>;
using PlainBlock = std::function<PlainRows(size_t layer, const PlainRows& in)>;

// Logits of every token, computed in double, one loop after the other, by the letter of the spec: attention with a rope of
// halves or pairs or none, norms of heads, windows, chunks and growing queries; MLPs with silu, gated or not, experts chosen in every
// way; norms of both kinds before each, one after the other or side by side. [tokens, vocab]
std::vector<double> plain_logits(const MadeFile& file, std::span<const TokenId> tokens,
                                 const PlainBlock& toy_mixer = {}, const PlainBlock& toy_mlp = {});

}  // namespace quire
