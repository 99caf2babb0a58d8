// Products of panels of pairs with few tokens. Compiled for ARMv8.2 with dot product and i8mm, so nothing here may be inlined
// elsewhere; and in the order of the source, unlike the tiles of i8mm_matmul.cc.
#if defined(__aarch64__)

#include <algorithm>
#include <cstring>
#include <optional>

#include "backend/cpu/i8mm/i8mm_kernels.h"
#include "backend/cpu/i8mm/pair_direct.h"
#include "backend/cpu/matmul/panel_scratch.h"

namespace quire {
namespace {

// So many columns of a panel are in the first-level cache when outliers look for theirs. Whole spans and groups.
constexpr size_t kDirectCols = 2048;

// Few tokens with panels of pairs.
template <class Format, ActivationForm kForm>
class DirectMatmul {
  using Packed = PairBlock<Format>;
  static constexpr size_t kGroup = group_values(kForm);

 public:
  explicit DirectMatmul(const MatmulArgs& args) : args_(args), cols_(args.weight.cols) {
    for (size_t t = 0; t < args.tokens; ++t)
      inputs_.rows[t] = Q8Row(args.input + t * args.input_stride_bytes, cols_, kGroup);
    size_t outliers = 0;
    for (size_t span = 0; span < outlier_spans(cols_); ++span)
      outliers += inputs_.rows[0].outlier_counts[span];
    std::byte* memory = panel_scratch(DirectInputs::bytes(cols_, args.tokens, outliers));
    inputs_.weights = reinterpret_cast<float*>(memory);
    memory += outliers * sizeof(float[kPanelRows]);
    const size_t pairs = (args.tokens + 1) / 2;
    inputs_.values = reinterpret_cast<int8_t*>(memory);
    inputs_.starts = reinterpret_cast<int32_t*>(memory + 2 * pairs * cols_);
    inputs_.sums = reinterpret_cast<int8_t*>(inputs_.starts);
    interleave_direct(inputs_.rows, args.tokens, cols_, inputs_.values);
    if constexpr (Packed::Uniform::kHasMin) {
      split_sums(inputs_.rows, args.tokens, cols_, inputs_.sums);
    } else if constexpr (Packed::kIsNibbles) {
      sum_direct<kGroup>(inputs_.rows, args.tokens, cols_, inputs_.starts);
    }
  }

  void run() const {
    switch (args_.tokens) {
      case 1:
        return run<1>();
      case 2:
        return run<2>();
      case 3:
        return run<3>();
      default:
        return run<4>();
    }
  }

 private:
  template <size_t kTokens>
  void run() const {
    std::optional<PanelOutliers> outliers;  // of one token alone they are read without a list
    if constexpr (kTokens > 1) outliers.emplace(args_, kPairOutlierKernels<Format>, kGroup, 0, kTokens);
    const size_t panel_bytes = cols_ / Packed::kValues * Packed::kBytes;
    const size_t last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    for (size_t panel = args_.row_begin / kPanelRows; panel < last; ++panel) {
      const uint8_t* packed = reinterpret_cast<const uint8_t*>(args_.panels) + panel * panel_bytes;
      float products[kTokens][kPanelRows] = {};
      float* weights = inputs_.weights;
      for (size_t begin = 0; begin < cols_; begin += kDirectCols) {
        const size_t end = std::min(begin + kDirectCols, cols_);
        multiply_pairs<Format, kGroup, kTokens>(packed, begin, end, inputs_, products);
        if constexpr (kTokens == 1) {
          weights = PairColumns<Format>::read_one(packed, begin / kOutlierSpan, outlier_spans(end), kGroup,
                                                  inputs_.rows[0], weights);
        }
      }
      if constexpr (kTokens == 1) {
        add_outliers_of_one(inputs_.rows[0], outlier_spans(cols_), kGroup, inputs_.weights, products[0]);
      } else {
        outliers->add(packed, products);
      }
      const size_t first = panel * kPanelRows;
      const size_t from = first < args_.row_begin ? args_.row_begin : first;
      const size_t to = std::min(first + kPanelRows, args_.row_end);
      for (size_t t = 0; t < kTokens; ++t)
        std::memcpy(args_.out + t * args_.out_stride + from, products[t] + (from - first),
                    (to - from) * sizeof(float));
    }
  }

  const MatmulArgs& args_;
  size_t cols_;
  DirectInputs inputs_;
};

}  // namespace

template <class Format, ActivationForm kForm>
void matmul_pairs(const MatmulArgs& args) {
  if constexpr (kHasPairs<Format>) DirectMatmul<Format, kForm>(args).run();
}

#define QUIRE_FORMAT(dtype, Format, activation) \
  template void matmul_pairs<format::Format, ActivationForm::activation>(const MatmulArgs&);
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT

}  // namespace quire

#endif
