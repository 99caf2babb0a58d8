#include "backend/cuda/device_weights.h"

#include <vector>

#include "backend/cuda/operations.h"
#include "base/error.h"
#include "tensor/quantize.h"

namespace quire::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kStagingBytes = size_t(64) << 20;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void DeviceWeights::expect(size_t bytes) {
  together_.clear();
  if (bytes > 0) piece_ = {std::make_shared<DeviceBuffer>(bytes), 0};
}

std::shared_ptr<const Buffer> DeviceWeights::take(size_t bytes) {
  if (piece_.memory == nullptr || piece_.used + bytes > piece_.memory->bytes()) expect(bytes);
  std::byte* data = piece_.memory->as<std::byte>() + piece_.used;
  piece_.used += aligned(bytes);
  return std::make_shared<const Buffer>(data, bytes, MemoryKind::device,
                                        [owner = piece_.memory](std::byte*) {});
}

PackStaging DeviceWeights::staging() {
  if (staging_.bytes() == 0) staging_ = DeviceBuffer(kStagingBytes);
  return {staging_.as<uint8_t>(), staging_.bytes(), &copies()};
}

WeightCopies& DeviceWeights::copies() {
  if (copies_ == nullptr) copies_ = std::make_unique<WeightCopies>();
  return *copies_;
}

size_t DeviceWeights::bytes_for(const MatrixView& weight, const WeightUse& use) const {
  switch (use.kind) {
    case WeightUse::product: {
      const MatrixView one{nullptr, weight.dtype, weight.rows / use.stacked, weight.cols};
      return aligned(use.stacked * packed_shape(one, {}).bytes());
    }
    case WeightUse::table:
      return aligned(can_embed(weight.dtype) ? weight.bytes() : weight.rows * weight.cols * sizeof(float));
    case WeightUse::vector:
      break;
  }
  return aligned(weight.rows * weight.cols * sizeof(float));
}

Weight DeviceWeights::add(const Weight& weight, const WeightUse& use, cudaStream_t stream) {
  Weight result = weight;
  result.packed = take(bytes_for(weight.view, use));
  result.view.data = result.packed->data();
  auto* memory = reinterpret_cast<uint8_t*>(result.packed->data());
  if (use.kind == WeightUse::product && use.stacked > 1) {
    experts_[result.view.data] =
        pack_experts({&weight.view, 1}, uint32_t(use.stacked), {}, staging(), memory, stream);
    return result;
  }
  if (use.kind == WeightUse::product) {
    packed_[result.view.data] = pack({&weight.view, 1}, {}, staging(), memory, stream);
    return result;
  }
  std::vector<float> converted;
  const std::byte* from = weight.view.data;
  const bool as_floats = use.kind == WeightUse::vector || !can_embed(weight.view.dtype);
  if (as_floats && weight.view.dtype != DType::f32) {
    converted.resize(weight.view.rows * weight.view.cols);
    for (size_t row = 0; row < weight.view.rows; ++row)
      dequantize_row(weight.view.dtype, weight.view.row(row),
                     {&converted[row * weight.view.cols], weight.view.cols});
    from = reinterpret_cast<const std::byte*>(converted.data());
    result.view.dtype = DType::f32;
  }
  copies().copy(memory, from, result.view.bytes(), stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return result;
}

void DeviceWeights::add_gated(Weight& gate, Weight& up, const WeightUse& use, cudaStream_t stream) {
  const MatrixView sources[] = {gate.view, up.view};
  const size_t width = gate.view.rows / use.stacked;
  const bool alike = gate.view.dtype == up.view.dtype && gate.view.rows == up.view.rows && width % 8 == 0;
  if (!alike && use.stacked > 1)
    throw Error(
        "the gates and ups of the experts are of different types or their width is no multiple of 8, which "
        "the "
        "GPU's kernels do not take");
  if (!alike) {
    gate = add(gate, use, stream);
    up = add(up, use, stream);
    return;
  }
  const RowOrder order = gated_rows(uint32_t(width));
  const WeightShape shape = use.stacked > 1 ? expert_shape(sources, uint32_t(use.stacked), order)
                                            : packed_shape(std::span<const MatrixView>(sources), order);
  gate.packed = take(shape.bytes() * use.stacked);
  up.packed = std::make_shared<const Buffer>(gate.packed->data(), 0, MemoryKind::device,
                                             [both = gate.packed](std::byte*) {});
  gate.view.data = up.view.data = gate.packed->data();
  auto* memory = reinterpret_cast<uint8_t*>(gate.packed->data());
  if (use.stacked > 1) {
    experts_[gate.view.data] = pack_experts(sources, uint32_t(use.stacked), order, staging(), memory, stream);
  } else {
    packed_[gate.view.data] = pack(sources, order, staging(), memory, stream);
  }
}

const PackedWeight* DeviceWeights::together(std::span<const Projection> projections) {
  const std::byte* first = projections.front().weight.view.data;
  const auto [entry, is_new] = together_.try_emplace(first);
  PackedWeight& whole = entry->second;
  if (!is_new) return whole.data == nullptr ? nullptr : &whole;
  WeightShape shape = packed(projections.front().weight).shape;
  const std::byte* next = first + shape.bytes();
  for (const Projection& one : projections.subspan(1)) {
    const PackedWeight& part = packed(one.weight);
    if (one.weight.view.data != next || part.shape.format != shape.format || shape.rows % kRowPadding != 0)
      return nullptr;
    shape.rows += part.shape.rows;
    next += part.shape.bytes();
  }
  whole = packed_at(shape, reinterpret_cast<const uint8_t*>(first));
  return &whole;
}

}  // namespace quire::cuda
