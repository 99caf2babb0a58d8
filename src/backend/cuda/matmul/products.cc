#include "backend/cuda/matmul/products.h"

#include <algorithm>
#include <type_traits>

#include <cudaTypedefs.h>

#include "backend/cuda/matmul/packing_kernels.h"
#include "backend/cuda/matmul/product_kernels.h"
#include "backend/cuda/weight_copies.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

// The driver's function, found at run time: a program that links the driver does not start without one.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw Error("The NVIDIA driver does not know tensor maps; install one for CUDA 13.");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

// A weight as [tile of 16 rows][stage of k][bytes of a stage] in words of 8 bytes, of which one copy brings the
// stages of eight tiles. A box has at most 256 words to a side, so a stage of Q8_0 is two halves.
CUtensorMap weight_map(const WeightShape& shape, const uint8_t* data) {
  const uint64_t stage_bytes = uint64_t(block_bytes(shape.format)) * tile_stage_k(shape.format) / kBlockK;
  const uint64_t halves = stage_bytes / 8 > 256 ? 2 : 1, words = stage_bytes / 8 / halves;
  const uint64_t stages = uint64_t(shape.blocks()) * kBlockK / tile_stage_k(shape.format);
  const cuuint64_t sizes[4] = {words, halves, stages, shape.tiles()};
  const cuuint64_t strides[3] = {words * 8, stage_bytes, stages * stage_bytes};
  const cuuint32_t box[4] = {cuuint32_t(words), cuuint32_t(halves), 1, kTileProductRows / kTileRows};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 4, const_cast<uint8_t*>(data), sizes,
                           strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error("The NVIDIA driver refused the tensor map of a weight of {} rows and {} columns (error {}).",
                shape.rows, shape.cols, int(result));
  }
  return map;
}

// Of packs that bring none. Larger ones are not faster.
constexpr size_t kStagingBytes = size_t{64} << 20;

DeviceTraits current_device() {
  return {compute_capability(), uint32_t(multiprocessors())};
}

// Over all token counts: narrow tiles are many, wide ones large.
size_t largest_sums(const ProductWorkspace::Limits& limits, const DeviceTraits& device) {
  size_t largest = 0;
  for (const uint32_t width : {32u, 64u, 128u, 192u}) {
    // Fewer tiles than multiprocessors are shared, and no weight has more of them than its rows make.
    const size_t row_tiles = (size_t(limits.rows) + kTileProductRows - 1) / kTileProductRows + 1;
    const size_t token_tiles = (size_t(limits.tokens) + width - 1) / width;
    const size_t tiles = std::min<size_t>(device.multiprocessors, row_tiles * token_tiles);
    largest = std::max(largest, tiles * 4 * kTileProductRows * width * 4);
  }
  return largest;
}

template <WeightFormat kFormat, class Output>
void launch_kernel(ProductKernel kernel, const ProductCall<Output>& call) {
  switch (kernel) {
    case ProductKernel::plain:
      return launch_plain<kFormat>(call);
    case ProductKernel::stream:
      return launch_stream<kFormat>(call);
    case ProductKernel::tile:
      return launch_tile<kFormat>(call);
  }
}

}  // namespace

ProductWorkspace::ProductWorkspace(const Limits& limits)
    : device_(current_device()),
      sums_(device_.capability == 90 ? largest_sums(limits, device_) : 0),
      counters_(size_t(device_.multiprocessors) * sizeof(uint32_t)),
      scales_(size_t(limits.tokens) * sizeof(float)) {
  counters_.fill(0);
}

PackedWeight packed_at(const WeightShape& shape, const uint8_t* data) {
  PackedWeight weight = {shape, data, {}};
  if (compute_capability() == 90) weight.map = weight_map(shape, data);
  return weight;
}

namespace {

// The rows of a source, as they are or as bf16, come to the staging.
void bring_rows(const MatrixView& rows, DType dtype, const PackStaging& staging, cudaStream_t stream) {
  const size_t row_size = row_bytes(dtype, rows.cols), bytes = rows.rows * row_size;
  const auto convert = [&](std::byte* at, size_t begin, size_t end) {
    write_rows_as_bf16(rows.slice(begin / row_size, (end - begin) / row_size),
                       reinterpret_cast<uint16_t*>(at));
  };
  if (staging.copies != nullptr) {
    if (dtype == rows.dtype) return staging.copies->copy(staging.data, rows.data, bytes, stream);
    return staging.copies->copy_made(staging.data, bytes, row_size, convert, stream);
  }
  std::vector<std::byte> converted(dtype == rows.dtype ? 0 : bytes);
  if (!converted.empty()) convert(converted.data(), 0, bytes);
  const std::byte* from = converted.empty() ? rows.data : converted.data();
  CUDA_CHECK(cudaMemcpyAsync(staging.data, from, bytes, cudaMemcpyDefault, stream));
  if (!converted.empty()) CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace

PackedWeight pack(std::span<const MatrixView> sources, const RowOrder& order, const PackStaging& staging,
                  uint8_t* destination, cudaStream_t stream) {
  const WeightShape shape = packed_shape(sources, order);
  const DeviceBuffer rows = order.empty() ? DeviceBuffer() : DeviceBuffer::of(order);
  CUDA_CHECK(cudaMemsetAsync(destination, 0, shape.bytes(), stream));  // the padding
  const DType dtype = device_reads(sources[0].dtype) ? sources[0].dtype : DType::bf16;
  const size_t row_size = row_bytes(dtype, shape.cols), most = staging.bytes / row_size;
  CHECK(most > 0);
  uint32_t first = 0;
  for (const MatrixView& source : sources) {
    for (size_t begin = 0; begin < source.rows; begin += most) {
      const MatrixView piece = source.slice(begin, std::min(most, source.rows - begin));
      bring_rows(piece, dtype, staging, stream);
      const SourceRows staged = {dtype, staging.data, first + uint32_t(begin), uint32_t(piece.rows)};
      pack_on_device(shape, staged, rows.as<uint32_t>(), destination, stream);
    }
    first += uint32_t(source.rows);
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return packed_at(shape, destination);
}

PackedWeight pack(const MatrixView& source, const RowOrder& order, uint8_t* destination,
                  cudaStream_t stream) {
  const DType dtype = device_reads(source.dtype) ? source.dtype : DType::bf16;
  const size_t row_size = row_bytes(dtype, source.cols);
  const DeviceBuffer staged(std::clamp<size_t>(kStagingBytes / row_size, 1, source.rows) * row_size);
  return pack(std::span(&source, 1), order, {staged.as<uint8_t>(), staged.bytes()}, destination, stream);
}

void write_activations(const float* rows, size_t stride, const ActivationBlock& block, cudaStream_t stream) {
  write_activations_on_device(rows, stride, block.tokens, block.cols, block.data, stream);
}

namespace {

template <class Output>
void launch_output(ProductKernel kernel, const ProductCall<Output>& call) {
  CHECK(call.activations.tokens > 0 && call.activations.cols == call.weight.shape.cols);
  switch (call.weight.shape.format) {
    case WeightFormat::bf16:
      return launch_kernel<WeightFormat::bf16>(kernel, call);
    case WeightFormat::q8_0:
      return launch_kernel<WeightFormat::q8_0>(kernel, call);
    case WeightFormat::q4_0:
      return launch_kernel<WeightFormat::q4_0>(kernel, call);
    case WeightFormat::q4_k:
      return launch_kernel<WeightFormat::q4_k>(kernel, call);
    case WeightFormat::q6_k:
      return launch_kernel<WeightFormat::q6_k>(kernel, call);
    case WeightFormat::mxfp4:
      return launch_kernel<WeightFormat::mxfp4>(kernel, call);
  }
}

// An output as the kernels know it.
template <class Output>
const Output& as_kernels_know(const Output& output, const WeightShape&) {
  return output;
}

StoreParts as_kernels_know(const StoreRows& output, const WeightShape& shape) {
  StoreParts parts;
  parts.parts[0] = {output.out, output.stride, output.bias, shape.rows};
  return parts;
}

StoreParts as_kernels_know(const ScaledRows& output, const WeightShape& shape) {
  StoreParts parts;
  parts.scales = output.scales;
  parts.parts[0] = {output.out, output.stride, nullptr, shape.rows};
  return parts;
}

template <class Output>
void check_output(const Output&, const WeightShape&) {}

void check_output(const StoreParts& output, const WeightShape& shape) {
  uint32_t rows = 0;
  for (const RowsPart& part : output.parts) {
    CHECK(part.rows == 0 || rows % kTileRows == 0);
    rows += part.rows;
  }
  CHECK(rows == shape.rows);
}

}  // namespace

template <class Output>
void product_by(ProductKernel kernel, const PackedWeight& weight, const ActivationBlock& activations,
                const Output& output, const ProductWorkspace& workspace, cudaStream_t stream) {
  const auto& known = as_kernels_know(output, weight.shape);
  check_output(known, weight.shape);
  launch_output(kernel, ProductCall<std::remove_cvref_t<decltype(known)>>{weight, activations, known,
                                                                          workspace, stream});
}

template <class Output>
void product(const PackedWeight& weight, const ActivationBlock& activations, const Output& output,
             const ProductWorkspace& workspace, cudaStream_t stream) {
  product_by(choose_kernel(workspace.device(), activations.tokens), weight, activations, output, workspace,
             stream);
}

#define QUIRE_INSTANTIATE(Output)                                                                            \
  template void product(const PackedWeight&, const ActivationBlock&, const Output&, const ProductWorkspace&, \
                        cudaStream_t);                                                                       \
  template void product_by(ProductKernel, const PackedWeight&, const ActivationBlock&, const Output&,        \
                           const ProductWorkspace&, cudaStream_t);
QUIRE_CUDA_OUTPUTS(QUIRE_INSTANTIATE)
QUIRE_INSTANTIATE(StoreRows)
QUIRE_INSTANTIATE(ScaledRows)

}  // namespace quire::cuda
