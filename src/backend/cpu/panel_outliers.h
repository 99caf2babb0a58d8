#pragma once

#include "backend/cpu/kernels.h"

// What a product with weights in panels owes to outliers: activations that stay floats, and have the code 0 where codes are
// multiplied. They are few, so the columns of weights they meet are read by themselves.

namespace quire {

// What an instruction set does for them.
struct OutlierKernels {
  // A column of a packed panel: scale * code - minimum for each row, rounded once.
  void (*read)(const uint8_t* panel, size_t column, float* out);
  // sums[r] = fma(weights[col][r], value, sums[r]), outlier by outlier.
  void (*add)(const Outlier* outliers, size_t count, const float* weights, float* sums);
};

// Those of some tokens. In memory of the thread: there is one of them at a time.
//
// Weights are opened by spans of columns, which stay in the cache while all tokens use them:
//
//   for (span...) { open(span, panel); add(span, ...) for all tokens }
class PanelOutliers {
 public:
  PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group, size_t first_token,
                size_t tokens);

  // Spans of columns; none if there are no outliers.
  size_t spans() const { return spans_; }
  // Reads what is needed of a packed panel.
  void open(size_t span, const uint8_t* panel) const;
  // Adds to the products of the panel with tokens [token, token + count).
  void add(size_t span, size_t token, size_t count, float (*products)[kPanelRows]) const;

  // All of it for products that lie together.
  void add_all(const uint8_t* panel, size_t token, size_t count, float (*products)[kPanelRows]) const {
    for (size_t span = 0; span < spans_; ++span) {
      open(span, panel);
      add(span, token, count, products);
    }
  }

 private:
  struct Memory;

  const OutlierKernels& kernels_;
  size_t first_token_, tokens_;
  size_t spans_;
  const Outlier* outliers_;      // all of them, by span and token: near each other, unlike in the rows
  const uint32_t* ends_;         // [spans][tokens], among the outliers
  const uint32_t* columns_;      // of a span those where any of the tokens has an outlier
  const uint32_t* column_ends_;  // [spans]
  float* weights_;               // [kOutlierSpan][kPanelRows]
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
