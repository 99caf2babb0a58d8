// Matrix products by `smmla`, which multiplies two rows by two tokens over eight columns. Its result is a vector {row 0
// token 0, row 0 token 1, row 1 token 0, row 1 token 1}; so here whatever belongs to a row stands in a vector as {row 0,
// row 0, row 1, row 1}, and whatever belongs to a token as {token 0, token 1, token 0, token 1}. Compiled for ARMv8.2
// with dot product and i8mm, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include <cstring>

#include <arm_neon.h>

#include "backend/cpu/i8mm/i8mm_kernels.h"
#include "backend/cpu/neon/neon_kernels.h"
#include "backend/cpu/neon/panel_reader.h"
#include "backend/cpu/panel_scratch.h"

namespace quire {
namespace {

constexpr size_t kHalfRows = kPanelRows / 2;  // a tile has the rows of half a panel,
constexpr size_t kRowPairs = kHalfRows / 2;
constexpr size_t kTileTokens = 6;  // and 3 pairs of tokens: 12 integer and 12 float sums, 7 operands
constexpr size_t kTilePairs = kTileTokens / 2;

// Too few for an opened panel to pay. Codes that go from memory into the product come as four columns of a row, and
// joining two of these for one `smmla` costs what the second `sdot` does.
constexpr size_t kFewTokens = 2;

// What is worked on at a time: an opened panel stays in the first-level cache, and the tokens' inputs, interleaved once
// for all panels of the part, in the second.
constexpr size_t kPartCols = 2048;
constexpr size_t kPartTokens = 180;
constexpr size_t kPartPanels = 8;
constexpr size_t kPartTiles = kPartTokens / kTileTokens;
static_assert(kPartCols % 256 == 0 && kPartTokens % kTileTokens == 0);  // parts end with groups and tiles

constexpr size_t kPartSubs = kPartCols / 16;    // at most
constexpr size_t kPartGroups = kPartCols / 64;  // at most
constexpr size_t kPrefetchBytes = 8192;         // ahead of the packed codes

constexpr size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

// ---- panels --------------------------------------------------------------------------------------------------------

// Eight rows ready for the product.
struct OpenHalf {
  alignas(64) int8_t codes[kHalfRows * kPartCols];  // [cols / 8][4 pairs][2 rows][8 columns]
  float starts[kPartGroups][2 * kHalfRows];         // [groups]: -kMagic * the first scale
  float differences[kPartSubs][2 * kHalfRows];      // [sub-blocks]: the scale less the next in the group
  float mins[kPartSubs][2 * kHalfRows];             // [sub-blocks]
};

// Columns 8 g to 8 g + 7 of a step of 32 that begins at `column`.
template <class Format, size_t g>
ALWAYS_INLINE void open_columns(const uint8_t* step, int8x16_t table, size_t column, OpenHalf* halves) {
  for (size_t i = 0; i < kVectors; ++i) {
    const int32x4_t left = vreinterpretq_s32_s8(Reader<Format>::template codes<2 * g>(step, i, table));
    const int32x4_t right = vreinterpretq_s32_s8(Reader<Format>::template codes<2 * g + 1>(step, i, table));
    int8_t* out = halves[i / 2].codes + kHalfRows * (column + 8 * g) + 32 * (i % 2);
    vst1q_s8(out, vreinterpretq_s8_s32(vzip1q_s32(left, right)));
    vst1q_s8(out + 16, vreinterpretq_s8_s32(vzip2q_s32(left, right)));
  }
}

ALWAYS_INLINE void store_twice(float32x4_t rows, float* out) {
  vst1q_f32(out, vzip1q_f32(rows, rows));
  vst1q_f32(out + 4, vzip2q_f32(rows, rows));
}

// Columns [begin, begin + width) of a panel of `cols`.
template <class Format, size_t kGroup>
void open_panel(const uint8_t* panel, size_t cols, size_t begin, size_t width, OpenHalf* halves) {
  using Packed = PackedBlock<Format>;
  constexpr size_t kSub = Packed::kSub;
  const int8x16_t table = Reader<Format>::table();
  for (size_t c = 0; c < width; c += 32) {
    const uint8_t* block = panel + (begin + c) / Packed::kValues * Packed::kBytes;
    const uint8_t* step = block + Packed::kStart + (begin + c) % Packed::kValues / 32 * Packed::kStepBytes;
    for (size_t line = 0; line < Packed::kStepBytes; line += 64)
      __builtin_prefetch(step + kPrefetchBytes + line, 0, 2);
    open_columns<Format, 0>(step, table, c, halves);
    open_columns<Format, 1>(step, table, c, halves);
    open_columns<Format, 2>(step, table, c, halves);
    open_columns<Format, 3>(step, table, c, halves);
    for (size_t s = c; s < c + 32; s += kSub) {
      const PerRow scale = Reader<Format>::scales(block, (begin + s) % Packed::kValues / kSub);
      PerRow next = {};
      const size_t after = begin + s + kSub;
      if (after % kGroup != 0 && after < cols) {
        next = Reader<Format>::scales(panel + after / Packed::kValues * Packed::kBytes,
                                      after % Packed::kValues / kSub);
      }
      for (size_t i = 0; i < kVectors; ++i) {
        OpenHalf& half = halves[i / 2];
        const size_t first = 4 * (i % 2);
        if (s % kGroup == 0)
          store_twice(vmulq_n_f32(scale.v[i], -kMagic), half.starts[s / kGroup] + 2 * first);
        store_twice(vsubq_f32(scale.v[i], next.v[i]), half.differences[s / kSub] + 2 * first);
      }
      if constexpr (Packed::Uniform::kHasMin) {
        const PerRow min = Reader<Format>::mins(block, (begin + s) % Packed::kValues / kSub);
        for (size_t i = 0; i < kVectors; ++i)
          store_twice(min.v[i], halves[i / 2].mins[s / kSub] + 8 * (i % 2));
      }
    }
  }
}

// ---- inputs --------------------------------------------------------------------------------------------------------

// Up to three pairs of tokens; where a token is missing, the one before stands in for it.
struct TileInputs {
  alignas(64) int8_t values[kTileTokens * kPartCols];  // [cols / 8][pairs][2 tokens][8 columns]
  float scales[kPartGroups][2 * kTileTokens];          // [groups][pairs][4]
  float sums[kPartSubs][2 * kTileTokens];              // [sub-blocks][pairs][4]
};

ALWAYS_INLINE void store_alternating(float even, float odd, float* out) {
  vst1q_f32(out, vzip1q_f32(vdupq_n_f32(even), vdupq_n_f32(odd)));
}

// Columns [begin, begin + width) of 2 * kPairs rows.
template <size_t kSub, size_t kGroup, bool kHasMin, size_t kPairs>
void interleave(const Q8Row* rows, size_t begin, size_t width, TileInputs& out) {
  for (size_t j = 0; j < kPairs; ++j) {
    const Q8Row even = rows[2 * j], odd = rows[2 * j + 1];
#pragma GCC unroll 4
    for (size_t c = 0; c < width; c += 16) {
      const int64x2_t left = vreinterpretq_s64_s8(vld1q_s8(even.values + begin + c));
      const int64x2_t right = vreinterpretq_s64_s8(vld1q_s8(odd.values + begin + c));
      int8_t* values = out.values + 2 * kPairs * c + 16 * j;
      vst1q_s8(values, vreinterpretq_s8_s64(vzip1q_s64(left, right)));
      vst1q_s8(values + 16 * kPairs, vreinterpretq_s8_s64(vzip2q_s64(left, right)));
    }
    for (size_t g = 0; kGroup * g < width; ++g) {
      const size_t from = begin / kGroup + g;
      store_alternating(even.scales[from], odd.scales[from], out.scales[g] + 4 * j);
    }
    if constexpr (kHasMin) {
      const float* even_sums = kSub == 32 ? even.sums32 : even.sums16;
      const float* odd_sums = kSub == 32 ? odd.sums32 : odd.sums16;
      for (size_t s = 0; kSub * s < width; ++s) {
        const size_t from = begin / kSub + s;
        store_alternating(even_sums[from], odd_sums[from], out.sums[s] + 4 * j);
      }
    }
  }
}

// ---- products ------------------------------------------------------------------------------------------------------

// The sums of eight rows and up to six tokens. They wait in memory between groups, for the tile needs all registers.
struct TileSums {
  float products[kRowPairs * kTilePairs][4];  // [row pairs][pairs of tokens]
  float mins[kRowPairs * kTilePairs][4];      // what minimums take away from them
};

template <size_t kPairs>
struct Tile {
  int32x4_t prefix[kRowPairs][kPairs];
  float32x4_t scaled[kRowPairs][kPairs];
};

// The compiler would load operands as early as it can, and run out of registers.
ALWAYS_INLINE void hold_back_loads() {
  asm volatile("" ::: "memory");
}

// Eight columns.
template <size_t kPairs>
ALWAYS_INLINE void add_columns(const int8_t* codes, const int8_t* values, Tile<kPairs>& tile) {
  int8x16_t tokens[kPairs];
  for (size_t j = 0; j < kPairs; ++j) tokens[j] = vld1q_s8(values + 16 * j);
  for (size_t i = 0; i < kRowPairs; ++i) {
    const int8x16_t rows = vld1q_s8(codes + 16 * i);
    for (size_t j = 0; j < kPairs; ++j) tile.prefix[i][j] = vmmlaq_s32(tile.prefix[i][j], rows, tokens[j]);
    hold_back_loads();
  }
}

template <size_t kPairs>
ALWAYS_INLINE void add_scaled(const float* differences, Tile<kPairs>& tile) {
  for (size_t i = 0; i < kRowPairs; ++i) {
    const float32x4_t difference = vld1q_f32(differences + 4 * i);
    for (size_t j = 0; j < kPairs; ++j) {
      const float32x4_t prefix = vreinterpretq_f32_s32(tile.prefix[i][j]);
      tile.scaled[i][j] = vfmaq_f32(tile.scaled[i][j], prefix, difference);
    }
  }
  hold_back_loads();
}

template <size_t kSub, size_t kGroup, size_t kPairs>
__attribute__((noinline))  // one for all formats of these sizes
void multiply_tile(const OpenHalf& half, const TileInputs& inputs, size_t width, TileSums& sums) {
  const int8_t* codes = half.codes;
  const int8_t* values = inputs.values;
  const float* differences = half.differences[0];
  for (size_t begin = 0; begin < width; begin += kGroup) {
    Tile<kPairs> tile;
    for (size_t i = 0; i < kRowPairs; ++i) {
      for (size_t j = 0; j < kPairs; ++j) {
        tile.prefix[i][j] = vdupq_n_s32(kMagicBits);
        tile.scaled[i][j] = vld1q_f32(half.starts[begin / kGroup] + 4 * i);
      }
    }
    const int8_t* end = codes + kHalfRows * smaller(kGroup, width - begin);
    for (; codes < end; codes += 32 * kHalfRows, values += 64 * kPairs) {
      add_columns<kPairs>(codes, values, tile);
      add_columns<kPairs>(codes + 8 * kHalfRows, values + 16 * kPairs, tile);
      if constexpr (kSub == 16) {
        add_scaled<kPairs>(differences, tile);
        differences += 2 * kHalfRows;
      }
      add_columns<kPairs>(codes + 16 * kHalfRows, values + 32 * kPairs, tile);
      add_columns<kPairs>(codes + 24 * kHalfRows, values + 48 * kPairs, tile);
      add_scaled<kPairs>(differences, tile);
      differences += 2 * kHalfRows;
    }
    for (size_t j = 0; j < kPairs; ++j) {
      const float32x4_t scale = vld1q_f32(inputs.scales[begin / kGroup] + 4 * j);
      for (size_t i = 0; i < kRowPairs; ++i) {
        float* sum = sums.products[kPairs * i + j];
        vst1q_f32(sum, vfmaq_f32(vld1q_f32(sum), tile.scaled[i][j], scale));
      }
    }
  }
}

template <size_t kSub, size_t kPairs>
__attribute__((noinline)) void add_mins(const OpenHalf& half, const TileInputs& inputs, size_t width,
                                        TileSums& sums) {
  float32x4_t mins[kRowPairs][kPairs];
#pragma GCC unroll 4  // or the sums would stay in memory
  for (size_t i = 0; i < kRowPairs; ++i) {
    for (size_t j = 0; j < kPairs; ++j) mins[i][j] = vld1q_f32(sums.mins[kPairs * i + j]);
  }
  for (size_t s = 0; s < width / kSub; ++s) {
    for (size_t i = 0; i < kRowPairs; ++i) {
      const float32x4_t min = vld1q_f32(half.mins[s] + 4 * i);
      for (size_t j = 0; j < kPairs; ++j)
        mins[i][j] = vfmaq_f32(mins[i][j], min, vld1q_f32(inputs.sums[s] + 4 * j));
    }
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < kRowPairs; ++i) {
    for (size_t j = 0; j < kPairs; ++j) vst1q_f32(sums.mins[kPairs * i + j], mins[i][j]);
  }
}

// out[token * kPanelRows + row]
template <bool kHasMin, size_t kPairs>
void finish(const TileSums& sums, float* out) {
  const auto product = [&](size_t i, size_t j) {
    const float32x4_t sum = vld1q_f32(sums.products[kPairs * i + j]);
    return kHasMin ? vsubq_f32(sum, vld1q_f32(sums.mins[kPairs * i + j])) : sum;
  };
  for (size_t j = 0; j < kPairs; ++j) {
    for (size_t i = 0; i < kRowPairs; i += 2) {
      const float32x4_t top = product(i, j), bottom = product(i + 1, j);
      vst1q_f32(out + 2 * j * kPanelRows + 2 * i, vuzp1q_f32(top, bottom));
      vst1q_f32(out + (2 * j + 1) * kPanelRows + 2 * i, vuzp2q_f32(top, bottom));
    }
  }
}

struct Scratch {
  OpenHalf halves[2];
  TileInputs inputs[kPartTiles];
  TileSums sums[kPartPanels][2][kPartTiles];
};

template <class Format, ActivationForm kForm>
class Matmul {
  using Packed = PackedBlock<Format>;
  static constexpr size_t kSub = Packed::kSub;
  static constexpr size_t kGroup = group_values(kForm);
  static constexpr bool kHasMin = Packed::Uniform::kHasMin;

 public:
  explicit Matmul(const MatmulArgs& args)
      : args_(args),
        cols_(args.weight.cols),
        scratch_(*reinterpret_cast<Scratch*>(panel_scratch(sizeof(Scratch)))) {}

  void run() const {
    const size_t last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    const size_t parts = (args_.tokens + kPartTokens - 1) / kPartTokens;
    const size_t tiles = (args_.tokens + kTileTokens - 1) / kTileTokens;
    const size_t tokens = (tiles + parts - 1) / parts * kTileTokens;  // parts of about the same size
    for (size_t panel = args_.row_begin / kPanelRows; panel < last; panel += kPartPanels) {
      for (size_t token = 0; token < args_.tokens; token += tokens) {
        multiply_part({.panel = panel,
                       .panels = smaller(kPartPanels, last - panel),
                       .token = token,
                       .tokens = smaller(tokens, args_.tokens - token)});
      }
    }
  }

 private:
  struct Part {
    size_t panel, panels;
    size_t token, tokens;

    size_t tiles() const { return (tokens + kTileTokens - 1) / kTileTokens; }
    size_t tile_tokens(size_t tile) const { return smaller(kTileTokens, tokens - tile * kTileTokens); }
  };

  // Calls use.template operator()<pairs of tokens>(tile) for each tile.
  template <class Use>
  static void for_tiles(const Part& part, const Use& use) {
    for (size_t tile = 0; tile < part.tiles(); ++tile) {
      switch ((part.tile_tokens(tile) + 1) / 2) {
        case 3:
          use.template operator()<3>(tile);
          break;
        case 2:
          use.template operator()<2>(tile);
          break;
        default:
          use.template operator()<1>(tile);
          break;
      }
    }
  }

  void multiply_part(const Part& part) const {
    for (size_t p = 0; p < part.panels; ++p) {
      for (size_t h = 0; h < 2; ++h) std::memset(scratch_.sums[p][h], 0, part.tiles() * sizeof(TileSums));
    }
    const size_t panel_bytes = cols_ / Packed::kValues * Packed::kBytes;
    for (size_t begin = 0; begin < cols_; begin += kPartCols) {
      const size_t width = smaller(kPartCols, cols_ - begin);
      interleave_inputs(part, begin, width);
      for (size_t p = 0; p < part.panels; ++p) {
        const uint8_t* bytes =
            reinterpret_cast<const uint8_t*>(args_.panels) + (part.panel + p) * panel_bytes;
        open_panel<Format, kGroup>(bytes, cols_, begin, width, scratch_.halves);
        for (size_t h = 0; h < 2; ++h) {
          const OpenHalf& half = scratch_.halves[h];
          for_tiles(part, [&]<size_t kPairs>(size_t tile) {
            TileSums& sums = scratch_.sums[p][h][tile];
            multiply_tile<kSub, kGroup, kPairs>(half, scratch_.inputs[tile], width, sums);
            if constexpr (kHasMin) add_mins<kSub, kPairs>(half, scratch_.inputs[tile], width, sums);
          });
        }
      }
    }
    const PanelOutliers outliers(args_, kOutlierKernels<Format>, kGroup, part.token, part.tokens);
    for (size_t p = 0; p < part.panels; ++p) {
      store_panel(part, p, outliers,
                  reinterpret_cast<const uint8_t*>(args_.panels) + (part.panel + p) * panel_bytes);
    }
  }

  void interleave_inputs(const Part& part, size_t begin, size_t width) const {
    for_tiles(part, [&]<size_t kPairs>(size_t tile) {
      const size_t first = part.token + tile * kTileTokens, last = part.tile_tokens(tile) - 1;
      const auto row = [&](size_t t) {
        return Q8Row(args_.input + (first + smaller(t, last)) * args_.input_stride_bytes, cols_, kGroup);
      };
      const Q8Row rows[kTileTokens] = {row(0), row(1), row(2), row(3), row(4), row(5)};
      interleave<kSub, kGroup, kHasMin, kPairs>(rows, begin, width, scratch_.inputs[tile]);
    });
  }

  // The wanted rows of it.
  void store_panel(const Part& part, size_t p, const PanelOutliers& outliers, const uint8_t* packed) const {
    const size_t first = (part.panel + p) * kPanelRows;
    const size_t from = first < args_.row_begin ? args_.row_begin : first;
    const size_t to = smaller(first + kPanelRows, args_.row_end);
    float products[kPartTokens + kTileTokens][kPanelRows];
    for_tiles(part, [&]<size_t kPairs>(size_t tile) {
      for (size_t h = 0; h < 2; ++h) {
        finish<kHasMin, kPairs>(scratch_.sums[p][h][tile], products[tile * kTileTokens] + h * kHalfRows);
      }
    });
    outliers.add(packed, products);
    for (size_t t = 0; t < part.tokens; ++t) {
      float* out = args_.out + (part.token + t) * args_.out_stride;
      std::memcpy(out + from, products[t] + (from - first), (to - from) * sizeof(float));
    }
  }

  const MatmulArgs& args_;
  size_t cols_;
  Scratch& scratch_;
};

template <class Format, ActivationForm kForm>
void matmul(const MatmulArgs& args) {
  if (args.tokens <= kFewTokens) return matmul_dot<Format, kForm>(args);
  Matmul<Format, kForm>(args).run();
}

}  // namespace

void use_i8mm(CpuKernels& kernels) {
  kernels.name = "i8mm";
#define QUIRE_FORMAT(dtype, Format, activation) \
  kernels.matmul[size_t(DType::dtype)] = matmul<format::Format, ActivationForm::activation>;
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
