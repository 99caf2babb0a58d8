// Matrix products by `sdot`: a vector holds four columns of four rows, and one lane of an activation vector the same
// four columns of a token. Compiled for ARMv8.2 with dot product, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include "backend/cpu/matmul/panel_scratch.h"
#include "backend/cpu/neon/direct_product.h"
#include "backend/cpu/neon/neon_kernels.h"
#include "backend/cpu/neon/open_product.h"

namespace quire {
namespace {

constexpr size_t kDirectTokens = 2;  // up to so many tokens, codes go from memory into the product
constexpr size_t kTileTokens = 4;    // 8 rows x 4 tokens: 16 sums, two vectors of codes and four of values

template <class Format, ActivationForm kForm, class Fetch>
struct Matmul {
  using Packed = PackedBlock<Format>;
  static constexpr size_t kSub = Packed::kSub;
  static constexpr bool kHasMin = Packed::Uniform::kHasMin;

  const MatmulArgs& args;
  size_t cols;
  const PanelOutliers& outliers;

  Q8Row input(size_t t) const {
    return {args.input + t * args.input_stride_bytes, cols, group_values(kForm)};
  }

  // The wanted rows of a panel's products with tokens [begin, begin + count).
  void store(size_t panel, size_t begin, size_t count, const float (*products)[kPanelRows]) const {
    const size_t first = panel * kPanelRows;
    const size_t from = first < args.row_begin ? args.row_begin : first;
    const size_t to = first + kPanelRows < args.row_end ? first + kPanelRows : args.row_end;
    for (size_t t = 0; t < count; ++t) {
      float* out = args.out + (begin + t) * args.out_stride;
      std::memcpy(out + from, products[t] + (from - first), (to - from) * sizeof(float));
    }
  }

  void direct(size_t panel, const uint8_t* bytes) const {
    float products[kDirectTokens][kPanelRows];
    if (args.tokens == 1) {
      const Q8Row inputs[1] = {input(0)};
      multiply_direct<Format, kForm, Fetch, 1>(bytes, cols, inputs, products);
    } else {
      const Q8Row inputs[2] = {input(0), input(1)};
      multiply_direct<Format, kForm, Fetch, 2>(bytes, cols, inputs, products);
    }
    outliers.add(bytes, products);
    store(panel, 0, args.tokens, products);
  }

  void opened(size_t panel, const uint8_t* bytes, const OpenPanel& open,
              float (*products)[kPanelRows]) const {
    for (size_t t = 0; t < args.tokens; t += kTileTokens)
      tile(t, args.tokens - t < kTileTokens ? args.tokens - t : kTileTokens, open, products + t);
    outliers.add(bytes, products);
    store(panel, 0, args.tokens, products);
  }

  void tile(size_t t, size_t count, const OpenPanel& open, float (*products)[kPanelRows]) const {
    const Q8Row in[kTileTokens] = {input(t), input(t + (count > 1 ? 1 : 0)), input(t + (count > 2 ? 2 : 0)),
                                   input(t + (count > 3 ? 3 : 0))};
    switch (count) {
      case 4:
        return multiply_rows<kSub, kForm, kHasMin, 4>(open, cols, in, products);
      case 3:
        return multiply_rows<kSub, kForm, kHasMin, 3>(open, cols, in, products);
      case 2:
        return multiply_rows<kSub, kForm, kHasMin, 2>(open, cols, in, products);
      default:
        return multiply_rows<kSub, kForm, kHasMin, 1>(open, cols, in, products);
    }
  }
};

}  // namespace

template <class Format, ActivationForm kForm, class Fetch>
void matmul_dot(const MatmulArgs& args) {
  const PanelOutliers outliers(args, kOutlierKernels<Format>, group_values(kForm), 0, args.tokens);
  const Matmul<Format, kForm, Fetch> matmul{args, args.weight.cols, outliers};
  using Packed = PackedBlock<Format>;
  const size_t cols = args.weight.cols, group = group_values(kForm);
  const size_t panel_bytes = cols / Packed::kValues * Packed::kBytes;
  const size_t first = args.row_begin / kPanelRows, last = (args.row_end + kPanelRows - 1) / kPanelRows;
  const size_t open_bytes = OpenPanel::bytes(cols, Packed::kSub, group);
  for (size_t panel = first; panel < last; ++panel) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(args.panels) + panel * panel_bytes;
    if (args.tokens <= kDirectTokens) {
      matmul.direct(panel, bytes);
      continue;
    }
    std::byte* memory = panel_scratch(open_bytes + args.tokens * sizeof(float[kPanelRows]));
    const OpenPanel open(memory, cols, Packed::kSub, group);
    open_panel<Format, kForm>(bytes, cols, open);
    matmul.opened(panel, bytes, open, reinterpret_cast<float(*)[kPanelRows]>(memory + open_bytes));
  }
}

#define QUIRE_FORMAT(dtype, Format, activation)                                                       \
  template void matmul_dot<format::Format, ActivationForm::activation, NearFetch>(const MatmulArgs&); \
  template void matmul_dot<format::Format, ActivationForm::activation, FarFetch>(const MatmulArgs&);
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT
#define QUIRE_PANELS(Format)                                                                      \
  template void matmul_dot<format::Format, ActivationForm::q8_256, NearFetch>(const MatmulArgs&); \
  template void matmul_dot<format::Format, ActivationForm::q8_256, FarFetch>(const MatmulArgs&);
#include "backend/cpu/matmul/book_panels.inc"
#undef QUIRE_PANELS

void use_neon_dot(CpuKernels& kernels) {
  kernels.attend = attend_neon_dot;
  kernels.name = "neon_dot";
#define QUIRE_FORMAT(dtype, Format, activation)                                  \
  kernels.matmul[size_t(DType::dtype)] =                                         \
      matmul_dot<Panels<format::Format>, ActivationForm::activation, NearFetch>; \
  kernels.panels[size_t(DType::dtype)] = panel_format<format::Format>();
#include "backend/cpu/matmul/book_formats.inc"
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
