#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model_file.h"

namespace quire {

// How much the columns of a model's matrices matter: the mean of the squares that activations have there. Kept in the files that
// llama.cpp's imatrix writes, of which both kinds are read and the newer, a GGUF file, is written.
class Importance {
 public:
  // A tensor's, of experts each by itself.
  struct Entry {
    std::vector<float> squares;  // [matrices, columns], summed over tokens
    std::vector<float> tokens;   // [matrices]

    uint64_t columns() const { return squares.size() / tokens.size(); }
  };

  // Throws Error if the file is neither kind, cut short, or holds what is no sum of squares.
  static Importance read(const std::string& path);
  static Importance parse(std::span<const std::byte> file, const std::string& path);

  explicit Importance(std::string path) : path_(std::move(path)) {}
  // REQUIRES: the entry has tokens, and as many squares for each.
  void set(std::string tensor, Entry entry);
  // `text`: the name of what was read.
  void write(const std::string& path, const std::string& text, uint64_t parts, uint64_t part_tokens) const;

  // The squares of one of a tensor's matrices, 1 on average and none so small that its column is given up. Empty: nothing is known.
  // Throws Error if the tensor has another shape than the one that was looked at.
  std::vector<float> of(const TensorEntry& tensor, uint64_t matrix) const;

  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace quire
