// The driver of tools/check_formats.py: it reads blocks and values from a folder and writes what this program
// makes of them, so that another implementation of the formats can be compared. Skipped without the folder.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/quantize.h"

namespace quire {
namespace {

template <class T>
std::vector<T> read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<T> values(std::filesystem::file_size(path) / sizeof(T));
  file.read(reinterpret_cast<char*>(values.data()), std::streamsize(values.size() * sizeof(T)));
  return values;
}

template <class T>
void write_all(const std::filesystem::path& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), std::streamsize(values.size() * sizeof(T)));
}

TEST(FormatFiles, AreConvertedWhereAFolderIsGiven) {
  const char* folder = std::getenv("QUIRE_FORMATS_DIR");
  if (folder == nullptr) GTEST_SKIP() << "QUIRE_FORMATS_DIR is not set";
  const std::filesystem::path root = folder;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const DType dtype = DType(i);
    const std::string name(traits(dtype).name);
    if (std::filesystem::exists(root / (name + ".blocks"))) {
      const auto blocks = read_all<std::byte>(root / (name + ".blocks"));
      std::vector<float> values(blocks.size() / traits(dtype).block_bytes * traits(dtype).block_values);
      dequantize_row(dtype, blocks.data(), values);
      write_all(root / (name + ".blocks.f32"), values);
    }
    if (std::filesystem::exists(root / "values") && is_writable(dtype)) {
      const auto values = read_all<float>(root / "values");
      std::vector<std::byte> blocks(row_bytes(dtype, values.size()));
      quantize_row(dtype, values, blocks.data());
      write_all(root / (name + ".quantized"), blocks);
    }
  }
}

}  // namespace
}  // namespace quire
