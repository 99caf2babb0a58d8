#include "backend/cpu/amx/tile_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/panel_scratch.h"
#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kPairTokens = 2 * kTileTokens;

// Inputs that share the opening of panels: they stay in the second-level cache (2 MB on such machines) beside two
// opened panels.
constexpr size_t kSharedBytes = 5 << 18;
constexpr size_t kMostSharedTokens = 256;

class ConfiguredTiles {
 public:
  ConfiguredTiles(const TileKernels& kernels, size_t tokens) : kernels_(kernels) {
    kernels.configure(tokens);
  }
  ~ConfiguredTiles() { kernels_.release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;

 private:
  const TileKernels& kernels_;
};

class TileMatmul {
 public:
  TileMatmul(const MatmulArgs& args, const TileKernels& kernels)
      : args_(args),
        kernels_(kernels),
        cols_(args.weight.cols),
        tile_tokens_(std::min(args.tokens, kTileTokens)),
        memory_(panel_scratch(sizeof(TileScratch) + 2 * open_bytes())),
        scratch_(*reinterpret_cast<TileScratch*>(memory_)) {}

  void run() const {
    const ConfiguredTiles tiles(kernels_, tile_tokens_);
    const size_t first = args_.row_begin / kPanelRows;
    const size_t last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    const size_t share = shared_tokens();
    for (size_t begin = 0; begin < args_.tokens; begin += share) {
      const size_t end = std::min(begin + share, args_.tokens);
      for (size_t panel = first; panel < last; panel += 2) {
        multiply(panel, std::min<size_t>(2, last - panel), begin, end);
      }
    }
  }

 private:
  size_t open_bytes() const { return OpenPanel::bytes(cols_, kernels_.sub, kernels_.group); }
  OpenPanel open(size_t i) const {
    return {memory_ + sizeof(TileScratch) + i * open_bytes(), cols_, kernels_.sub, kernels_.group};
  }

  // Equal shares, but that they are pairs of tiles.
  size_t shared_tokens() const {
    const size_t most = std::clamp(kSharedBytes / args_.input_stride_bytes, kPairTokens, kMostSharedTokens);
    const size_t shares = (args_.tokens + most - 1) / most;
    const size_t equal = (args_.tokens + shares - 1) / shares;
    return (equal + kPairTokens - 1) / kPairTokens * kPairTokens;
  }

  // Panels [panel, panel + panels) with tokens [begin, end).
  void multiply(size_t panel, size_t panels, size_t begin, size_t end) const {
    const size_t bytes = cols_ / kernels_.block_values * kernels_.block_bytes;
    TileBlock block = {.panels = {open(0), open(1)},
                       .inputs = {},
                       .input_stride_bytes = args_.input_stride_bytes,
                       .tokens = tile_tokens_,
                       .cols = cols_};
    for (size_t p = 0; p < panels; ++p) {
      const uint8_t* packed = reinterpret_cast<const uint8_t*>(args_.panels) + (panel + p) * bytes;
      kernels_.open(packed, cols_, block.panels[p]);
    }
    for (size_t t = begin; t < end; t += kPairTokens) {
      const size_t tiles = t + kTileTokens < end ? 2 : 1;
      // A tile that would go beyond the last token begins earlier: some tokens are then computed twice.
      const size_t firsts[2] = {std::min(t, args_.tokens - tile_tokens_),
                                std::min(t + kTileTokens, args_.tokens - tile_tokens_)};
      for (size_t i = 0; i < tiles; ++i) block.inputs[i] = args_.input + firsts[i] * args_.input_stride_bytes;
      kernels_.multiply[panels - 1][tiles - 1](block, scratch_);
      for (size_t p = 0; p < panels; ++p) {
        for (size_t i = 0; i < tiles; ++i) store(panel + p, firsts[i], scratch_.sums[2 * p + i]);
      }
    }
  }

  // The wanted rows of a panel's products with a tile of tokens.
  void store(size_t panel, size_t token, const TileFloats& products) const {
    const size_t first = panel * kPanelRows;
    const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
    for (size_t t = 0; t < tile_tokens_; ++t) {
      float* out = args_.out + (token + t) * args_.out_stride;
      std::memcpy(out + from, products[t] + (from - first), (to - from) * sizeof(float));
    }
  }

  const MatmulArgs& args_;
  const TileKernels& kernels_;
  size_t cols_;
  size_t tile_tokens_;
  std::byte* memory_;  // the scratch, and after it two open panels
  TileScratch& scratch_;
};

}  // namespace

void multiply_tiles(const MatmulArgs& args, const TileKernels& kernels) {
  CHECK(args.tokens >= kLeastTileTokens);
  TileMatmul(args, kernels).run();
}

}  // namespace quire
