#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace quire {

// A row to f32: exactly what the format's definition says. REQUIRES: out.size() is a multiple of the block
// and `in` holds row_bytes(dtype, out.size()) bytes; `in` need not be aligned.
void dequantize_row(DType dtype, const std::byte* in, std::span<float> out);

// Whether values can be written in the type: in all but i32.
bool is_writable(DType dtype);
// Whether what is written is worthless where nothing is known of what matters: the smallest types with code books.
bool needs_importance(DType dtype);
// Whether its codes stand for rows of a code book: IQ3_S and smaller.
bool has_book(DType dtype);

// A row to `dtype`, which is writable, with the least error the format's search finds; the same bytes on every machine. In the block formats, which cannot hold them, NaN counts as zero and what is
// too large as the largest value the format has. `importance`: how much an error of each value matters, positive and 1 on average; or
// nothing, which is as if all mattered alike.
void quantize_row(DType dtype, std::span<const float> in, std::byte* out,
                  std::span<const float> importance = {});

}  // namespace quire
