#include "model/hf_folder.h"

namespace quire {

HfFolder::HfFolder(const std::string& path) : ModelFile(path), config_(read_hf_config(path)), files_(path) {
  add_hf_values(files_, config_);
  metadata_ = config_.metadata;
  sources_ = plan_hf_tensors(files_, config_, path);
  for (const HfTensor& source : sources_) add_tensor(source.entry);
}

TensorData HfFolder::load(const TensorEntry& entry) const {
  return load_hf_tensor(sources_[index_of(entry)], config_);
}

std::vector<std::span<const std::byte>> HfFolder::stored(const TensorEntry& entry) const {
  std::vector<std::span<const std::byte>> pieces;
  for (const HfPart& part : sources_[index_of(entry)].parts) {
    pieces.push_back(part.data->bytes);
    if (part.scale != nullptr) pieces.push_back(part.scale->bytes);
  }
  return pieces;
}

}  // namespace quire
