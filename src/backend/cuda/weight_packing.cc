#include "backend/cuda/weight_packing.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace quire::cuda {
namespace {

// 32 neighbours of a row as a block stores them.
struct Group {
  uint16_t scale = 0, min = 0;
  uint8_t codes[kGroupK] = {};
};

uint16_t stored_scale(float scale) {
  return f32_to_bf16(bf16_to_f32(f32_to_bf16(scale)) * kStoredScale);
}

template <class Format>
Group simple_group(const uint8_t* row, uint32_t index, int bias) {
  Codes32 codes;
  Format::unpack(row + size_t(index) * Format::kBytes, codes);
  Group group;
  group.scale = stored_scale(codes.scale);
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = uint8_t(codes.codes[i] + bias);
  return group;
}

Group q4_k_group(const uint8_t* row, uint32_t index) {
  Codes256 codes;
  format::Q4_K::unpack(row + size_t(index) / 8 * format::Q4_K::kBytes, codes);
  const uint32_t sub = index % 8;
  const float min = codes.min_scale * float(codes.sub_mins[sub]);
  Group group;
  group.scale = stored_scale(codes.scale * float(codes.sub_scales[sub]));
  group.min = f32_to_bf16(-bf16_to_f32(f32_to_bf16(min)) * kStoredMin);
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = uint8_t(codes.codes[sub * kGroupK + i]);
  return group;
}

Group read_group(WeightFormat format, const uint8_t* row, uint32_t index) {
  switch (format) {
    case WeightFormat::q8_0:
      return simple_group<format::Q8_0>(row, index, 128);
    case WeightFormat::q4_0:
      return simple_group<format::Q4_0>(row, index, 8);
    default:
      return q4_k_group(row, index);
  }
}

template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

template <class T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::byte* block_of(const WeightShape& shape, std::byte* packed, uint32_t row, uint32_t k) {
  const size_t index = size_t(row) / kTileRows * shape.blocks() + k / kBlockK;
  return packed + index * block_bytes(shape.format);
}

void write_group(const WeightShape& shape, std::byte* packed, uint32_t row, uint32_t index,
                 const Group& group) {
  std::byte* block = block_of(shape, packed, row, index * kGroupK);
  const uint32_t in_tile = row % kTileRows, in_block = index % (kBlockK / kGroupK);
  std::byte* scale = block + scale_place(shape.format, in_tile, in_block);
  put(scale, group.scale);
  if (shape.format == WeightFormat::q4_k) put(scale + 4, group.min);
  for (uint32_t i = 0; i < kGroupK; ++i) {
    const CodePlace place = code_place(shape.format, in_tile, in_block * kGroupK + i);
    block[place.byte] |= std::byte(group.codes[i] << place.shift);
  }
}

void write_bf16_row(const WeightShape& shape, std::byte* packed, uint32_t row,
                    std::span<const float> values) {
  for (uint32_t k = 0; k < values.size(); ++k) {
    const CodePlace place = code_place(WeightFormat::bf16, row % kTileRows, k % kBlockK);
    put(block_of(shape, packed, row, k) + place.byte, f32_to_bf16(values[k]));
  }
}

// Rounded once: what f32 cannot hold leaves a mark in its last bit, so that no tie appears that was none.
float nearest_bf16(double value) {
  float cut = float(value);
  if (std::abs(double(cut)) > std::abs(value)) cut = std::nextafter(cut, 0.0f);
  uint32_t bits = std::bit_cast<uint32_t>(cut);
  if (double(cut) != value) bits |= 1;
  return bf16_to_f32(f32_to_bf16(std::bit_cast<float>(bits)));
}

}  // namespace

RowOrder interleaved_halves(uint32_t rows, uint32_t period) {
  CHECK(period % 2 == 0 && rows % period == 0);
  RowOrder order(rows);
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t in_period = row % period;
    order[row] = row - in_period + in_period / 2 + in_period % 2 * (period / 2);
  }
  return order;
}

WeightShape packed_shape(const MatrixView& source, const RowOrder& order) {
  return {format_for(source.dtype), uint32_t(order.empty() ? source.rows : order.size()),
          uint32_t(source.cols)};
}

std::vector<std::byte> pack_on_host(const MatrixView& source, const RowOrder& order) {
  const WeightShape shape = packed_shape(source, order);
  const bool plain = shape.format == WeightFormat::bf16;
  std::vector<std::byte> packed(shape.bytes());
  std::vector<float> values(plain ? source.cols : 0);
  const uint32_t groups = shape.blocks() * (kBlockK / kGroupK);
  for (uint32_t row = 0; row < shape.padded_rows(); ++row) {
    const std::byte* from = row < shape.rows ? source.row(order.empty() ? row : order[row]) : nullptr;
    if (plain) {
      if (from == nullptr) continue;
      dequantize_row(source.dtype, from, values);
      write_bf16_row(shape, packed.data(), row, values);
      continue;
    }
    for (uint32_t index = 0; index < groups; ++index) {
      Group group;
      if (from != nullptr && index * kGroupK < source.cols) {
        group = read_group(shape.format, reinterpret_cast<const uint8_t*>(from), index);
      }
      write_group(shape, packed.data(), row, index, group);
    }
  }
  return packed;
}

bool device_reads(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 ||
         format_for(dtype) != WeightFormat::bf16;
}

std::vector<uint16_t> rows_as_bf16(const MatrixView& source) {
  std::vector<uint16_t> rows(source.rows * source.cols);
  std::vector<float> values(source.cols);
  for (size_t row = 0; row < source.rows; ++row) {
    dequantize_row(source.dtype, source.row(row), values);
    for (size_t k = 0; k < source.cols; ++k) rows[row * source.cols + k] = f32_to_bf16(values[k]);
  }
  return rows;
}

float packed_value(const WeightShape& shape, std::span<const std::byte> packed, uint32_t row, uint32_t k) {
  const std::byte* block = block_of(shape, const_cast<std::byte*>(packed.data()), row, k);
  const uint32_t in_tile = row % kTileRows, in_block = k % kBlockK;
  const CodePlace place = code_place(shape.format, in_tile, in_block);
  if (shape.format == WeightFormat::bf16) return bf16_to_f32(get<uint16_t>(block + place.byte));
  const int mask = shape.format == WeightFormat::q8_0 ? 255 : 15;
  const int code = int(get<uint8_t>(block + place.byte) >> place.shift & mask) - code_bias(shape.format);
  const std::byte* at = block + scale_place(shape.format, in_tile, in_block / kGroupK);
  const double scale = double(bf16_to_f32(get<uint16_t>(at))) / double(kStoredScale);
  const double min = shape.format == WeightFormat::q4_k
                         ? double(bf16_to_f32(get<uint16_t>(at + 4))) / double(kStoredMin)
                         : 0;
  return nearest_bf16(scale * code + min);
}

}  // namespace quire::cuda
