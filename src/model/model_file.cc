#include "model/model_file.h"

#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/error.h"
#include "model/gguf.h"
#include "model/hf_folder.h"

namespace quire {

void ModelFile::add_tensor(TensorEntry entry) {
  if (!index_.emplace(entry.name, tensors_.size()).second)
    throw Error("{}: two tensors are named {}", path_, in_quotes(entry.name));
  tensors_.push_back(std::move(entry));
}

size_t ModelFile::index_of(const TensorEntry& entry) const {
  CHECK(&entry >= tensors_.data() && &entry < tensors_.data() + tensors_.size());
  return size_t(&entry - tensors_.data());
}

const TensorEntry* ModelFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorEntry* ModelFile::scale_of(const TensorEntry& entry) const {
  constexpr std::string_view kEnding = ".weight";
  if (entry.dtype != DType::nvfp4 || !entry.name.ends_with(kEnding)) return nullptr;
  return find(entry.name.substr(0, entry.name.size() - kEnding.size()) + ".scale");
}

std::vector<float> ModelFile::scales_of(const TensorEntry& entry) const {
  const TensorEntry* scale = scale_of(entry);
  if (scale == nullptr) return {};
  const size_t count = scale->shape.size() == 1 ? scale->shape[0] : 0;
  const bool fits = count == 1 || (entry.shape.size() == 3 && count == entry.shape[0]);
  if (scale->dtype != DType::f32 || !fits)
    throw Error("{}: the tensor {} is neither one f32 scale nor one for each expert", path_, scale->name);
  const TensorData data = load(*scale);
  std::vector<float> scales(count);
  std::memcpy(scales.data(), data.bytes.data(), count * sizeof(float));
  return scales;
}

std::string in_quotes(std::string_view name) {
  constexpr size_t kLongest = 100;
  std::string text = "\"";
  for (const char c : name.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\')
      text += c;
    else
      text += fmt::format("\\x{:02x}", uint8_t(c));
  }
  return text + (name.size() > kLongest ? "...\"" : "\"");
}

std::unique_ptr<ModelFile> open_model_file(const std::string& path) {
  if (!std::filesystem::exists(path)) throw Error("{} does not exist", path);
  if (std::filesystem::is_directory(path)) return std::make_unique<HfFolder>(path);
  return std::make_unique<GgufFile>(path);
}

}  // namespace quire
