#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace quire {

// How the numbers of a safetensors tensor are stored. Types that no model here uses are read as `other`: they
// can be listed and ignored.
enum class SafetensorsType : uint8_t { f32, f16, bf16, f8_e4m3, f8_e5m2, f8_e8m0, u8, i8, i32, i64, other };

struct SafetensorsEntry {
  SafetensorsType type = SafetensorsType::other;
  std::string type_name;  // as the file writes it: "BF16"
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // from the start of the file
  uint64_t bytes = 0;
};

using SafetensorsIndex = std::map<std::string, SafetensorsEntry, std::less<>>;

// Reads the head of a whole file in memory and checks it against the file's size: every tensor is in range,
// has the bytes its shape says, and overlaps no other. Throws Error naming `path` otherwise.
SafetensorsIndex parse_safetensors(std::span<const std::byte> file, const std::string& path);

// One tensor of a folder, still on disk.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::other;
  std::string type_name;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

// All tensors of a folder's *.safetensors files: of those that model.safetensors.index.json lists, or of
// model.safetensors, or of all there are. Mapped, not read.
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::string& folder);

  const std::map<std::string, SafetensorsTensor, std::less<>>& tensors() const { return tensors_; }
  const SafetensorsTensor* find(std::string_view name) const;

 private:
  std::vector<MappedFile> files_;
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
};

}  // namespace quire
