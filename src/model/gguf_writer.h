#pragma once

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model_file.h"

namespace quire {

// Writes a GGUF file as a stream: the head at once, then the bytes of one tensor after another, so that a
// model need never be whole in memory. The file appears under its name only when it is complete. Throws Error
// if the disk does not take it.
//
// Metadata values get the types that readers of GGUF files expect: whole numbers are 32 bits wide where they
// fit, signed if they were read as signed; real numbers are float32.
class GgufWriter {
 public:
  // `tensors` in the order in which their bytes will be appended. REQUIRES: GGUF has their types, and
  // `bytes` of each is what its shape says.
  GgufWriter(const std::string& path, const Metadata& metadata, std::span<const TensorEntry> tensors);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // The next bytes, of the first tensor that is not complete. REQUIRES: they do not reach beyond its end.
  void append(std::span<const std::byte> bytes);

  // Gives the file its name. REQUIRES: all tensors are complete.
  void finish();

 private:
  void write(const void* data, size_t bytes);
  void pad();

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::string partial_path_;  // where it is written until it is finished
  std::unique_ptr<std::FILE, Close> file_;
  uint64_t position_ = 0;
  uint64_t alignment_;
  std::vector<uint64_t> sizes_;  // of the tensors
  size_t current_ = 0;           // the tensor that is being written
  uint64_t written_ = 0;         // of the current tensor; less than its size
};

// Writes a whole model as one GGUF file: metadata and tensors as `model` has them.
void write_gguf(const std::string& path, const ModelFile& model);

}  // namespace quire
