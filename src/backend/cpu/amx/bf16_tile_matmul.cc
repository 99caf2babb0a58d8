#include "backend/cpu/amx/bf16_tile_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/panel_scratch.h"

namespace quire {
namespace {

constexpr size_t kPairTokens = 2 * kBf16TileTokens;

// Inputs of so many tokens and columns stay in the second-level cache (2 MB on such machines) for all panels of a group,
// and beside them the columns' weights of two panels for all the tokens.
constexpr size_t kShareTokens = 256;
constexpr size_t kChunkCols = 2048;
constexpr size_t kGroupPanels = 4;

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
        tile_tokens_(std::min(args.tokens, kBf16TileTokens)),
        share_tiles_((std::min(args.tokens, kShareTokens) + kBf16TileTokens - 1) / kBf16TileTokens),
        sums_(reinterpret_cast<Bf16TileSums*>(
            panel_scratch(kGroupPanels * share_tiles_ * sizeof(Bf16TileSums)))) {}

  void run() const {
    const ConfiguredTiles tiles(kernels_, tile_tokens_);
    const size_t first = args_.row_begin / kPanelRows;
    const size_t last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    if (args_.tokens <= kBf16TileTokens) {
      for (size_t panel = first; panel < last; ++panel) stream(panel);
      return;
    }
    for (size_t begin = 0; begin < args_.tokens; begin += kShareTokens) {
      const Share share = {begin, std::min(begin + kShareTokens, args_.tokens)};
      for (size_t group = first; group < last; group += kGroupPanels) {
        const size_t end = std::min(group + kGroupPanels, last);
        for (size_t col = 0; col < cols_; col += kChunkCols) {
          for (size_t panel = group; panel < end; panel += 2) {
            multiply(share, panel, std::min<size_t>(2, end - panel), panel - group, col);
          }
        }
        for (size_t panel = group; panel < end; ++panel) store(share, panel, panel - group);
      }
    }
  }

 private:
  // Tokens that are worked on together.
  struct Share {
    size_t begin, end;
  };

  // A tile that would go beyond the last token begins earlier, so that some tokens are computed twice.
  size_t first_token(size_t token) const { return std::min(token, args_.tokens - tile_tokens_); }
  const std::byte* input(size_t token, size_t col) const {
    return args_.input + first_token(token) * args_.input_stride_bytes + col * sizeof(uint16_t);
  }
  const std::byte* packed(size_t panel, size_t col) const {
    return args_.panels + (panel * cols_ + col) * kPanelRows * sizeof(uint16_t);
  }
  Bf16TileSums* sums(size_t place, size_t tile) const { return sums_ + place * share_tiles_ + tile; }

  // The panel with all tokens, which are a tile.
  void stream(size_t panel) const {
    kernels_.fetch_and_multiply[0][0]({.panels = {packed(panel, 0), nullptr},
                                       .inputs = {args_.input, nullptr},
                                       .input_stride_bytes = args_.input_stride_bytes,
                                       .steps = cols_ / kBf16Cols,
                                       .is_first = true,
                                       .sums = {{sums(0, 0), nullptr}, {nullptr, nullptr}}});
    store({0, args_.tokens}, panel, 0);
  }

  // A chunk of columns of one or two panels with the tokens of a share; `place` is the first panel's in its group.
  void multiply(const Share& share, size_t panel, size_t panels, size_t place, size_t col) const {
    Bf16TileBlock block = {.panels = {packed(panel, col), packed(panel + panels - 1, col)},
                           .inputs = {},
                           .input_stride_bytes = args_.input_stride_bytes,
                           .steps = std::min(kChunkCols, cols_ - col) / kBf16Cols,
                           .is_first = col == 0,
                           .sums = {}};
    for (size_t token = share.begin; token < share.end; token += kPairTokens) {
      const size_t tiles = token + kBf16TileTokens < share.end ? 2 : 1;
      for (size_t i = 0; i < tiles; ++i) {
        block.inputs[i] = input(token + i * kBf16TileTokens, col);
        for (size_t p = 0; p < panels; ++p)
          block.sums[p][i] = sums(place + p, (token - share.begin) / kBf16TileTokens + i);
      }
      const auto& by_shape = token == share.begin ? kernels_.fetch_and_multiply : kernels_.multiply;
      by_shape[panels - 1][tiles - 1](block);
    }
  }

  // The wanted rows of a panel's products.
  void store(const Share& share, size_t panel, size_t place) const {
    const size_t first = panel * kPanelRows;
    const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
    for (size_t token = share.begin; token < share.end; ++token) {
      const size_t in_share = token - share.begin, tile = in_share / kBf16TileTokens;
      const size_t row = token - first_token(share.begin + tile * kBf16TileTokens);
      std::memcpy(args_.out + token * args_.out_stride + from, (*sums(place, tile))[row] + (from - first),
                  (to - from) * sizeof(float));
    }
  }

  const MatmulArgs& args_;
  const Bf16TileKernels& kernels_;
  size_t cols_;  // of the panels
  size_t tile_tokens_;
  size_t share_tiles_;
  Bf16TileSums* sums_;  // [kGroupPanels][share_tiles_]
};

}  // namespace

void multiply_bf16_tiles(const MatmulArgs& args, const Bf16TileKernels& kernels) {
  if (args.tokens == 0) return;
  Bf16TileMatmul(args, kernels).run();
}

}  // namespace quire
