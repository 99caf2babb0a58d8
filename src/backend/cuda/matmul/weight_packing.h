#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/matmul/weight_layout.h"
#include "tensor/tensor_view.h"

// From the bytes of a model file to weight_layout.h, on the host. The device has a kernel that writes the same bytes
// faster; this is what it is compared with.

namespace quire::cuda {

// Which rows of the source become rows 0, 1, ... of the weight. Empty: all, in order.
using RowOrder = std::vector<uint32_t>;

// Gates and ups of a hidden layer as weight_layout.h says, from a source that has all gates before all ups. REQUIRES: width % 8 == 0.
RowOrder gated_rows(uint32_t width);

WeightShape packed_shape(const MatrixView& source, const RowOrder& order);

// Of several matrices with their rows one after the other. REQUIRES: one type, as many columns each.
WeightShape packed_shape(std::span<const MatrixView> sources, const RowOrder& order);

std::vector<std::byte> pack_on_host(const MatrixView& source, const RowOrder& order);

// Types that the device cannot read, as rows of bf16 that it can; rounded once.
bool device_reads(DType dtype);
std::vector<uint16_t> rows_as_bf16(const MatrixView& source);
void write_rows_as_bf16(const MatrixView& source, uint16_t* rows);  // [rows, cols]

// The weight (row, k) that a packed weight holds, by plain arithmetic: what the dequantization of every kernel must
// give, a bf16.
float packed_value(const WeightShape& shape, std::span<const std::byte> packed, uint32_t row, uint32_t k);

}  // namespace quire::cuda
