#include "backend/cpu/amx/bf16_tile_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/panel_scratch.h"

namespace quire {
namespace {

constexpr size_t kPairTokens = 2 * kBf16TileTokens;

// Inputs of so many tokens stay in the second-level cache (2 MB on such machines) while panels go by; so many columns' weights of
// two panels stay in the first-level one for all of them.
constexpr size_t kShareTokens = 256;
constexpr size_t kChunkCols = 512;

constexpr size_t kRowBytes = kBf16Cols * sizeof(uint16_t);  // of a tile

size_t input_tile_bytes(size_t cols) {
  return bf16_panel_cols(cols) / kBf16Cols * kBf16TileTokens * kRowBytes;
}

// Rows of bf16 are filled up with zeros.
void pack_input(const PackInputArgs& args) {
  for (size_t c = args.col_begin; c < args.col_end; c += kBf16Cols) {
    std::byte* out = args.tile + c * sizeof(uint16_t) * kBf16TileTokens;
    for (size_t t = 0; t < args.tokens; ++t)
      std::memcpy(out + t * kRowBytes, args.rows + t * args.stride_bytes + c * sizeof(uint16_t), kRowBytes);
    std::memset(out + args.tokens * kRowBytes, 0, (kBf16TileTokens - args.tokens) * kRowBytes);
  }
}

class ConfiguredTiles {
 public:
  ConfiguredTiles(const Bf16TileKernels& kernels, size_t tokens) : kernels_(kernels) {
    kernels.configure(tokens);
  }
  ~ConfiguredTiles() { kernels_.release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;

 private:
  const Bf16TileKernels& kernels_;
};

class Bf16TileMatmul {
 public:
  Bf16TileMatmul(const MatmulArgs& args, const Bf16TileKernels& kernels)
      : args_(args),
        kernels_(kernels),
        cols_(bf16_panel_cols(args.weight.cols)),
        tiles_((args.tokens + kBf16TileTokens - 1) / kBf16TileTokens),
        share_tiles_(std::min(tiles_, kShareTokens / kBf16TileTokens)),
        packs_(tiles_ > 1 && args.input_tiles == nullptr),
        sums_(reinterpret_cast<Bf16TileSums*>(panel_scratch(
            2 * share_tiles_ * sizeof(Bf16TileSums) + (packs_ ? tiles_ * input_tile_bytes(cols_) : 0)))),
        inputs_(packs_ ? reinterpret_cast<const std::byte*>(sums_ + 2 * share_tiles_) : args.input_tiles) {
    if (packs_) pack_inputs(reinterpret_cast<std::byte*>(sums_ + 2 * share_tiles_));
  }

  void run() const {
    const ConfiguredTiles tiles(kernels_, std::min(args_.tokens, kBf16TileTokens));
    const size_t first = args_.row_begin / kPanelRows;
    const size_t last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    if (tiles_ == 1) {
      for (size_t panel = first; panel < last; ++panel) stream(panel);
      return;
    }
    for (size_t begin = 0; begin < args_.tokens; begin += kShareTokens) {
      const Share share = {begin, std::min(begin + kShareTokens, args_.tokens)};
      for (size_t panel = first; panel < last; panel += 2) {
        const size_t panels = std::min<size_t>(2, last - panel);
        for (size_t col = 0; col < cols_; col += kChunkCols) multiply(share, panel, panels, col);
        for (size_t p = 0; p < panels; ++p) store(share, panel + p, p);
      }
    }
  }

 private:
  // Tokens that are worked on together.
  struct Share {
    size_t begin, end;
  };

  void pack_inputs(std::byte* out) const {
    for (size_t t = 0; t < args_.tokens; t += kBf16TileTokens, out += input_tile_bytes(cols_)) {
      pack_input({.rows = args_.input + t * args_.input_stride_bytes,
                  .stride_bytes = args_.input_stride_bytes,
                  .tokens = std::min(kBf16TileTokens, args_.tokens - t),
                  .cols = args_.weight.cols,
                  .col_begin = 0,
                  .col_end = args_.weight.cols,
                  .tile = out});
    }
  }

  const std::byte* input(size_t token, size_t col) const {
    return inputs_ + token / kBf16TileTokens * input_tile_bytes(cols_) +
           col * sizeof(uint16_t) * kBf16TileTokens;
  }
  const std::byte* packed(size_t panel, size_t col) const {
    return args_.panels + (panel * cols_ + col) * kPanelRows * sizeof(uint16_t);
  }
  Bf16TileSums* sums(size_t place, size_t tile) const { return sums_ + place * share_tiles_ + tile; }

  // The panel with all tokens, which are a tile: their rows as they are.
  void stream(size_t panel) const {
    kernels_.fetch_and_multiply[0][0]({.panels = {packed(panel, 0), nullptr},
                                       .inputs = {args_.input, nullptr},
                                       .input_stride_bytes = args_.input_stride_bytes,
                                       .input_step_bytes = kRowBytes,
                                       .steps = cols_ / kBf16Cols,
                                       .is_first = true,
                                       .sums = {{sums(0, 0), nullptr}, {nullptr, nullptr}}});
    store({0, args_.tokens}, panel, 0);
  }

  // A chunk of columns of one or two panels with the tokens of a share.
  void multiply(const Share& share, size_t panel, size_t panels, size_t col) const {
    Bf16TileBlock block = {.panels = {packed(panel, col), packed(panel + panels - 1, col)},
                           .inputs = {},
                           .input_stride_bytes = kRowBytes,
                           .input_step_bytes = kBf16TileTokens * kRowBytes,
                           .steps = std::min(kChunkCols, cols_ - col) / kBf16Cols,
                           .is_first = col == 0,
                           .sums = {}};
    for (size_t token = share.begin; token < share.end; token += kPairTokens) {
      const size_t tiles = token + kBf16TileTokens < share.end ? 2 : 1;
      for (size_t i = 0; i < tiles; ++i) {
        block.inputs[i] = input(token + i * kBf16TileTokens, col);
        for (size_t p = 0; p < panels; ++p)
          block.sums[p][i] = sums(p, (token - share.begin) / kBf16TileTokens + i);
      }
      const auto& by_shape = token == share.begin ? kernels_.fetch_and_multiply : kernels_.multiply;
      by_shape[panels - 1][tiles - 1](block);
    }
  }

  // The wanted rows of a panel's products; `place` is that of the panel among two.
  void store(const Share& share, size_t panel, size_t place) const {
    const size_t first = panel * kPanelRows;
    const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
    for (size_t token = share.begin; token < share.end; ++token) {
      const size_t in_share = token - share.begin;
      const float* row = (*sums(place, in_share / kBf16TileTokens))[in_share % kBf16TileTokens];
      std::memcpy(args_.out + token * args_.out_stride + from, row + (from - first),
                  (to - from) * sizeof(float));
    }
  }

  const MatmulArgs& args_;
  const Bf16TileKernels& kernels_;
  size_t cols_;  // of the panels
  size_t tiles_, share_tiles_;
  bool packs_;               // nobody has done it for all rows at once
  Bf16TileSums* sums_;       // [2 panels][share_tiles_]
  const std::byte* inputs_;  // tiles; null where rows are read
};

}  // namespace

InputFormat bf16_input_format() {
  return {.most_rows = kBf16TileTokens, .tile_bytes = input_tile_bytes, .pack = pack_input};
}

void multiply_bf16_tiles(const MatmulArgs& args, const Bf16TileKernels& kernels) {
  if (args.tokens == 0) return;
  Bf16TileMatmul(args, kernels).run();
}

}  // namespace quire
