#include "model/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr float kLeastNormal = 0x1p-14f, kLargest = 65504.0f;  // of f16

bool is_exact(float value) {
  return f16_to_f32(f32_to_f16(value)) == value;
}

// Rounded to f16 it keeps eleven bits, or all it has.
bool is_near(float value) {
  const float magnitude = std::fabs(value);
  return (magnitude >= kLeastNormal && magnitude <= kLargest) || is_exact(value);
}

// What the codes and scales of a matrix are like.
struct Needs {
  float lowest = 0, highest = 0;  // code
  bool whole = true, offsets = false;
  bool in_blocks = true;      // groups are made of blocks of 32
  bool near = true;           // scales and offsets
  bool exact_offsets = true;  // and their scales: an offset moves values by more than a scale does
  float largest = 0;          // magnitude of a value, or more

  void add(const PackedMatrix& matrix) {
    whole = whole && matrix.has_whole_codes;
    in_blocks = in_blocks && matrix.group % 32 == 0;
    PackedRow row;
    for (uint64_t r = 0; r < matrix.rows; ++r) {
      matrix.read_range(r, row);
      const auto [low, high] = std::ranges::minmax(row.codes);
      lowest = std::min(lowest, low);
      highest = std::max(highest, high);
      const float code = std::max(-low, high);
      for (size_t g = 0; g < row.scales.size(); ++g) {
        near = near && is_near(row.scales[g]);
        exact_offsets = exact_offsets && is_exact(row.scales[g]);
        largest = std::max(largest, std::fabs(row.scales[g]) * code);
      }
      for (const float offset : row.offsets) {
        offsets = true;
        exact_offsets = exact_offsets && is_exact(offset);
        largest = std::max(largest, std::fabs(offset));
      }
    }
  }

  bool fits(float low, float high) const { return lowest >= low && highest <= high; }

  DType choose() const {
    const DType wide = largest <= kLargest / 2 ? DType::f16 : DType::f32;
    if (!whole || !in_blocks) return wide;
    if (offsets) {
      if (!exact_offsets) return wide;
      return fits(0, 15) ? DType::q4_1 : fits(0, 31) ? DType::q5_1 : wide;
    }
    if (!near) return wide;
    if (fits(-8, 7)) return DType::q4_0;
    if (fits(-16, 15)) return DType::q5_0;
    return fits(-128, 127) ? DType::q8_0 : wide;
  }
};

template <class Format>
void write_blocks(const PackedRow& row, uint64_t group, std::byte* bytes) {
  uint8_t* out = reinterpret_cast<uint8_t*>(bytes);
  for (size_t col = 0; col < row.codes.size(); col += Format::kValues, out += Format::kBytes) {
    Codes32 block;
    block.scale = row.scales[col / group];
    block.offset = row.offsets.empty() ? 0.0f : row.offsets[col / group];
    for (size_t i = 0; i < Format::kValues; ++i) block.codes[i] = int8_t(row.codes[col + i]);
    Format::pack(block, out);
  }
}

// The half byte of a code.
uint8_t half(float code) {
  uint8_t index = 0;
  while (format::Mxfp4::code(index) < int(std::fabs(code))) ++index;
  return uint8_t(index | (code < 0 ? 8 : 0));
}

// Scales are powers of two, 2^-128 the least.
void write_mxfp4(const PackedRow& row, std::byte* bytes) {
  uint8_t* out = reinterpret_cast<uint8_t*>(bytes);
  for (size_t col = 0; col < row.codes.size(); col += format::Mxfp4::kValues, out += format::Mxfp4::kBytes) {
    out[0] = uint8_t(std::ilogb(row.scales[col / format::Mxfp4::kValues]) + 128);
    for (size_t i = 0; i < 16; ++i)
      out[1 + i] = uint8_t(half(row.codes[col + i]) | half(row.codes[col + i + 16]) << 4);
  }
}

void write_nvfp4(const PackedRow& row, std::span<const std::byte> scales, std::byte* bytes) {
  using format::Nvfp4;
  uint8_t* out = reinterpret_cast<uint8_t*>(bytes);
  for (size_t col = 0; col < row.codes.size(); col += Nvfp4::kValues, out += Nvfp4::kBytes) {
    for (size_t j = 0; j < Nvfp4::kValues / Nvfp4::kSubValues; ++j) {
      out[j] = uint8_t(scales[col / Nvfp4::kSubValues + j]);
      const float* codes = row.codes.data() + col + Nvfp4::kSubValues * j;
      for (size_t i = 0; i < 8; ++i) out[4 + 8 * j + i] = uint8_t(half(codes[i]) | half(codes[i + 8]) << 4);
    }
  }
}

// Blocks of four scales, none of which has a sign or is no number.
bool fits_nvfp4(const PackedMatrix* matrix) {
  if (matrix->common_scale == 0 || matrix->cols % format::Nvfp4::kValues != 0) return false;
  for (uint64_t row = 0; row < matrix->rows; ++row) {
    const auto scales = matrix->short_scales(row);
    if (std::ranges::any_of(scales, [](std::byte bits) { return uint8_t(bits) >= 0x7f; })) return false;
  }
  return true;
}

}  // namespace

DType type_of_packed(std::span<const PackedMatrix* const> parts) {
  if (std::ranges::all_of(parts, &PackedMatrix::is_mxfp4)) return DType::mxfp4;
  if (std::ranges::all_of(parts, fits_nvfp4)) return DType::nvfp4;
  Needs needs;
  for (const PackedMatrix* part : parts) needs.add(*part);
  return needs.choose();
}

void write_packed_row(const PackedMatrix& matrix, uint64_t row, DType dtype, std::byte* out,
                      PackedLoss& loss) {
  thread_local PackedRow packed;
  thread_local std::vector<float> values, written;
  packed.offsets.clear();  // of another matrix
  matrix.read(row, packed);
  values.resize(matrix.cols);
  for (uint64_t i = 0; i < matrix.cols; ++i) {
    const float value = packed.scales[i / matrix.group] * packed.codes[i];
    values[i] = packed.offsets.empty() ? value : value + packed.offsets[i / matrix.group];
  }
  switch (dtype) {
    case DType::q4_0:
      write_blocks<format::Q4_0>(packed, matrix.group, out);
      break;
    case DType::q4_1:
      write_blocks<format::Q4_1>(packed, matrix.group, out);
      break;
    case DType::q5_0:
      write_blocks<format::Q5_0>(packed, matrix.group, out);
      break;
    case DType::q5_1:
      write_blocks<format::Q5_1>(packed, matrix.group, out);
      break;
    case DType::q8_0:
      write_blocks<format::Q8_0>(packed, matrix.group, out);
      break;
    case DType::mxfp4:
      write_mxfp4(packed, out);
      break;
    case DType::nvfp4:
      return write_nvfp4(packed, matrix.short_scales(row), out);  // as it is
    default:
      CHECK(traits(dtype).block_values == 1);
      quantize_row(dtype, values, out);
  }
  written.resize(matrix.cols);
  dequantize_row(dtype, out, written);
  for (uint64_t i = 0; i < matrix.cols; ++i) {
    const double error = double(written[i]) - double(values[i]);
    loss.values += double(values[i]) * double(values[i]);
    loss.errors += error * error;
  }
}

}  // namespace quire
