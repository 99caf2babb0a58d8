#include "model/hf_folder.h"

#include <cmath>

#include <fmt/format.h>

namespace quire {

HfFolder::HfFolder(const std::string& path)
    : ModelFile(path),
      config_(read_hf_config(path)),
      files_(path),
      packed_(find_packed(files_, config_.quantization)) {
  add_hf_values(files_, config_);
  metadata_ = config_.metadata;
  sources_ = plan_hf_tensors(files_, packed_, config_, path);
  for (const HfTensor& source : sources_) add_tensor(source.entry);
  // Configs speak of layers that predict further tokens, and files may have left them out.
  if (find(fmt::format("blk.{}.nextn.eh_proj.weight", config_.layers)) == nullptr) return;
  const std::string architecture(config_.family->architecture);
  metadata_.set(architecture + ".block_count", config_.layers + config_.more_layers);
  metadata_.set(architecture + ".nextn_predict_layers", config_.more_layers);
}

TensorData HfFolder::load(const TensorEntry& entry) const {
  PackedLoss loss;
  TensorData data = load_hf_tensor(sources_[index_of(entry)], config_, loss);
  if (loss.errors > 0) {
    const std::lock_guard lock(mutex_);
    Lossy& lossy = lossy_[entry.dtype];
    ++lossy.tensors;
    lossy.loss.values += loss.values;
    lossy.loss.errors += loss.errors;
  }
  return data;
}

std::vector<std::string> HfFolder::losses() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> sentences;
  for (const auto& [dtype, lossy] : lossy_) {
    if (config_.quantization.method.empty()) {
      sentences.push_back(fmt::format(
          "{}: {} tensors are multiplied as config.json says and kept as {}, which moves their values by "
          "{:.2g} % (root mean square)",
          path_, lossy.tensors, traits(dtype).name, 100 * std::sqrt(lossy.loss.errors / lossy.loss.values)));
      continue;
    }
    sentences.push_back(
        fmt::format("{}: {} tensors quantized by {} are kept as {}, which moves their values by {:.2g} % "
                    "(root mean square)",
                    path_, lossy.tensors, config_.quantization.method, traits(dtype).name,
                    100 * std::sqrt(lossy.loss.errors / lossy.loss.values)));
  }
  return sentences;
}

std::vector<std::span<const std::byte>> HfFolder::stored(const TensorEntry& entry) const {
  std::vector<std::span<const std::byte>> pieces;
  for (const HfPart& part : sources_[index_of(entry)].parts) {
    if (part.packed != nullptr) {
      pieces.insert(pieces.end(), part.packed->stored.begin(), part.packed->stored.end());
      continue;
    }
    pieces.push_back(part.data->bytes);
    if (part.scale != nullptr) pieces.push_back(part.scale->bytes);
  }
  return pieces;
}

}  // namespace quire
