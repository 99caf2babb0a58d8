#pragma once

#include "backend/cpu/amx/grouped_one.h"
#include "backend/cpu/amx/grouped_tiles.h"

// What multiply_grouped wants of an instruction set: AVX-512 with VNNI, and a machine
//
//   struct Machine {
//     static void configure();  // eight tiles of 16 rows of 64 bytes
//     static void release();
//     template <size_t kTile> static void zero();
//     template <size_t kTile> static void load(const void* rows, size_t stride_bytes);
//     template <size_t kTile> static void store(void* rows, size_t stride_bytes);
//     template <size_t kSums, size_t kWeights, size_t kInputs> static void multiply();  // sums += weights * inputs
//     static __m512i permute_bytes(__m512i table, __m512i places);  // vpermb
//   };
//
// It comes from an unnamed namespace, and so what is made of it here stays in the file it is compiled for.
//
//   grouped_codes.h     packed weights to tiles of codes
//   grouped_inputs.h    activations to tiles, and their outliers to lists
//   grouped_outliers.h  what outliers add to products
//   grouped_one.h       the product of one token
//   grouped_tiles.h     products of more

namespace quire {

template <class Machine, class Format, size_t kGroup>
class GroupedProduct {
  using Packed = GroupedBlock<Format, kGroup>;
  using One = GroupedOneToken<Machine, Format, kGroup>;
  using Tiles = GroupedTiles<Machine, Format, kGroup>;
  using Inputs = GroupedInputs<Machine, kGroup>;

 public:
  static constexpr GroupedKernels kernels() {
    GroupedKernels kernels = {};
    kernels.group = kGroup;
    kernels.start_bytes = Packed::kStart;
    kernels.step_bytes = Packed::kStepBytes;
    kernels.configure = Machine::configure;
    kernels.release = Machine::release;
    kernels.multiply_one = One::multiply;
    kernels.open_first[0] = Tiles::template open_first<1>;
    kernels.open_first[1] = Tiles::template open_first<2>;
    kernels.stream[0][0] = Tiles::template stream<1, 1>;
    kernels.stream[0][1] = Tiles::template stream<1, 2>;
    kernels.stream[1][0] = Tiles::template stream<2, 1>;
    kernels.stream[1][1] = Tiles::template stream<2, 2>;
    kernels.open_chunk[0] = Tiles::template open_chunk<1>;
    kernels.open_chunk[1] = Tiles::template open_chunk<2>;
    kernels.multiply_chunk[0] = Tiles::template multiply_chunk<1>;
    kernels.multiply_chunk[1] = Tiles::template multiply_chunk<2>;
    kernels.transpose = transpose;
    kernels.inputs = {.most_rows = 1, .tile_bytes = Inputs::tile_bytes, .pack = Inputs::pack};
    kernels.add_outliers = GroupedOutliers<Machine, Format, kGroup>::add;
    return kernels;
  }

 private:
  static void transpose(const GroupedSums& sums, float (*out)[kPanelRows]) {
    __m512i rows[16];
#pragma GCC unroll 16
    for (size_t r = 0; r < 16; ++r) rows[r] = _mm512_load_si512(sums[r]);
    transpose_words(rows);
#pragma GCC unroll 16
    for (size_t t = 0; t < 16; ++t) _mm512_storeu_si512(out[t], rows[t]);
  }
};

}  // namespace quire
