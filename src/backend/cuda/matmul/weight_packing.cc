#include "backend/cuda/matmul/weight_packing.h"

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
  uint16_t scales[2] = {}, min = 0;  // of 16 each
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
  group.scales[0] = group.scales[1] = stored_scale(codes.scale);
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = uint8_t(codes.codes[i] + bias);
  return group;
}

// Half bytes as they are. A scale beyond 2^61, which no weight has, becomes infinite.
Group mxfp4_group(const uint8_t* row, uint32_t index) {
  const uint8_t* block = row + size_t(index) * format::Mxfp4::kBytes;
  Group group;
  group.scales[0] = group.scales[1] = f32_to_bf16(format::Mxfp4::half_power(block[0]) * (2 * kStoredPower));
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = block[1 + i % 16] >> (i / 16 * 4) & 15;
  return group;
}

Group q4_k_group(const uint8_t* row, uint32_t index) {
  Codes256 codes;
  format::Q4_K::unpack(row + size_t(index) / 8 * format::Q4_K::kBytes, codes);
  const uint32_t sub = index % 8;
  const float min = codes.min_scale * float(codes.sub_mins[sub]);
  Group group;
  group.scales[0] = group.scales[1] = stored_scale(codes.scale * float(codes.sub_scales[sub]));
  group.min = f32_to_bf16(-bf16_to_f32(f32_to_bf16(min)) * kStoredMin);
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = uint8_t(codes.codes[sub * kGroupK + i]);
  return group;
}

Group q6_k_group(const uint8_t* row, uint32_t index) {
  Codes256 codes;
  format::Q6_K::unpack(row + size_t(index) / 8 * format::Q6_K::kBytes, codes);
  const uint32_t sub = index % 8 * 2;
  Group group;
  for (uint32_t i = 0; i < 2; ++i) {
    group.scales[i] = stored_scale(codes.scale * float(codes.sub_scales[sub + i]));
  }
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = uint8_t(codes.codes[sub * 16 + i] + 32);
  return group;
}

Group read_group(WeightFormat format, const uint8_t* row, uint32_t index) {
  switch (format) {
    case WeightFormat::q8_0:
      return simple_group<format::Q8_0>(row, index, 128);
    case WeightFormat::q4_0:
      return simple_group<format::Q4_0>(row, index, 8);
    case WeightFormat::q6_k:
      return q6_k_group(row, index);
    case WeightFormat::mxfp4:
      return mxfp4_group(row, index);
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
  for (uint32_t i = 0; i < 2; ++i) {
    std::byte* scale = block + scale_place(shape.format, in_tile, in_block * kGroupK + i * kGroupK / 2);
    put(scale, group.scales[i]);
    if (shape.format == WeightFormat::q4_k) put(scale + 4, group.min);
  }
  for (uint32_t i = 0; i < kGroupK; ++i) {
    for (uint32_t bit = 0; bit < code_bits(shape.format); ++bit) {
      const uint32_t place = code_bit(shape.format, in_tile, in_block * kGroupK + i, bit);
      block[place / 8] |= std::byte((group.codes[i] >> bit & 1) << place % 8);
    }
  }
}

void write_bf16_row(const WeightShape& shape, std::byte* packed, uint32_t row,
                    std::span<const float> values) {
  for (uint32_t k = 0; k < values.size(); ++k) {
    const uint32_t place = code_bit(WeightFormat::bf16, row % kTileRows, k % kBlockK, 0);
    put(block_of(shape, packed, row, k) + place / 8, f32_to_bf16(values[k]));
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

RowOrder gated_rows(uint32_t width) {
  CHECK(width % 8 == 0);
  RowOrder order(size_t{2} * width);
  for (uint32_t pair = 0; pair < width; ++pair) {
    const uint32_t column = gated_column(pair, width);
    order[gate_row(pair)] = column;
    order[gate_row(pair) + kUpAfterGate] = width + column;
  }
  return order;
}

WeightShape packed_shape(const MatrixView& source, const RowOrder& order) {
  return packed_shape(std::span(&source, 1), order);
}

WeightShape packed_shape(std::span<const MatrixView> sources, const RowOrder& order) {
  CHECK(!sources.empty());
  size_t rows = 0;
  for (const MatrixView& source : sources) {
    CHECK(source.dtype == sources[0].dtype && source.cols == sources[0].cols);
    rows += source.rows;
  }
  if (!order.empty()) rows = order.size();
  return {format_for(sources[0].dtype), uint32_t(rows), uint32_t(sources[0].cols)};
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

void write_rows_as_bf16(const MatrixView& source, uint16_t* rows) {
  std::vector<float> values(source.cols);
  for (size_t row = 0; row < source.rows; ++row) {
    dequantize_row(source.dtype, source.row(row), values);
    for (size_t k = 0; k < source.cols; ++k) rows[row * source.cols + k] = f32_to_bf16(values[k]);
  }
}

std::vector<uint16_t> rows_as_bf16(const MatrixView& source) {
  std::vector<uint16_t> rows(source.rows * source.cols);
  write_rows_as_bf16(source, rows.data());
  return rows;
}

float packed_value(const WeightShape& shape, std::span<const std::byte> packed, uint32_t row, uint32_t k) {
  const std::byte* block = block_of(shape, const_cast<std::byte*>(packed.data()), row, k);
  const uint32_t in_tile = row % kTileRows, in_block = k % kBlockK;
  if (shape.format == WeightFormat::bf16) {
    return bf16_to_f32(get<uint16_t>(block + code_bit(shape.format, in_tile, in_block, 0) / 8));
  }
  uint32_t code = 0;
  for (uint32_t bit = 0; bit < code_bits(shape.format); ++bit) {
    const uint32_t place = code_bit(shape.format, in_tile, in_block, bit);
    code |= (uint32_t(block[place / 8]) >> place % 8 & 1) << bit;
  }
  const std::byte* at = block + scale_place(shape.format, in_tile, in_block);
  const double scale = double(bf16_to_f32(get<uint16_t>(at))) / double(stored_scale_factor(shape.format));
  const double min = shape.format == WeightFormat::q4_k
                         ? double(bf16_to_f32(get<uint16_t>(at + 4))) / double(kStoredMin)
                         : 0;
  return nearest_bf16(scale * double(code_value(shape.format, code)) + min);
}

}  // namespace quire::cuda
