#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace quire {

// A row of a packed matrix: value[i] = scales[i / group] * codes[i], plus offsets[i / group] if there are any. Codes are whole
// numbers but for tables of floats.
struct PackedRow {
  std::vector<float> codes;    // [cols]
  std::vector<float> scales;   // [cols / group]
  std::vector<float> offsets;  // [cols / group], or empty
};

// A matrix of a folder that has fewer bits than its type says, whatever the scheme: what it stands for, row by row. A view of the
// mapped files.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;

  std::string name;                                // of its first tensor
  uint64_t rows = 0, cols = 0;                     // as the model has it
  uint64_t group = 0;                              // columns that share a scale; divides cols
  bool has_whole_codes = true;                     // so that a block format may hold them
  bool is_mxfp4 = false;                           // codes and scales are those of its blocks
  float common_scale = 0;                          // of NVFP4: what all scales are multiplied with; else 0
  std::vector<std::span<const std::byte>> stored;  // all of its bytes

  virtual void read(uint64_t row, PackedRow& out) const = 0;
  // Scales, offsets and the range of codes alone, if that takes less than reading all; codes may be the ends of it.
  virtual void read_range(uint64_t row, PackedRow& out) const { read(row, out); }
  // Of NVFP4: the scales of a row as E4M3, before what they are multiplied with.
  virtual std::span<const std::byte> short_scales(uint64_t) const { return {}; }
};

// Which type holds what these matrices, parts of one tensor, stand for: a block format that has the same numbers if there is one, or
// one whose scales are theirs rounded to 11 bits, if group and codes allow; else f16 or, for what is too small or large for that, f32.
// Of nvfp4 the common scales are to stand beside it.
DType type_of_packed(std::span<const PackedMatrix* const> parts);

// What rounding cost: sums of squares.
struct PackedLoss {
  double values = 0, errors = 0;
};
// A row as `dtype`, which type_of_packed chose. Adds what is lost.
void write_packed_row(const PackedMatrix& matrix, uint64_t row, DType dtype, std::byte* out,
                      PackedLoss& loss);

}  // namespace quire
