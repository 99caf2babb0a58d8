#include "backend/cpu/amx/tile_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/panel_scratch.h"
#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kPairTokens = 2 * kTileTokens;

// Inputs that share the opening of panels: they stay in the second-level cache (2 MB on such machines).
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
        share_(shared_tokens()),
        memory_(panel_scratch(sizeof(TileScratch) + pairs() * sizeof(TileResults) + 2 * open_bytes() +
                              (share_ + kTileTokens) * sizeof(*products_))),
        scratch_(*reinterpret_cast<TileScratch*>(memory_)),
        results_(reinterpret_cast<TileResults*>(memory_ + sizeof(TileScratch))),
        open_(memory_ + sizeof(TileScratch) + pairs() * sizeof(TileResults)),
        products_(reinterpret_cast<float (*)[kPanelRows]>(open_ + 2 * open_bytes())) {}

  void run() const {
    const ConfiguredTiles tiles(kernels_, tile_tokens_);
    const size_t first = args_.row_begin / kPanelRows;
    const size_t last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    for (size_t begin = 0; begin < args_.tokens; begin += share_) {
      const size_t end = std::min(begin + share_, args_.tokens);
      const size_t written = std::min(begin, args_.tokens - tile_tokens_);  // a last tile may begin earlier
      const PanelOutliers outliers(args_, kernels_.outliers, kernels_.group, written, end - written);
      for (size_t panel = first; panel < last; panel += 2) {
        const size_t panels = std::min<size_t>(2, last - panel);
        clear();
        for (size_t col = 0; col < cols_; col += kChunkCols) multiply(panel, panels, col, begin, end);
        for (size_t p = 0; p < panels; ++p) {
          for (size_t t = begin; t < end; t += kPairTokens) gather(p, t, end, written);
          outliers.add(packed(panel + p, 0), products_);
          store(panel + p, written, end);
        }
      }
    }
  }

 private:
  size_t chunk_cols() const { return std::min(cols_, kChunkCols); }
  size_t open_bytes() const {
    return OpenPanel::bytes(chunk_cols(), kernels_.sub, kernels_.group, kernels_.planes);
  }
  size_t pairs() const { return share_ / kPairTokens; }

  // Equal shares, but that they are pairs of tiles.
  size_t shared_tokens() const {
    const size_t read_bytes = cols_ + cols_ / 2;  // of a row: all but the room for outliers
    const size_t most = std::clamp(kSharedBytes / read_bytes, kPairTokens, kMostSharedTokens);
    const size_t shares = (args_.tokens + most - 1) / most;
    const size_t equal = (args_.tokens + shares - 1) / shares;
    return (equal + kPairTokens - 1) / kPairTokens * kPairTokens;
  }

  // Tiles of tokens in the pair that begins at `token`, and the first token of each: a tile that would go beyond the
  // last token begins earlier, so that some tokens are computed twice.
  struct TokenTiles {
    size_t count, firsts[2];
  };
  TokenTiles token_tiles(size_t token, size_t end) const {
    const size_t last = args_.tokens - tile_tokens_;
    return {token + kTileTokens < end ? 2u : 1u,
            {std::min(token, last), std::min(token + kTileTokens, last)}};
  }

  void clear() const {
    for (size_t pair = 0; pair < pairs(); ++pair) {
      std::memset(results_[pair].sums, 0, sizeof(results_[pair].sums));
    }
  }

  size_t packed_bytes(size_t cols) const { return cols / kernels_.block_values * kernels_.block_bytes; }
  const uint8_t* packed(size_t panel, size_t col) const {
    return reinterpret_cast<const uint8_t*>(args_.panels) + panel * packed_bytes(cols_) + packed_bytes(col);
  }

  // Brings what is opened next to the second-level cache.
  void prefetch_after(size_t panel, size_t col) const {
    const bool is_last = col + kChunkCols >= cols_;
    const size_t next = is_last ? panel + 2 : panel, next_col = is_last ? 0 : col + kChunkCols;
    for (size_t p = next; p < next + 2 && p * kPanelRows < args_.row_end; ++p) {
      const uint8_t* begin = packed(p, next_col);
      const uint8_t* end = begin + packed_bytes(std::min(kChunkCols, cols_ - next_col));
      for (const uint8_t* line = begin; line < end; line += 64) __builtin_prefetch(line, 0, 2);
    }
  }

  OpenPanel open_panel(size_t p, size_t cols) const {
    return {open_ + p * open_bytes(), cols, kernels_.sub, kernels_.group, kernels_.planes};
  }

  // The next columns of panels [panel, panel + panels) with tokens [begin, end).
  void multiply(size_t panel, size_t panels, size_t col, size_t begin, size_t end) const {
    const size_t cols = std::min(kChunkCols, cols_ - col);
    TileBlock block = {.panels = {open_panel(0, cols), open_panel(1, cols)},
                       .inputs = {},
                       .input_stride_bytes = args_.input_stride_bytes,
                       .tokens = tile_tokens_,
                       .cols = cols_,
                       .col_begin = col,
                       .col_end = col + cols,
                       .next_inputs = nullptr,
                       .next_col = 0};
    for (size_t p = 0; p < panels; ++p) {
      kernels_.open(packed(panel + p, col), cols, block.panels[p]);
    }
    prefetch_after(panel, col);
    for (size_t t = begin; t < end; t += kPairTokens) {
      const TokenTiles tiles = token_tiles(t, end);
      for (size_t i = 0; i < tiles.count; ++i) {
        block.inputs[i] = args_.input + tiles.firsts[i] * args_.input_stride_bytes;
      }
      const bool is_last = t + kPairTokens >= end;
      block.next_inputs = args_.input + (is_last ? begin : t + kPairTokens) * args_.input_stride_bytes;
      block.next_col = is_last ? col + cols : col;
      kernels_.multiply[panels - 1][tiles.count - 1](block, scratch_, results_[(t - begin) / kPairTokens]);
    }
  }

  // The products of a panel (the first or the second) with the tokens of a pair, to where those with all tokens from `first`
  // on lie together.
  void gather(size_t p, size_t token, size_t end, size_t first) const {
    const TokenTiles tiles = token_tiles(token, end);
    TileResults& results = results_[token % share_ / kPairTokens];
    for (size_t i = 0; i < tiles.count; ++i) {
      TileFloats& sums = results.sums[2 * p + i];
      std::memcpy(products_[tiles.firsts[i] - first], sums, tile_tokens_ * sizeof(sums[0]));
    }
  }

  // The wanted rows of a panel's products with tokens [begin, end).
  void store(size_t panel, size_t begin, size_t end) const {
    const size_t first = panel * kPanelRows;
    const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
    for (size_t t = begin; t < end; ++t) {
      float* out = args_.out + t * args_.out_stride;
      std::memcpy(out + from, products_[t - begin] + (from - first), (to - from) * sizeof(float));
    }
  }

  const MatmulArgs& args_;
  const TileKernels& kernels_;
  size_t cols_;
  size_t tile_tokens_;
  size_t share_;       // tokens that share the opening of panels
  std::byte* memory_;  // the scratch, and after it the results of a share, two open panels and the products
  TileScratch& scratch_;
  TileResults* results_;  // [pairs]
  std::byte* open_;
  float (*products_)[kPanelRows];  // of one panel
};

}  // namespace

void multiply_tiles(const MatmulArgs& args, const TileKernels& kernels) {
  CHECK(args.tokens >= kLeastTileTokens);
  TileMatmul(args, kernels).run();
}

}  // namespace quire
