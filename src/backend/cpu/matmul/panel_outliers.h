#pragma once

#include <memory>
#include <mutex>
#include <vector>

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
  // products[token][r] = fma(weights[col][r], value, products[token][r]), use by use. Those of a token follow each other.
  void (*add)(const OutlierUse* uses, size_t count, const float* weights, float (*products)[kPanelRows]);
};

// The rows of some tokens.
struct OutlierRows {
  const std::byte* first;
  size_t stride_bytes;
  size_t cols, group, tokens;

  bool operator==(const OutlierRows&) const = default;
};

// Their outliers by span: weights are read for one at a time, and stay in the cache while all tokens use them.
struct OutlierList {
  std::vector<OutlierUse> uses;
  std::vector<uint32_t> use_ends;
  std::vector<uint32_t> columns;  // where any of the tokens has an outlier
  std::vector<uint32_t> column_ends;

  void fill(const OutlierRows& rows);

 private:
  template <class Count>
  void sort_tokens(size_t tokens, const Count& count_of);
  void list_columns(size_t first, size_t tokens);

  std::vector<uint32_t> order_, ends_;  // room to sort in
};

// The lists of products that are computed together. Rows do not change meanwhile, and a list depends on nothing else: whichever
// thread wants one first makes it for all. Any thread.
class OutlierLists {
 public:
  // Before the next products, which have other rows. Memory stays. No thread may hold a list.
  void clear();
  // Stays where it is until clear().
  const OutlierList& of(const OutlierRows& rows);

 private:
  struct Entry {
    OutlierRows rows;
    OutlierList list;
  };
  std::mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_;
  size_t used_ = 0;
};

// What some tokens' outliers add to products. Weights are read into memory of the thread: there is one of these at a time.
class PanelOutliers {
 public:
  static constexpr size_t kMostTokens = 1 << 23;

  PanelOutliers(const MatmulArgs& args, const OutlierKernels& kernels, size_t group, size_t first_token,
                size_t tokens);

  // Adds to the products of a packed panel with these tokens.
  void add(const uint8_t* panel, float (*products)[kPanelRows]) const;

 private:
  const OutlierKernels& kernels_;
  const OutlierList* list_;
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

// OutlierKernels::read. `Columns` is an instruction set's own for a format, from an unnamed namespace, so that what is made
// of it here stays in the file it is compiled for:
//
//   struct Columns {
//     using Packed = PackedBlock<Format>;
//     // From so many columns of a span on, whole steps are read: four columns cost less than four, and none has to be found.
//     static constexpr size_t kMany;
//     struct Scales;
//     static Scales scales(const uint8_t* panel, size_t column);  // of the sub-block that begins at a column
//     // Column 4 g + place of a step of 32; columns 4 g to 4 g + 3.
//     template <size_t g> static void read(const uint8_t* step, size_t place, const Scales&, float* out);
//     template <size_t g> static void read_four(const uint8_t* step, const Scales&, float* out);
//     // Instead of read, where it can: a column of a step of 32.
//     static void read_any(const uint8_t* step, size_t column, const Scales&, float* out);
//   };
template <class Columns>
class OutlierColumns {
 public:
  static void read(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count, float* weights) {
    if (count < Columns::kMany) {
      read_some(panel, first, cols, count, weights);
    } else {
      read_steps(panel, first, cols, count, weights);
    }
  }

 private:
  using Packed = typename Columns::Packed;

  static const uint8_t* step_at(const uint8_t* panel, size_t column) {
    return panel + column / Packed::kValues * Packed::kBytes + Packed::kStart +
           column % Packed::kValues / 32 * Packed::kStepBytes;
  }

  static void read_some(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count,
                        float* weights) {
    typename Columns::Scales scales = {};
    size_t sub_end = 0;
    for (size_t k = 0; k < count; ++k) {
      const size_t column = first + cols[k];
      if (column >= sub_end) {
        const size_t begin = column / Packed::kSub * Packed::kSub;
        scales = Columns::scales(panel, begin);
        sub_end = begin + Packed::kSub;
      }
      const uint8_t* step = step_at(panel, column);
      float* out = weights + kPanelRows * cols[k];
      if constexpr (requires { Columns::read_any(step, column, scales, out); }) {
        Columns::read_any(step, column % 32, scales, out);
      } else {
        with_place(column % 32 / 4,
                   [&]<size_t g>() { Columns::template read<g>(step, column % 4, scales, out); });
      }
    }
  }

  static void read_steps(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count,
                         float* weights) {
    const size_t begin = (first + cols[0]) / 32 * 32, end = first + cols[count - 1] + 1;
    float* out = weights + kPanelRows * (begin - first);
    for (size_t c = begin; c < end; c += 32, out += 32 * kPanelRows) {
      const uint8_t* step = step_at(panel, c);
      const typename Columns::Scales low = Columns::scales(panel, c);
      Columns::template read_four<0>(step, low, out);
      Columns::template read_four<1>(step, low, out + 4 * kPanelRows);
      Columns::template read_four<2>(step, low, out + 8 * kPanelRows);
      Columns::template read_four<3>(step, low, out + 12 * kPanelRows);
      const typename Columns::Scales high = Packed::kSub == 32 ? low : Columns::scales(panel, c + 16);
      Columns::template read_four<4>(step, high, out + 16 * kPanelRows);
      Columns::template read_four<5>(step, high, out + 20 * kPanelRows);
      Columns::template read_four<6>(step, high, out + 24 * kPanelRows);
      Columns::template read_four<7>(step, high, out + 28 * kPanelRows);
    }
  }
};

}  // namespace quire
