#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/model_file.h"

namespace quire {

inline constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF"
inline constexpr uint32_t kGgufVersion = 3;
inline constexpr uint64_t kGgufAlignment = 32;  // unless general.alignment says otherwise

// The kinds of metadata values, by their number in the file.
enum class GgufValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};

// The number by which a GGUF file names a tensor's type. REQUIRES: GGUF has `dtype` (it has no f8_e4m3).
uint32_t gguf_type_id(DType dtype);

struct GgufTensor {
  TensorEntry entry;
  uint64_t offset;  // of its first byte, from the start of the file
};

struct GgufHead {
  Metadata metadata;
  std::vector<GgufTensor> tensors;
};

// Reads the head of a whole file in memory (version 2 or 3, little-endian) and checks it against the file's
// size: every tensor is in range, aligned, and overlaps no other. Throws Error naming `path` otherwise.
// Memory is bounded by a small multiple of the file's size, whatever its counts say.
GgufHead parse_gguf(std::span<const std::byte> file, const std::string& path);

// A model in one GGUF file, or in several that gguf-split made (opened through the first). Mapped, not read.
class GgufFile : public ModelFile {
 public:
  explicit GgufFile(const std::string& path);

  TensorData load(const TensorEntry& entry) const override;
  std::vector<std::span<const std::byte>> stored(const TensorEntry& entry) const override;

 private:
  void append(MappedFile file, GgufHead head);
  void append_splits(uint64_t count);

  std::vector<MappedFile> files_;
  std::vector<std::span<const std::byte>> contents_;  // by place in tensors()
};

}  // namespace quire
