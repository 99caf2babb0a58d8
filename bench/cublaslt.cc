#include <cstdlib>
#include <string>

#include <cublasLt.h>
#include <dlfcn.h>

#include "cuda_yardsticks.h"

namespace quire::cuda {

// What is used of the library, by its names.
struct CublasLt::Library {
  void* handle = nullptr;
  cublasLtHandle_t context = nullptr;
  DeviceBuffer workspace{64u << 20};

  template <class Function>
  Function* at(Function*, const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle, name));
  }
};

#define CUBLASLT(name) library_->at(static_cast<decltype(&name)>(nullptr), #name)

std::optional<CublasLt> CublasLt::find() {
  std::vector<std::string> names;
  if (const char* named = std::getenv("QUIRE_CUBLASLT")) names.push_back(named);
  for (const char* name :
       {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so.12"}) {
    names.push_back(name);
  }
  const auto library_ = std::make_shared<Library>();
  for (const std::string& name : names) {
    library_->handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_->handle != nullptr) break;
  }
  if (library_->handle == nullptr) return std::nullopt;
  if (CUBLASLT(cublasLtCreate)(&library_->context) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return CublasLt(library_);
}

double CublasLt::best_ms(const Shape& shape, const void* weight, const void* activations, void* out,
                         cudaStream_t stream) {
  cublasLtMatmulDesc_t product;
  CUBLASLT(cublasLtMatmulDescCreate)(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CUBLASLT(cublasLtMatmulDescSetAttribute)
  (product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  cublasLtMatrixLayout_t a, b, c;
  CUBLASLT(cublasLtMatrixLayoutCreate)(&a, CUDA_R_16BF, shape.cols, shape.rows, shape.cols);
  CUBLASLT(cublasLtMatrixLayoutCreate)(&b, CUDA_R_16BF, shape.cols, shape.tokens, shape.cols);
  CUBLASLT(cublasLtMatrixLayoutCreate)(&c, CUDA_R_16BF, shape.rows, shape.tokens, shape.rows);
  cublasLtMatmulPreference_t preference;
  CUBLASLT(cublasLtMatmulPreferenceCreate)(&preference);
  const size_t bytes = library_->workspace.bytes();
  CUBLASLT(cublasLtMatmulPreferenceSetAttribute)
  (preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
  cublasLtMatmulHeuristicResult_t found[6];
  int count = 0;
  CUBLASLT(cublasLtMatmulAlgoGetHeuristic)
  (library_->context, product, a, b, c, c, preference, 6, found, &count);
  const float one = 1, zero = 0;
  double best = 1e30;
  for (int i = 0; i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const double ms = time_median(stream, [&] {
      CUBLASLT(cublasLtMatmul)
      (library_->context, product, &one, weight, a, activations, b, &zero, out, c, out, c, &found[i].algo,
       library_->workspace.data(), bytes, stream);
    });
    best = std::min(best, ms);
  }
  return best;
}

}  // namespace quire::cuda
