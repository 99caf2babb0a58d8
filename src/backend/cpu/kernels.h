#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/activation.h"
#include "backend/cpu/attention/attend.h"
#include "tensor/tensor_view.h"

namespace quire {

// A value that stays as it is, beside the codes: more than outlier_means times the mean magnitude in its span of columns.
struct Outlier {
  uint32_t col;  // in its span
  float value;
};

// A multiple of every group. So many columns of weights as floats stay in the first-level cache.
inline constexpr size_t kOutlierSpan = 512;
constexpr size_t outlier_spans(size_t n) {
  return (n + kOutlierSpan - 1) / kOutlierSpan;
}

// Larger groups want fewer large values. Those of more than so many times the mean are fewer than one in so many.
constexpr float outlier_means(size_t group) {
  return group == 64 ? 8.0f : 6.0f;
}
constexpr size_t most_outliers(size_t group) {
  return size_t(float(kOutlierSpan) / outlier_means(group));  // of a span
}

// A quantized activation row of n values (a multiple of 32), as the matrix kernels read it. `group` values
// share a scale; the last group may be shorter. In memory, one after the other:
//
//   int8_t values[n];           in -127..127; the activation is about scale * value
//   float scales[n / group];    rounded up
//   float scaled_sums[n / 32];  scale * the sum of 32 values: what a minimum of 32 weights is multiplied with
//   int16_t sums16[n / 16];     sums of 16 values, for minimums that are whole numbers
//   int16_t sums32[n / 32];     of 32; filled up to a multiple of 4 bytes
//   uint32_t outlier_counts[outlier_spans(n)];
//   Outlier outliers[outlier_spans(n)][most_outliers(group)];  by column, ascending
//
// An outlier has the code 0. A group that holds NaN or infinity gets the scale NaN, so that the product shows it.
template <class Byte>
struct Q8RowView {
  static constexpr bool kConst = std::is_const_v<Byte>;
  template <class T>
  using Pointer = std::conditional_t<kConst, const T*, T*>;

  Pointer<int8_t> values;
  Pointer<float> scales;
  Pointer<float> scaled_sums;
  Pointer<int16_t> sums16;
  Pointer<int16_t> sums32;
  Pointer<uint32_t> outlier_counts;
  Pointer<Outlier> outliers;

  Q8RowView() = default;
  // REQUIRES: n is a multiple of 32; the row is aligned to 4 bytes.
  Q8RowView(Byte* row, size_t n, size_t group)
      : values(reinterpret_cast<Pointer<int8_t>>(row)),
        scales(reinterpret_cast<Pointer<float>>(row + n)),
        scaled_sums(scales + (n + group - 1) / group),
        sums16(reinterpret_cast<Pointer<int16_t>>(scaled_sums + n / 32)),
        sums32(sums16 + n / 16),
        outlier_counts(reinterpret_cast<Pointer<uint32_t>>(sums32 + (n / 32 + 1) / 2 * 2)),
        outliers(reinterpret_cast<Pointer<Outlier>>(outlier_counts + outlier_spans(n))) {}
};
using Q8Row = Q8RowView<const std::byte>;
using MutableQ8Row = Q8RowView<std::byte>;

// Columns of a bf16 row are filled up with zeros to a multiple of this.
inline constexpr size_t kBf16Cols = 32;

// How many values share a scale in a quantized form.
constexpr size_t group_values(ActivationForm form) {
  return size_t(64) << (size_t(form) - kFirstQuantizedForm);
}

// Bytes of a row of n values in `form`, a multiple of 64. Those of bf16 rows are an odd multiple, so that rows
// begin in different sets of a cache; those of quantized rows four more than a multiple of eight, so that four lines of each
// of sixteen rows, which AMX works on for a while, fill 64 sets evenly. REQUIRES: n is a multiple of 32 in quantized forms.
size_t activation_row_bytes(ActivationForm form, size_t n);

class OutlierLists;

// out[t * out_stride + r] = the product of weight row r and input row t, for r in [row_begin, row_end) and
// all tokens. An element is computed by the same operations in the same order whatever the tokens and rows
// beside it.
struct MatmulArgs {
  MatrixView weight;
  const std::byte*
      panels;              // the weight as the kernel set packed it; null where it packs nothing of this type
  const std::byte* input;  // rows in the form of the weight's type, aligned to 4 bytes
  size_t input_stride_bytes;
  const std::byte* input_tiles =
      nullptr;  // the same as InputFormat packs it, if it was packed for all rows at once
  size_t tokens;
  size_t row_begin, row_end;
  float* out;
  size_t out_stride;
  OutlierLists* outliers = nullptr;  // what the blocks of a product share; null: a block lists its own
};

// How a kernel set keeps the weights of a type in memory: in panels of kPanelRows rows, so that a vector holds
// the same columns of several rows. The last panel is filled up with rows of zeros.
inline constexpr size_t kPanelRows = 16;
struct PanelFormat {
  size_t (*panel_bytes)(size_t cols) = nullptr;
  // Packs rows [panel * kPanelRows, ...) of the weight.
  void (*pack)(const MatrixView& weight, size_t panel, std::byte* out) = nullptr;
};

// How a kernel set wants activations for products with a weight type, beside their rows: in tiles of kInputTileTokens tokens,
// the last one filled up with zeros. They are the same for all rows of all matrices, so they are packed once.
inline constexpr size_t kInputTileTokens = 16;
struct PackInputArgs {
  const std::byte* rows;  // in the form of the weight's type
  size_t stride_bytes;
  size_t tokens;  // kInputTileTokens at most
  size_t cols;
  size_t col_begin, col_end;  // of which these are packed: a multiple of 256, or all
  std::byte* tile;            // as a whole
};
struct InputFormat {
  size_t most_rows = 0;  // up to so many tokens are read from their rows
  size_t (*tile_bytes)(size_t cols) = nullptr;
  void (*pack)(const PackInputArgs& args) = nullptr;
};

struct Gate;

// What a token makes of a state of [keys, values]: each value is a column, on its own. It reads S^T query.
enum class Recurrence : uint8_t {
  delta,          // S = decay S + key (beta (value - decay S^T key))
  delta_of_keys,  // the same, and every key has a decay
  state_space,    // S = decay S + key (beta value)
  selective,  // the same, and every value has a beta; decay is e^(beta rate), with a rate for each value of each key
};
inline constexpr size_t kRecurrenceCount = 4;

// Over the tokens of one run, for kStateValues of one head's values.
inline constexpr size_t kStateValues = 32;
struct RecurrenceArgs {
  float* state = nullptr;  // [keys, kStateValues], updated
  size_t keys = 0;         // a multiple of 4
  size_t tokens = 0;
  const float *query = nullptr, *key = nullptr;  // of the first token, and from one to the next
  size_t key_stride = 0;
  const float* value = nullptr;  // `width` of them count
  size_t value_stride = 0;
  size_t width = 0;
  const float* decay = nullptr;  // [1] or [keys]; of selective the rates, [keys, kStateValues], and no stride
  size_t decay_stride = 0;
  const float* beta = nullptr;  // [1]; of selective [width]
  size_t beta_stride = 0;
  float* out = nullptr;
  size_t out_stride = 0;
};

// out = bias + the sum of rows[i] * weights[i], channel by channel, the first row first.
struct ConvolutionArgs {
  const float* const* rows;  // [span]: the oldest first
  size_t span;
  const float* weights;  // [span, count]
  const float* bias;     // or null: 0
  float* out;
  size_t count;
};

// The kernels of one instruction set, by weight type. i32 has none.
struct CpuKernels {
  const char* name;
  ActivationForm form[kDTypeCount];
  void (*quantize_activation[kActivationFormCount])(const float* values, size_t n, std::byte* row);
  void (*matmul[kDTypeCount])(const MatmulArgs& args);
  PanelFormat panels[kDTypeCount];
  InputFormat inputs[kDTypeCount];
  size_t streamed_tokens;  // up to so many, what a product takes is its weights on the way from memory
  void (*attend)(const AttendArgs& args);
  KvFormat pages = KvFormat::f16;  // of 16 bits, with which `attend` is the faster
  void (*activate)(const Gate& function, const float* gate, const float* up, float* out,
                   size_t count);  // as activate_row
  void (*recurrence[kRecurrenceCount])(const RecurrenceArgs& args);
  void (*convolve)(const ConvolutionArgs& args);
  // steps = ln(1 + e^(values + bias)); decays = e^(rate steps). Without steps they are not kept, without rate there are no decays.
  // REQUIRES: no rate is above 0.
  void (*steps)(const float* values, const float* bias, const float* rate, float* steps, float* decays,
                size_t count);
  void (*to_f16)(const float* values, size_t count, uint16_t* out);  // to nearest, ties to even
  CpuKernels (*twin)();  // plain code with the same bits, but for bf16 and attention in matrix instructions
};

// Dequantized weights, f32 activations: what goldens compare with.
CpuKernels exact_kernels();

// The scalar twin: the quantized activations and the order of operations that fast kernels share.
CpuKernels scalar_kernels();
// The same with grouped weights (grouped_weights.h), for sets with tiles of int8.
CpuKernels grouped_kernels();

}  // namespace quire
