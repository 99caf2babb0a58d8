// Matrix products by `sdot`: a vector holds four columns of four rows, and one lane of an activation vector the same
// four columns of a token. Compiled for ARMv8.2 with dot product, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "backend/cpu/neon/neon_kernels.h"
#include "backend/cpu/neon/panel_reader.h"
#include "backend/cpu/panel_scratch.h"

namespace quire {
namespace {

constexpr size_t kDirectTokens = 2;  // up to so many tokens, codes go from memory into the product
constexpr size_t kTileTokens = 4;    // 8 rows x 4 tokens: 16 sums, two vectors of codes and four of values
constexpr size_t kPrefetchBytes = 8192;  // ahead of the codes that are read from memory

// ---- one or two tokens: from memory into the product ---------------------------------------------------------------

template <size_t kTokens>
struct DirectSums {
  int32x4_t prefix[kTokens][kVectors];
  float32x4_t scaled[kTokens][kVectors];
  float32x4_t sum[kTokens][kVectors];
  float32x4_t min_sum[kTokens][kVectors];
};

template <class Format, size_t g, size_t kTokens>
ALWAYS_INLINE void add_columns(const uint8_t* step, int8x16_t table, const int8x16_t (*values)[2],
                               DirectSums<kTokens>& sums) {
  for (size_t i = 0; i < kVectors; ++i) {
    const int8x16_t codes = Reader<Format>::template codes<g>(step, i, table);
    for (size_t t = 0; t < kTokens; ++t) {
      sums.prefix[t][i] = vdotq_laneq_s32(sums.prefix[t][i], codes, values[t][g / 4], g % 4);
    }
  }
}

template <size_t kTokens>
ALWAYS_INLINE void add_scaled(const PerRow& scale, const PerRow& next, DirectSums<kTokens>& sums) {
  for (size_t i = 0; i < kVectors; ++i) {
    const float32x4_t difference = vsubq_f32(scale.v[i], next.v[i]);
    for (size_t t = 0; t < kTokens; ++t) {
      const float32x4_t prefix = vreinterpretq_f32_s32(sums.prefix[t][i]);
      sums.scaled[t][i] = vfmaq_f32(sums.scaled[t][i], prefix, difference);
    }
  }
}

template <size_t kSub, size_t kTokens>
ALWAYS_INLINE void add_mins(const PerRow& min, size_t index, const Q8Row* inputs, DirectSums<kTokens>& sums) {
  for (size_t t = 0; t < kTokens; ++t) {
    const float sum = kSub == 32 ? inputs[t].sums32[index] : inputs[t].sums16[index];
    for (size_t i = 0; i < kVectors; ++i) sums.min_sum[t][i] = vfmaq_n_f32(sums.min_sum[t][i], min.v[i], sum);
  }
}

// A group of activations: `steps` steps of 32 columns from `first` on, the weights' from `block` on. Scales are used
// without the share of widened codes, which is a power of two and is given to the activations' scale instead.
template <class Format, ActivationForm kForm, size_t kTokens>
ALWAYS_INLINE void add_group(const uint8_t* block, size_t first, size_t steps, int8x16_t table,
                             const Q8Row* inputs, DirectSums<kTokens>& sums) {
  using Packed = PackedBlock<Format>;
  using Read = Reader<Format>;
  constexpr size_t kSub = Packed::kSub, kSubsInStep = 32 / kSub;
  static_assert(Packed::kValues == 32 || Packed::kValues == group_values(kForm));
  const typename Read::Base base = Read::base(block);
  PerRow scale = Read::whole_scales(base, block, 0);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      sums.prefix[t][i] = vdupq_n_s32(kMagicBits);
      sums.scaled[t][i] = vmulq_n_f32(scale.v[i], -kMagic);
    }
  }
  for (size_t s = 0; s < steps; ++s) {
    const size_t c = first + 32 * s;
    const uint8_t* here = Packed::kValues == 32 ? block + s * Packed::kBytes : block;
    const uint8_t* step = here + Packed::kStart + (Packed::kValues == 32 ? 0 : s * Packed::kStepBytes);
    const size_t sub = Packed::kValues == 32 ? 0 : s * kSubsInStep;
    for (size_t line = 0; line < Packed::kStepBytes; line += 64)
      __builtin_prefetch(step + kPrefetchBytes + line);
    int8x16_t values[kTokens][2];
    for (size_t t = 0; t < kTokens; ++t) {
      values[t][0] = vld1q_s8(inputs[t].values + c);
      values[t][1] = vld1q_s8(inputs[t].values + c + 16);
    }
    add_columns<Format, 0>(step, table, values, sums);
    add_columns<Format, 1>(step, table, values, sums);
    add_columns<Format, 2>(step, table, values, sums);
    add_columns<Format, 3>(step, table, values, sums);
    if constexpr (kSub == 16) {
      const PerRow next = Read::whole_scales(base, here, sub + 1);
      add_scaled(scale, next, sums);
      if constexpr (Packed::Uniform::kHasMin)
        add_mins<kSub>(Read::mins(base, here, sub, scale), c / 16, inputs, sums);
      scale = next;
    }
    add_columns<Format, 4>(step, table, values, sums);
    add_columns<Format, 5>(step, table, values, sums);
    add_columns<Format, 6>(step, table, values, sums);
    add_columns<Format, 7>(step, table, values, sums);
    PerRow next = {};
    if (s + 1 < steps) {
      next = Packed::kValues == 32 ? Read::whole_scales(base, here + Packed::kBytes, 0)
                                   : Read::whole_scales(base, here, sub + kSubsInStep);
    }
    add_scaled(scale, next, sums);
    if constexpr (Packed::Uniform::kHasMin) {
      add_mins<kSub>(Read::mins(base, here, sub + kSubsInStep - 1, scale), c / kSub + kSubsInStep - 1, inputs,
                     sums);
    }
    scale = next;
  }
  for (size_t t = 0; t < kTokens; ++t) {
    const float factor = inputs[t].scales[first / group_values(kForm)] * Packed::Uniform::kScaleShare;
    for (size_t i = 0; i < kVectors; ++i) {
      sums.sum[t][i] = vfmaq_n_f32(sums.sum[t][i], sums.scaled[t][i], factor);
    }
  }
}

template <class Format, ActivationForm kForm, size_t kTokens>
void multiply_direct(const uint8_t* panel, size_t cols, const Q8Row* inputs, float (*out)[kPanelRows]) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kGroup = group_values(kForm);
  const int8x16_t table = Reader<Format>::table();
  DirectSums<kTokens> sums = {};
  size_t c = 0;
  for (; c + kGroup <= cols; c += kGroup) {
    add_group<Format, kForm>(panel + c / Packed::kValues * Packed::kBytes, c, kGroup / 32, table, inputs,
                             sums);
  }
  if (c < cols) {
    add_group<Format, kForm>(panel + c / Packed::kValues * Packed::kBytes, c, (cols - c) / 32, table, inputs,
                             sums);
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < kVectors; ++i) {
      float32x4_t result = sums.sum[t][i];
      if constexpr (Packed::Uniform::kHasMin) result = vsubq_f32(result, sums.min_sum[t][i]);
      vst1q_f32(out[t] + 4 * i, result);
    }
  }
}

// ---- many tokens: a panel is unpacked once -------------------------------------------------------------------------

// A panel ready for the product: codes [cols / 4][16 rows][4], and by row what scales and minimums come to.
struct OpenPanel {
  int8_t* codes;
  float* starts;       // [groups][16]: -kMagic * the first scale of a group
  float* differences;  // [subs][16]: a sub-block's scale less the next one's in the group
  float* mins;         // [subs][16]

  static size_t bytes(size_t cols, size_t sub, size_t group) {
    return kPanelRows * (cols + sizeof(float) * ((cols + group - 1) / group + 2 * (cols / sub)));
  }
  OpenPanel(std::byte* memory, size_t cols, size_t sub, size_t group)
      : codes(reinterpret_cast<int8_t*>(memory)),
        starts(reinterpret_cast<float*>(codes + kPanelRows * cols)),
        differences(starts + kPanelRows * ((cols + group - 1) / group)),
        mins(differences + kPanelRows * (cols / sub)) {}
};

ALWAYS_INLINE void store_rows(const PerRow& rows, float* out) {
  for (size_t i = 0; i < kVectors; ++i) vst1q_f32(out + 4 * i, rows.v[i]);
}

template <class Format, size_t g>
ALWAYS_INLINE void open_columns(const uint8_t* step, int8x16_t table, int8_t* codes) {
  for (size_t i = 0; i < kVectors; ++i) {
    vst1q_s8(codes + 64 * g + 16 * i, Reader<Format>::template codes<g>(step, i, table));
  }
}

template <class Format, ActivationForm kForm>
void open_panel(const uint8_t* panel, size_t cols, const OpenPanel& out) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kSub = Packed::kSub;
  const size_t group = group_values(kForm);
  const int8x16_t table = Reader<Format>::table();
  for (size_t c = 0; c < cols; c += 32) {
    const uint8_t* block = panel + c / Packed::kValues * Packed::kBytes;
    const uint8_t* step = block + Packed::kStart + c % Packed::kValues / 32 * Packed::kStepBytes;
    int8_t* codes = out.codes + kPanelRows * c;
    open_columns<Format, 0>(step, table, codes);
    open_columns<Format, 1>(step, table, codes);
    open_columns<Format, 2>(step, table, codes);
    open_columns<Format, 3>(step, table, codes);
    open_columns<Format, 4>(step, table, codes);
    open_columns<Format, 5>(step, table, codes);
    open_columns<Format, 6>(step, table, codes);
    open_columns<Format, 7>(step, table, codes);
    for (size_t s = c; s < c + 32; s += kSub) {
      const PerRow scale = Reader<Format>::scales(block, s % Packed::kValues / kSub);
      PerRow difference = scale;
      if (s % group == 0) {
        PerRow start;
        for (size_t i = 0; i < kVectors; ++i) start.v[i] = vmulq_n_f32(scale.v[i], -kMagic);
        store_rows(start, out.starts + kPanelRows * (s / group));
      }
      if ((s + kSub) % group != 0 && s + kSub < cols) {
        const uint8_t* after = panel + (s + kSub) / Packed::kValues * Packed::kBytes;
        const PerRow next = Reader<Format>::scales(after, (s + kSub) % Packed::kValues / kSub);
        for (size_t i = 0; i < kVectors; ++i) difference.v[i] = vsubq_f32(scale.v[i], next.v[i]);
      }
      store_rows(difference, out.differences + kPanelRows * (s / kSub));
      if constexpr (Packed::Uniform::kHasMin) {
        store_rows(Reader<Format>::mins(block, s % Packed::kValues / kSub),
                   out.mins + kPanelRows * (s / kSub));
      }
    }
  }
}

// Two vectors of rows by kTokens.
template <size_t kTokens>
struct Tile {
  int32x4_t prefix[kTokens][2];
  float32x4_t scaled[kTokens][2];
};

template <size_t kLane, size_t kTokens>
ALWAYS_INLINE void add_lane(const int8_t* codes, const int8x16_t* values, Tile<kTokens>& tile) {
  const int8x16_t low = vld1q_s8(codes + 64 * kLane), high = vld1q_s8(codes + 64 * kLane + 16);
  for (size_t t = 0; t < kTokens; ++t) {
    tile.prefix[t][0] = vdotq_laneq_s32(tile.prefix[t][0], low, values[t], kLane);
    tile.prefix[t][1] = vdotq_laneq_s32(tile.prefix[t][1], high, values[t], kLane);
  }
}

// Sixteen columns. The barrier keeps the compiler from loading ahead of what the registers hold.
template <size_t kTokens>
ALWAYS_INLINE void add_columns(const int8_t* codes, const int8_t* const* inputs, size_t c,
                               Tile<kTokens>& tile) {
  int8x16_t values[kTokens];
  for (size_t t = 0; t < kTokens; ++t) values[t] = vld1q_s8(inputs[t] + c);
  add_lane<0>(codes, values, tile);
  add_lane<1>(codes, values, tile);
  add_lane<2>(codes, values, tile);
  add_lane<3>(codes, values, tile);
  asm volatile("" ::: "memory");
}

template <size_t kTokens>
ALWAYS_INLINE void add_differences(const float* differences, Tile<kTokens>& tile) {
  const float32x4_t low = vld1q_f32(differences), high = vld1q_f32(differences + 4);
  for (size_t t = 0; t < kTokens; ++t) {
    tile.scaled[t][0] = vfmaq_f32(tile.scaled[t][0], vreinterpretq_f32_s32(tile.prefix[t][0]), low);
    tile.scaled[t][1] = vfmaq_f32(tile.scaled[t][1], vreinterpretq_f32_s32(tile.prefix[t][1]), high);
  }
}

// Rows [first, first + 8) of the panel with kTokens inputs. The sums over groups wait in memory: registers are for the
// tile.
template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
void multiply_tile(const OpenPanel& panel, size_t first, size_t cols, const Q8Row* inputs,
                   float (*out)[kPanelRows]) {
  constexpr size_t kGroup = group_values(kForm);
  const int8_t* values[kTokens];
  const float* scales[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    values[t] = inputs[t].values;
    scales[t] = inputs[t].scales;
    vst1q_f32(out[t] + first, vdupq_n_f32(0.0f));
    vst1q_f32(out[t] + first + 4, vdupq_n_f32(0.0f));
  }
  const int8_t* codes = panel.codes + 4 * first;
  const float* start = panel.starts + first;
  const float* differences = panel.differences + first;
  for (size_t begin = 0, g = 0; begin < cols; begin += kGroup, ++g, start += kPanelRows) {
    const size_t end = begin + kGroup < cols ? begin + kGroup : cols;
    Tile<kTokens> tile;
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < 2; ++i) {
        tile.prefix[t][i] = vdupq_n_s32(kMagicBits);
        tile.scaled[t][i] = vld1q_f32(start + 4 * i);
      }
    }
    for (size_t c = begin; c < end; c += 32, codes += 32 * kPanelRows) {
      add_columns(codes, values, c, tile);
      if constexpr (kSub == 16) {
        add_differences(differences, tile);
        differences += kPanelRows;
      }
      add_columns(codes + 16 * kPanelRows, values, c + 16, tile);
      add_differences(differences, tile);
      differences += kPanelRows;
    }
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < 2; ++i) {
        float* sum = out[t] + first + 4 * i;
        vst1q_f32(sum, vfmaq_n_f32(vld1q_f32(sum), tile.scaled[t][i], scales[t][g]));
      }
    }
  }
  if constexpr (kHasMin) {
    const float* sums[kTokens];
    for (size_t t = 0; t < kTokens; ++t) sums[t] = kSub == 32 ? inputs[t].sums32 : inputs[t].sums16;
    float32x4_t min_sums[kTokens][2] = {};
    const float* min = panel.mins + first;
    for (size_t s = 0; s < cols / kSub; ++s, min += kPanelRows) {
      const float32x4_t low = vld1q_f32(min), high = vld1q_f32(min + 4);
      for (size_t t = 0; t < kTokens; ++t) {
        min_sums[t][0] = vfmaq_n_f32(min_sums[t][0], low, sums[t][s]);
        min_sums[t][1] = vfmaq_n_f32(min_sums[t][1], high, sums[t][s]);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < 2; ++i) {
        float* sum = out[t] + first + 4 * i;
        vst1q_f32(sum, vsubq_f32(vld1q_f32(sum), min_sums[t][i]));
      }
    }
  }
}

template <size_t kSub, ActivationForm kForm, bool kHasMin, size_t kTokens>
void multiply_rows(const OpenPanel& panel, size_t cols, const Q8Row* inputs, float (*out)[kPanelRows]) {
  multiply_tile<kSub, kForm, kHasMin, kTokens>(panel, 0, cols, inputs, out);
  multiply_tile<kSub, kForm, kHasMin, kTokens>(panel, 8, cols, inputs, out);
}

template <class Format, ActivationForm kForm>
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
      multiply_direct<Format, kForm, 1>(bytes, cols, inputs, products);
    } else {
      const Q8Row inputs[2] = {input(0), input(1)};
      multiply_direct<Format, kForm, 2>(bytes, cols, inputs, products);
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

template <class Format, ActivationForm kForm>
void matmul_dot(const MatmulArgs& args) {
  const PanelOutliers outliers(args, kOutlierKernels<Format>, group_values(kForm), 0, args.tokens);
  const Matmul<Format, kForm> matmul{args, args.weight.cols, outliers};
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

#define QUIRE_FORMAT(dtype, Format, activation) \
  template void matmul_dot<format::Format, ActivationForm::activation>(const MatmulArgs&);
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT

void use_neon_dot(CpuKernels& kernels) {
  kernels.attend = attend_neon_dot;
  kernels.name = "neon_dot";
#define QUIRE_FORMAT(dtype, Format, activation)                                                  \
  kernels.matmul[size_t(DType::dtype)] = matmul_dot<format::Format, ActivationForm::activation>; \
  kernels.panels[size_t(DType::dtype)] = panel_format<format::Format>();
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
