#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/metadata.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace quire {

// One tensor of a file. Shapes are outermost first: a matrix is [rows, cols], stacked experts [experts, rows,
// cols].
struct TensorEntry {
  std::string name;  // GGUF's name, e.g. "blk.0.attn_q.weight"
  DType dtype = DType::f32;
  std::vector<uint64_t> shape;
  size_t bytes = 0;
};

// The contents of a tensor: a view into the mapped file, or a copy that had to be made (`owned`).
struct TensorData {
  std::span<const std::byte> bytes;
  std::shared_ptr<const Buffer> owned;
};

// A model on disk, in one dialect: metadata keys, tensor names and row order are GGUF's (as llama.cpp's
// converter writes them), whether it is a .gguf file or a Hugging Face folder. Reading the head is cheap;
// tensors stay on disk until loaded. Everything was checked against the file's size when it was opened.
class ModelFile {
 public:
  virtual ~ModelFile() = default;

  const std::string& path() const { return path_; }
  const Metadata& metadata() const { return metadata_; }
  std::span<const TensorEntry> tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;
  // Of a matrix of NVFP4 what all its values are multiplied with, or those of each of its experts: "X.scale" beside "X.weight". Null if
  // there is none.
  const TensorEntry* scale_of(const TensorEntry& entry) const;
  std::vector<float> scales_of(const TensorEntry& entry) const;  // empty if there are none

  // REQUIRES: `entry` is one of tensors(). The view lives as long as this file or `owned`.
  virtual TensorData load(const TensorEntry& entry) const = 0;

  // The bytes that a tensor is made from, as the files have them: nothing is converted, and nothing read but what is
  // looked at. REQUIRES: as load().
  virtual std::vector<std::span<const std::byte>> stored(const TensorEntry& entry) const = 0;

  // What loading has rounded so far, as sentences.
  virtual std::vector<std::string> losses() const { return {}; }

  // The folder of a Hugging Face model (tokenizer.json and the rest are there); empty for a GGUF file.
  virtual std::string folder() const { return {}; }

 protected:
  explicit ModelFile(std::string path) : path_(std::move(path)), metadata_(path_) {}

  void add_tensor(TensorEntry entry);  // throws Error if the name is taken
  size_t index_of(const TensorEntry& entry) const;

  std::string path_;
  Metadata metadata_;

 private:
  std::vector<TensorEntry> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> place in tensors_
};

// A name from a file as an error message shows it: quoted, its odd bytes escaped, cut where it is too long.
std::string in_quotes(std::string_view name);

// Opens a .gguf file (the first one of a split model) or a folder with config.json and *.safetensors.
std::unique_ptr<ModelFile> open_model_file(const std::string& path);

}  // namespace quire
