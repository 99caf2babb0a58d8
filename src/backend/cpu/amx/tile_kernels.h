#pragma once

#include "backend/cpu/amx/folded_product.h"
#include "backend/cpu/amx/tile_product.h"

// The kernels of a format on a machine, which besides what the products need has:
//
//   template <size_t kSub> static void configure(size_t tokens);  // tiles as tile_shape says
//   static void release();
//   template <class Format, ActivationForm kForm> static void open(const uint8_t* panel, size_t cols, const OpenPanel&);
//   template <class Format> static constexpr OutlierKernels kOutliers;

namespace quire {

template <class Machine, class Format, ActivationForm kForm>
constexpr TileKernels tile_kernels() {
  using Packed = PackedBlock<Format>;
  constexpr size_t kSub = Packed::kSub;
  constexpr bool kHasMin = Packed::Uniform::kHasMin;
  constexpr bool kIsFolded = In256<Format>;
  TileKernels kernels = {
      .block_bytes = Packed::kBytes,
      .block_values = Packed::kValues,
      .sub = kSub,
      .group = group_values(kForm),
      .planes = kIsFolded ? 2 : 1,
      .has_min_sums = kHasMin && !kIsFolded,
      .open = Machine::template open<Format, kForm>,
      .configure = Machine::template configure < kIsFolded ? kFoldCols : kSub >
      , .release = Machine::release, .outliers = Machine::template kOutliers<Format>, .multiply = {}};
  if constexpr (kIsFolded) {
    kernels.multiply[0][0] = multiply_folded<Machine, kSub, kHasMin, 1, 1>;
    kernels.multiply[0][1] = multiply_folded<Machine, kSub, kHasMin, 1, 2>;
    kernels.multiply[1][0] = multiply_folded<Machine, kSub, kHasMin, 2, 1>;
    kernels.multiply[1][1] = multiply_folded<Machine, kSub, kHasMin, 2, 2>;
  } else {
    kernels.multiply[0][0] = multiply_block<Machine, kForm, kHasMin, 1, 1>;
    kernels.multiply[0][1] = multiply_block<Machine, kForm, kHasMin, 1, 2>;
    kernels.multiply[1][0] = multiply_block<Machine, kForm, kHasMin, 2, 1>;
    kernels.multiply[1][1] = multiply_block<Machine, kForm, kHasMin, 2, 2>;
  }
  return kernels;
}

}  // namespace quire
