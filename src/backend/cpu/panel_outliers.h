#pragma once

#include "backend/cpu/kernels.h"

// What a product with weights in panels owes to outliers: activations that stay floats, and have the code 0 where codes are
// multiplied. They are few, so the columns of weights they meet are read by themselves.

namespace quire {

// An outlier in a product of some tokens.
struct OutlierUse {
  uint32_t token : 23;
  uint32_t col : 9;  // in its span
  float value;
};
static_assert(kOutlierSpan == 1 << 9);

// What an instruction set does for them.
struct OutlierKernels {
  // weights[col] of some columns, ascending, of the span of a packed panel that begins at column `first`: for each row scale *
  // code - minimum, rounded once.
  void (*read)(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count, float* weights);
  // products[token][r] = fma(weights[col][r], value, products[token][r]), use by use.
  void (*add)(const OutlierUse* uses, size_t count, const float* weights, float (*products)[kPanelRows]);
};

// Those of some tokens. In memory of the thread: there is one of them at a time.
class PanelOutliers {
 public:
  static constexpr size_t kMostTokens = 1 << 23;

  PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group, size_t first_token,
                size_t tokens);

  // Adds to the products of a packed panel with these tokens.
  void add(const uint8_t* panel, float (*products)[kPanelRows]) const;

 private:
  struct Memory;

  const OutlierKernels& kernels_;
  size_t spans_;
  // By span: weights are read for one at a time, and stay in the cache while all tokens use them.
  const OutlierUse* uses_;
  const uint32_t* use_ends_;
  const uint32_t* columns_;  // where any of the tokens has an outlier
  const uint32_t* column_ends_;
  float* weights_;  // [kOutlierSpan][kPanelRows]
};

// Calls use.template operator()<g>() for a g below 8 that is known only now.
template <class Use>
static inline __attribute__((always_inline)) void with_place(size_t g, const Use& use) {
  switch (g) {
    case 0:
      return use.template operator()<0>();
    case 1:
      return use.template operator()<1>();
    case 2:
      return use.template operator()<2>();
    case 3:
      return use.template operator()<3>();
    case 4:
      return use.template operator()<4>();
    case 5:
      return use.template operator()<5>();
    case 6:
      return use.template operator()<6>();
    default:
      return use.template operator()<7>();
  }
}

}  // namespace quire
