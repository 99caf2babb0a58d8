#pragma once

// The block formats of GGUF, each stated once: how its bytes become integer codes and scales, and back.
// Quantization, dequantization and the portable matrix kernels are written over these. Blocks need no
// alignment.

#include "tensor/book_block_formats.h"
#include "tensor/few_bits_formats.h"
#include "tensor/simple_block_formats.h"
#include "tensor/super_block_formats.h"
