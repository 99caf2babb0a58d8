// Matrix products by `smmla`, which multiplies two rows by two tokens over eight columns. Compiled for ARMv8.2 with dot
// product and i8mm, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include <cstring>

#include "backend/cpu/i8mm/i8mm_kernels.h"
#include "backend/cpu/i8mm/tile_product.h"
#include "backend/cpu/matmul/panel_scratch.h"
#include "backend/cpu/neon/neon_kernels.h"

namespace quire {
namespace {

// Too few for an opened panel to pay. Codes that go from memory into the product come as four columns of a row, and
// joining two of these for one `smmla` costs what the second `sdot` does.
constexpr size_t kFewTokens = 2;

template <class Format>
constexpr const OutlierKernels& outlier_kernels() {
  if constexpr (kHasPairs<Format>) {
    return kPairOutlierKernels<Format>;
  } else {
    return kOutlierKernels<Format>;
  }
}

template <class Scales>
struct Scratch {
  OpenPiece<Scales> open;
  TileInputs<typename Scales::Sum> inputs[kPartTiles];
  TileSums sums[kPartPanels][kPartTiles][2];
  TileSums min_sums[kPartPanels][kPartTiles][2];  // only where minimums are floats
};

template <class Format, ActivationForm kForm>
class Matmul {
  using Packed = Panel<Format>;
  static constexpr size_t kSub = Packed::kSub;
  static constexpr size_t kGroup = group_values(kForm);
  static constexpr bool kHasMin = Packed::Uniform::kHasMin;
  static constexpr bool kIsWhole = In256<Format>;
  static constexpr bool kHasFloatMin = kHasMin && !kIsWhole;
  static constexpr size_t kGap = kIsOpen<Format> ? Packed::kStart : 0;
  using Scales = std::conditional_t<kIsWhole, WholeScales, FloatScales>;

 public:
  explicit Matmul(const MatmulArgs& args)
      : args_(args),
        cols_(args.weight.cols),
        scratch_(*reinterpret_cast<Scratch<Scales>*>(panel_scratch(sizeof(Scratch<Scales>)))) {}

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

    // Of about the same size: a tile of one pair would cost as much as one of two.
    size_t pairs() const { return (tokens + 1) / 2; }
    size_t tiles() const { return (pairs() + kTilePairs - 1) / kTilePairs; }
    size_t tile_begin(size_t tile) const { return 2 * (pairs() * tile / tiles()); }
    size_t tile_tokens(size_t tile) const { return smaller(tile_begin(tile + 1), tokens) - tile_begin(tile); }
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

  // A piece of the columns, and the inputs of a part for it.
  struct Piece {
    size_t begin, width;
    TileInputs<typename Scales::Sum>* inputs;  // [tiles]
    size_t next_bytes;                         // from there to what is opened next
  };
  // `kept`: of how many pieces the inputs wait.
  Piece piece(const Part& part, size_t index, size_t kept) const {
    const size_t begin = index * kPartCols, width = smaller(kPartCols, cols_ - begin);
    return {begin, width, scratch_.inputs + index % kept * part.tiles(),
            kept == 1 ? panel_bytes() : width / Packed::kValues * Packed::kBytes};
  }
  size_t pieces() const { return (cols_ + kPartCols - 1) / kPartCols; }
  size_t panel_bytes() const { return cols_ / Packed::kValues * Packed::kBytes; }
  const uint8_t* packed(const Part& part, size_t p) const {
    return reinterpret_cast<const uint8_t*>(args_.panels) + (part.panel + p) * panel_bytes();
  }
  PanelOutliers outliers_of(const Part& part) const {
    return {args_, outlier_kernels<Format>(), kGroup, part.token, part.tokens};
  }

  void multiply_part(const Part& part) const {
    for (size_t p = 0; p < part.panels; ++p) {
      std::memset(scratch_.sums[p], 0, 2 * part.tiles() * sizeof(TileSums));
      if constexpr (kHasFloatMin) std::memset(scratch_.min_sums[p], 0, 2 * part.tiles() * sizeof(TileSums));
    }
    if (pieces() * part.tiles() <= kFewTiles) {
      multiply_by_panel(part);
    } else {
      multiply_by_piece(part);
    }
  }

  // With few tokens, whose inputs stay in the second-level cache for all columns: outliers find the panel in a cache too.
  void multiply_by_panel(const Part& part) const {
    for (size_t i = 0; i < pieces(); ++i) interleave_inputs(part, piece(part, i, pieces()));
    const PanelOutliers outliers = outliers_of(part);
    for (size_t p = 0; p < part.panels; ++p) {
      for (size_t i = 0; i < pieces(); ++i) multiply_piece(part, p, piece(part, i, pieces()));
      store_panel(part, p, outliers, packed(part, p));
    }
  }

  void multiply_by_piece(const Part& part) const {
    for (size_t i = 0; i < pieces(); ++i) {
      interleave_inputs(part, piece(part, i, 1));
      for (size_t p = 0; p < part.panels; ++p) multiply_piece(part, p, piece(part, i, 1));
    }
    const PanelOutliers outliers = outliers_of(part);
    for (size_t p = 0; p < part.panels; ++p) store_panel(part, p, outliers, packed(part, p));
  }

  void multiply_piece(const Part& part, size_t p, const Piece& piece) const {
    const uint8_t* panel = packed(part, p);
    const uint8_t* bytes = panel + piece.begin / Packed::kValues * Packed::kBytes;
    open_panel<Format, kGroup>(panel, cols_, piece.begin, piece.width, piece.next_bytes, scratch_.open);
    const int8_t* codes =
        kIsOpen<Format> ? reinterpret_cast<const int8_t*>(bytes + Packed::kStart) : scratch_.open.codes;
    const uint8_t* next = bytes + piece.next_bytes;
    const size_t share = piece.width / Packed::kValues * Packed::kBytes / part.tiles();
    for_tiles(part, [&]<size_t kPairs>(size_t tile) {
      // What is not opened is fetched beside the products, a share of it with each tile.
      for (size_t line = 0; kIsOpen<Format> && line < share; line += 64)
        fetch_line<FarFetch>(next + tile * share + line);
      // One after the other, while the inputs are in the first-level cache.
      for (size_t h = 0; h < 2; ++h) {
        multiply_tile<kSub, kGroup, kHasMin, kGap, kPairs>(
            scratch_.open.halves[h], codes + kEightCodes / 2 * h, piece.inputs[tile], piece.width,
            scratch_.sums[p][tile][h], scratch_.min_sums[p][tile][h]);
      }
    });
  }

  void interleave_inputs(const Part& part, const Piece& piece) const {
    for_tiles(part, [&]<size_t kPairs>(size_t tile) {
      const size_t first = part.token + part.tile_begin(tile), last = part.tile_tokens(tile) - 1;
      const auto row = [&](size_t t) {
        return Q8Row(args_.input + (first + smaller(t, last)) * args_.input_stride_bytes, cols_, kGroup);
      };
      const Q8Row rows[kTileTokens] = {row(0), row(1), row(2), row(3), row(4), row(5)};
      interleave<kSub, kGroup, kHasMin, kPairs>(rows, piece.begin, piece.width, piece.inputs[tile]);
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
        finish<kHasFloatMin, kPairs>(scratch_.sums[p][tile][h], scratch_.min_sums[p][tile][h],
                                     products[part.tile_begin(tile)] + h * kHalfRows);
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
  Scratch<Scales>& scratch_;
};

template <class Format, ActivationForm kForm>
void matmul(const MatmulArgs& args) {
  if constexpr (kHasPairs<Format>) {
    if (args.tokens <= kMostDirect) return matmul_pairs<Format, kForm>(args);
  } else {
    if (args.tokens <= kFewTokens) return matmul_dot<Format, kForm, FarFetch>(args);
  }
  Matmul<Format, kForm>(args).run();
}

template <class Format>
void use_pairs(CpuKernels& kernels, DType type) {
  if constexpr (kHasPairs<Format>) kernels.panels[size_t(type)] = pair_format<Format>();
}

}  // namespace

void use_i8mm(CpuKernels& kernels) {
  kernels.name = "i8mm";
  kernels.attend = attend_neon_dot_far;
  use_neon_far_floats(kernels);
#define QUIRE_FORMAT(dtype, Format, activation)                                              \
  kernels.matmul[size_t(DType::dtype)] = matmul<format::Format, ActivationForm::activation>; \
  use_pairs<format::Format>(kernels, DType::dtype);
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT
#define QUIRE_FORMAT(dtype, Format, activation) \
  kernels.matmul[size_t(DType::dtype)] = matmul<Panels<format::Format>, ActivationForm::activation>;
#include "backend/cpu/matmul/book_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
