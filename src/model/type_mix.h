#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_file.h"

namespace quire {

// Which type each tensor of a model gets when it is written as, say, q4_k_m: matrices the main type, those
// that suffer most a finer one, vectors and routers f32. The same mixes as the files people download.
class TypeMix {
 public:
  // "q4_0", "q4_k_m", "q4_k_s", "f16", ...; throws Error listing what is known.
  explicit TypeMix(std::string_view name);

  // `layers` is the model's number of layers; `tied` says that the embedding is the head too.
  DType type_for(const TensorEntry& tensor, uint32_t layers, bool tied) const;

  const std::string& name() const { return name_; }
  uint32_t file_type() const;  // GGUF's general.file_type

  static std::vector<std::string> known();

 private:
  std::string name_;
  DType main_ = DType::f32;
  bool more_bits_ = false;  // part of value and down get a finer type (the _m mixes)
};

}  // namespace quire
