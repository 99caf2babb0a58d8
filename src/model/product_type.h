#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace quire {

// The type in which matrices of another are multiplied: one or two bits with one scale are four bits with the same numbers (q4_0).
// Others are multiplied as they are. Tables, whose rows are read one by one, stay as they are in any case.
DType product_type(DType dtype);

// The type of a matrix that is written down the other way round: one whose values stand by themselves.
DType turned_type(DType dtype);

// Rows of such a matrix as its product_type. REQUIRES: that is another type.
void rewrite_for_products(DType from, std::span<const std::byte> in, std::span<std::byte> out);

}  // namespace quire
