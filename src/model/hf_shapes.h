#pragma once

#include <string>
#include <string_view>

#include "model/hf_tensors.h"

namespace quire {

// From the shapes in the file: the shape and type of a tensor whose parts are known. FP8 becomes bf16 where that has the same numbers, which
// it has where all scales are powers of two, and f32 elsewhere. `has_scales_name`: another tensor has the name that its scales would have.
void finish_hf_tensor(HfTensor& tensor, const HfConfig& config, const std::string& folder,
                      bool has_scales_name);

// What the scales of NVFP4 are called.
std::string scales_name_of(const HfTensor& tensor);

inline bool is_hf_fp8(const SafetensorsTensor& tensor) {
  return tensor.type == SafetensorsType::f8_e4m3 || tensor.type == SafetensorsType::f8_e5m2;
}

[[noreturn]] void refuse_hf_tensor(const SafetensorsTensor& tensor, const std::string& folder,
                                   std::string_view why);

}  // namespace quire
