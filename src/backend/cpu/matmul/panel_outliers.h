#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/panels.h"

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

// Products of panels that follow each other, in rows: those of panel p and token t begin at out[t * stride + p * kPanelRows].
struct OutlierProducts {
  const uint8_t* panel;  // the first, packed
  size_t panel_bytes;
  size_t panels;  // kOutlierPanels at most
  float* out;
  size_t stride;
};
inline constexpr size_t kOutlierPanels = 4;

// What an instruction set does for them.
struct OutlierKernels {
  // weights[col] of some columns, ascending, of the span of a packed panel that begins at column `first`: for each row scale *
  // code - minimum, rounded once.
  void (*read)(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count, float* weights);
  // products[token][r] = fma(weights[col][r], value, products[token][r]), use by use. Those of a token follow each other.
  void (*add)(const OutlierUse* uses, size_t count, const float* weights, float (*products)[kPanelRows]);
  // Both at once, for uses of the span that begins at column `first` in the order of columns: where few tokens share a column, finding it is what
  // takes time, and is done once for several panels. Null where an instruction set has none.
  void (*add_by_column)(const OutlierProducts& products, size_t first, const OutlierUse* uses,
                        size_t count) = nullptr;
};

// In what order a span's outliers are listed. Those of a token are always by column.
enum class OutlierOrder : uint8_t { by_token, by_column };

// The rows of some tokens.
struct OutlierRows {
  const std::byte* first;
  size_t stride_bytes;
  size_t cols, group, tokens;
  OutlierOrder order = OutlierOrder::by_token;

  bool operator==(const OutlierRows&) const = default;
};

// Their outliers by span: weights are read for one at a time, and stay in the cache while all tokens use them.
struct OutlierList {
  std::vector<OutlierUse> uses;
  std::vector<uint32_t> use_ends;
  std::vector<uint32_t> columns;  // where any of the tokens has an outlier; only by token
  std::vector<uint32_t> column_ends;

  void fill(const OutlierRows& rows);

 private:
  void fill_by_token(const OutlierRows& rows, size_t span);
  void fill_by_column(const OutlierRows& rows, size_t span);
  template <class Count>
  void sort_tokens(size_t tokens, const Count& count_of);
  void list_columns(size_t first, size_t tokens);

  std::vector<uint32_t> order_, ends_;  // room to sort in
};

// A list that several threads use, and one of them makes.
class SharedOutlierList {
 public:
  // When it is made.
  const OutlierList& wait() const {
    is_made_.wait(false, std::memory_order_acquire);
    return list_;
  }

 private:
  friend class OutlierLists;
  OutlierRows rows_;
  OutlierList list_;
  std::atomic<bool> is_made_ = false;
};

// The lists of products that are computed together. Rows do not change meanwhile, and a list depends on nothing else: whichever
// thread wants one first makes it for all, and the others go on until they need it. Any thread.
class OutlierLists {
 public:
  // Before the next products, which have other rows. Memory stays. No thread may hold a list.
  void clear();
  // Stays where it is until clear().
  const SharedOutlierList& begin(const OutlierRows& rows);
  const OutlierList& of(const OutlierRows& rows) { return begin(rows).wait(); }

 private:
  SharedOutlierList* find(const OutlierRows& rows);

  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedOutlierList>> entries_;
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

  // Whether products of several panels are better added to at once. REQUIRES of add_to: it is so.
  bool takes_several() const { return is_by_column_; }
  void add_to(const OutlierProducts& products) const;

 private:
  const OutlierList& list() const { return shared_ != nullptr ? shared_->wait() : *own_; }

  const OutlierKernels& kernels_;
  bool is_by_column_;
  const SharedOutlierList* shared_ = nullptr;
  const OutlierList* own_ = nullptr;
  float* weights_;  // [kOutlierSpan][kPanelRows]
};

// Where the products of some tokens with panels that follow each other go: their outliers are added, and the wanted rows stored.
class PanelStore {
 public:
  PanelStore(const MatmulArgs& args, const PanelOutliers& outliers, size_t panel_bytes, size_t first_token,
             size_t tokens)
      : args_(args), outliers_(outliers), panel_bytes_(panel_bytes), token_(first_token), tokens_(tokens) {}
  ~PanelStore() { finish(); }
  PanelStore(const PanelStore&) = delete;
  PanelStore& operator=(const PanelStore&) = delete;

  // REQUIRES: the panel comes after those that were put before.
  void put(size_t panel, float (*products)[kPanelRows]);

 private:
  const uint8_t* packed(size_t panel) const {
    return reinterpret_cast<const uint8_t*>(args_.panels) + panel * panel_bytes_;
  }
  void finish();

  const MatmulArgs& args_;
  const PanelOutliers& outliers_;
  size_t panel_bytes_;
  size_t token_, tokens_;
  size_t first_ = 0, stored_ = 0;  // panels that are stored, and whose outliers are still to be added
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
//     struct Scales { static Scales at(const uint8_t* panel, size_t column); };  // of the sub-block that begins at a column
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

  static void read_some(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count,
                        float* weights) {
    typename Columns::Scales scales = {};
    size_t sub_end = 0;
    for (size_t k = 0; k < count; ++k) {
      const size_t column = first + cols[k];
      if (column >= sub_end) {
        const size_t begin = column / Packed::kSub * Packed::kSub;
        scales = Columns::Scales::at(panel, begin);
        sub_end = begin + Packed::kSub;
      }
      const uint8_t* step = step_at<Packed>(panel, column);
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
      const uint8_t* step = step_at<Packed>(panel, c);
      const typename Columns::Scales low = Columns::Scales::at(panel, c);
      Columns::template read_four<0>(step, low, out);
      Columns::template read_four<1>(step, low, out + 4 * kPanelRows);
      Columns::template read_four<2>(step, low, out + 8 * kPanelRows);
      Columns::template read_four<3>(step, low, out + 12 * kPanelRows);
      const typename Columns::Scales high = Packed::kSub == 32 ? low : Columns::Scales::at(panel, c + 16);
      Columns::template read_four<4>(step, high, out + 16 * kPanelRows);
      Columns::template read_four<5>(step, high, out + 20 * kPanelRows);
      Columns::template read_four<6>(step, high, out + 24 * kPanelRows);
      Columns::template read_four<7>(step, high, out + 28 * kPanelRows);
    }
  }
};

}  // namespace quire
