#include "model/stand_in.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/gguf_writer.h"
#include "model/synth_vocabulary.h"

namespace quire {
namespace {

constexpr const char* kParagraph =
    "I am only a stand-in: a model with one layer that knows this paragraph by heart and answers everything "
    "with it. "
    "Still, each word you read went the whole way of any token. Your prompt was put into a chat template, "
    "cut into "
    "tokens and computed in one prefill; its keys and values lie in pages of the KV cache, and every further "
    "word is a "
    "decode step that reads them. For an answer that makes sense, give me a model file of your own: quire "
    "run -m "
    "FILE.gguf, with a prompt.";

constexpr uint32_t kDim = 256;  // one direction per token of the paragraph
constexpr uint32_t kHeadDim = 64;
constexpr float kCertainty = 30;  // the logit of the next token; the others have 0

// The paragraph as tokens that are all different, so that each has one successor: a word that came before is joined to
// the one after it.
std::vector<std::string> pieces() {
  std::vector<std::string> pieces;
  std::istringstream words(kParagraph);
  std::string piece;
  for (std::string word; words >> word;) {
    piece += (pieces.empty() && piece.empty() ? "" : "\u0120") +
             word;  // how byte-level vocabularies spell a space
    if (std::find(pieces.begin(), pieces.end(), piece) != pieces.end()) continue;
    pieces.push_back(std::exchange(piece, {}));
  }
  CHECK(piece.empty() && pieces.size() + 2 <= kDim);
  return pieces;
}

}  // namespace

void write_stand_in_model(const std::string& out) {
  const std::vector<std::string> paragraph = pieces();
  const SynthVocabulary vocabulary = make_synth_vocabulary(paragraph);
  const uint32_t vocab = uint32_t(vocabulary.tokens.size());

  Metadata metadata("house");
  metadata.set("general.architecture", std::string("llama"));
  metadata.set("general.name", std::string("house (stand-in)"));
  metadata.set("general.sampling.temp", 0.0);
  metadata.set("llama.block_count", uint64_t(1));
  metadata.set("llama.context_length", uint64_t(4096));
  metadata.set("llama.embedding_length", uint64_t(kDim));
  metadata.set("llama.feed_forward_length", uint64_t(kDim));
  metadata.set("llama.attention.head_count", uint64_t(kDim / kHeadDim));
  metadata.set("llama.attention.head_count_kv", uint64_t(1));
  metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5);
  metadata.set("llama.rope.dimension_count", uint64_t(kHeadDim));
  metadata.set("llama.vocab_size", uint64_t(vocab));
  set_vocabulary(vocabulary, metadata);

  // Direction 0 is where every token outside the paragraph points; direction i + 1 belongs to its i-th piece.
  std::vector<float> embedding(size_t(vocab) * kDim, 0.0f);
  std::vector<float> head(size_t(vocab) * kDim, 0.0f);
  for (uint32_t token = 0; token < vocab; ++token) {
    const bool inside = token >= vocabulary.first_word && token < vocabulary.first_word + paragraph.size();
    embedding[size_t(token) * kDim + (inside ? token - vocabulary.first_word + 1 : 0)] = 1.0f;
  }
  const float row_norm = std::sqrt(float(kDim));  // what the norm makes of a row with a single 1
  for (uint32_t i = 0; i < paragraph.size(); ++i) {
    head[size_t(vocabulary.first_word + i) * kDim + i] = kCertainty / row_norm;
  }
  head[size_t(vocabulary.eos) * kDim + paragraph.size()] = kCertainty / row_norm;

  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    std::vector<float> values;
  };
  const auto filled = [](uint64_t rows, uint64_t cols, float value) {
    return std::vector<float>(rows * cols, value);
  };
  const std::vector<Tensor> tensors = {
      {"token_embd.weight", {vocab, kDim}, std::move(embedding)},
      {"output_norm.weight", {kDim}, filled(1, kDim, 1)},
      {"output.weight", {vocab, kDim}, std::move(head)},
      {"blk.0.attn_norm.weight", {kDim}, filled(1, kDim, 1)},
      {"blk.0.attn_q.weight", {kDim, kDim}, filled(kDim, kDim, 0)},
      {"blk.0.attn_k.weight", {kHeadDim, kDim}, filled(kHeadDim, kDim, 0)},
      {"blk.0.attn_v.weight", {kHeadDim, kDim}, filled(kHeadDim, kDim, 0)},
      {"blk.0.attn_output.weight", {kDim, kDim}, filled(kDim, kDim, 0)},
      {"blk.0.ffn_norm.weight", {kDim}, filled(1, kDim, 1)},
      {"blk.0.ffn_gate.weight", {kDim, kDim}, filled(kDim, kDim, 0)},
      {"blk.0.ffn_up.weight", {kDim, kDim}, filled(kDim, kDim, 0)},
      {"blk.0.ffn_down.weight", {kDim, kDim}, filled(kDim, kDim, 0)},
  };
  std::vector<TensorEntry> entries;
  for (const Tensor& tensor : tensors) {
    entries.push_back({tensor.name, DType::f32, tensor.shape, tensor.values.size() * sizeof(float)});
  }
  GgufWriter writer(out, metadata, entries);
  for (const Tensor& tensor : tensors) writer.append(std::as_bytes(std::span(tensor.values)));
  writer.finish();
}

}  // namespace quire
