#include "backend/cuda/matmul/weight_layout.h"

namespace quire::cuda {

WeightFormat format_for(DType dtype) {
  switch (dtype) {
    case DType::q8_0:
      return WeightFormat::q8_0;
    case DType::q4_0:
      return WeightFormat::q4_0;
    case DType::q4_k:
      return WeightFormat::q4_k;
    case DType::q6_k:
      return WeightFormat::q6_k;
    case DType::mxfp4:
      return WeightFormat::mxfp4;
    default:
      return WeightFormat::bf16;
  }
}

const char* name(WeightFormat format) {
  static constexpr const char* kNames[kWeightFormatCount] = {"bf16", "q8_0", "q4_0", "q4_k", "q6_k", "mxfp4"};
  return kNames[size_t(format)];
}

}  // namespace quire::cuda
