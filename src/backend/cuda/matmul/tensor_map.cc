#include "backend/cuda/matmul/tensor_map.h"

#include "backend/cuda/device_memory.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Asked of the runtime, so that the program starts on machines without a driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                              &result));
  if (function == nullptr)
    throw Error("NVIDIA's driver has no tensor maps; install one for CUDA 12 or later.");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap make_tensor_map(const HalfTensor& tensor) {
  static const Encode encode = find_encode();
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const cuuint32_t rank = cuuint32_t(tensor.sizes.size());
  CHECK(rank <= 5 && tensor.strides_bytes.size() + 1 == rank && tensor.box.size() == rank);
  cuuint64_t sizes[5], strides[5];
  cuuint32_t box[5];
  std::copy(tensor.sizes.begin(), tensor.sizes.end(), sizes);
  std::copy(tensor.strides_bytes.begin(), tensor.strides_bytes.end(), strides);
  std::copy(tensor.box.begin(), tensor.box.end(), box);
  CUtensorMap map;
  // Bits are copied as they are, so f16 is served by the same type.
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void*>(tensor.data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(
        "A tensor of rank {} cannot be copied by the device (error {}): its address and strides must be "
        "multiples of 16 bytes.",
        rank, int(result));
  return map;
}

}  // namespace quire::cuda
