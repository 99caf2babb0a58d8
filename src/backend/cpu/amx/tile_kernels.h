#pragma once

#include "backend/cpu/amx/folded_product.h"

// The kernels of a format on a machine, which besides what the product needs has:
//
//   static void configure(size_t tokens);  // tiles as tile_shape says
//   static void release();
//   template <class Format> static void open(const uint8_t* panel, size_t cols, const OpenPanel&);
//   template <class Format> static constexpr OutlierKernels kOutliers;

namespace quire {

template <class Machine, class Format>
constexpr TileKernels tile_kernels() {
  using Packed = PackedBlock<Format>;
  static_assert(In256<Format>);
  constexpr size_t kSub = Packed::kSub;
  constexpr bool kHasMin = Packed::Uniform::kHasMin;
  return {
      .block_bytes = Packed::kBytes,
      .block_values = Packed::kValues,
      .sub = kSub,
      .group = Packed::kValues,
      .planes = 2,
      .open = Machine::template open<Format>,
      .configure = Machine::configure,
      .release = Machine::release,
      .outliers = Machine::template kOutliers<Format>,
      .multiply = {
          {multiply_folded<Machine, kSub, kHasMin, 1, 1>, multiply_folded<Machine, kSub, kHasMin, 1, 2>},
          {multiply_folded<Machine, kSub, kHasMin, 2, 1>, multiply_folded<Machine, kSub, kHasMin, 2, 2>}}};
}

}  // namespace quire
