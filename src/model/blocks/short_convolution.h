#pragma once

#include "model/blocks/block.h"

namespace quire {

// out(c * convolution(b * x)), with b, c and x of the stream's width.
struct ShortConvolutionSpec {
  uint32_t span = 3;  // tokens that the convolution sees
};

BlockPtr make_block(const ShortConvolutionSpec& spec, uint32_t dim);

}  // namespace quire
