#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace quire {

// A row to f32: exactly what the format's definition says. REQUIRES: out.size() is a multiple of the block
// and `in` holds row_bytes(dtype, out.size()) bytes; `in` need not be aligned.
void dequantize_row(DType dtype, const std::byte* in, std::span<float> out);

// Whether there is a search for the type's codes: for all but i32 and those with code books.
bool is_writable(DType dtype);

// A row to `dtype`, which is writable, with the least error the format's search finds; the same bytes on every machine. In the block formats, which cannot hold them, NaN counts as zero and what is
// too large as the largest value the format has.
void quantize_row(DType dtype, std::span<const float> in, std::byte* out);

}  // namespace quire
