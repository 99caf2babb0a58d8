#include "backend/cpu/amx/folded_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/panel_scratch.h"
#include "base/check.h"

namespace quire {
namespace {

// Inputs that share the opening of panels: they stay in the second-level cache (2 MB on such machines).
constexpr size_t kSharedBytes = 5 << 19;
constexpr size_t kMostSharedTokens = 512;

size_t tiles_of(size_t tokens) {
  return (tokens + kFoldedTokens - 1) / kFoldedTokens;
}

class ConfiguredTiles {
 public:
  explicit ConfiguredTiles(const FoldedKernels& kernels) : kernels_(kernels) { kernels.configure(); }
  ~ConfiguredTiles() { kernels_.release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;

 private:
  const FoldedKernels& kernels_;
};

class FoldedMatmul {
 public:
  FoldedMatmul(const MatmulArgs& args, const FoldedKernels& kernels)
      : args_(args),
        kernels_(kernels),
        blocks_(args.weight.cols / kFoldedCols),
        share_(shared_tokens()),
        memory_(panel_scratch(sizeof(FoldedScratch) + 2 * sums_bytes() +
                              (args.input_tiles == nullptr ? tiles_of(args.tokens) * tile_bytes() : 0))),
        scratch_(*reinterpret_cast<FoldedScratch*>(memory_)),
        inputs_(reinterpret_cast<const FoldedInput*>(args.input_tiles)) {
    scratch_.turn = 0;
    scratch_.waiting = {};
    if (inputs_ == nullptr) pack_inputs(memory_ + sizeof(FoldedScratch) + 2 * sums_bytes());
  }

  void run() const {
    const ConfiguredTiles configured(kernels_);
    for (size_t token = 0; token < args_.tokens; token += share_) {
      const size_t tokens = std::min(share_, args_.tokens - token);
      const PanelOutliers outliers(args_, kernels_.outliers, kFoldedCols, token, tokens);
      const Share share{token, tokens, tiles_of(tokens), inputs_ + token / kFoldedTokens * blocks_, outliers};
      if (share.tiles <= kFoldedStreamTiles) {
        stream(share);
      } else {
        multiply(share);
      }
    }
  }

 private:
  // Tokens that are worked on together.
  struct Share {
    size_t token, tokens, tiles;
    const FoldedInput* inputs;  // [tiles][blocks]
    const PanelOutliers& outliers;
  };
  // One or two panels.
  struct Panels {
    size_t count, at[2];
  };

  size_t tile_bytes() const { return blocks_ * sizeof(FoldedInput); }
  size_t sums_bytes() const { return tiles_of(share_) * kFoldedTokens * kPanelRows * sizeof(float); }
  // Of a panel's place among two: [tokens][rows].
  float (*sums(size_t place) const)[kPanelRows] {
    return reinterpret_cast<float(*)[kPanelRows]>(memory_ + sizeof(FoldedScratch) + place * sums_bytes());
  }

  // Equal shares of whole tiles.
  size_t shared_tokens() const {
    const size_t token_bytes = args_.weight.cols + args_.weight.cols / 8;
    const size_t most = std::clamp(kSharedBytes / token_bytes, kFoldedTokens, kMostSharedTokens);
    const size_t shares = (args_.tokens + most - 1) / most;
    return tiles_of((args_.tokens + shares - 1) / shares) * kFoldedTokens;
  }

  void pack_inputs(std::byte* out) {
    inputs_ = reinterpret_cast<const FoldedInput*>(out);
    for (size_t t = 0; t < args_.tokens; t += kFoldedTokens, out += tile_bytes()) {
      kernels_.inputs.pack({.rows = args_.input + t * args_.input_stride_bytes,
                            .stride_bytes = args_.input_stride_bytes,
                            .tokens = std::min(kFoldedTokens, args_.tokens - t),
                            .cols = args_.weight.cols,
                            .col_begin = 0,
                            .col_end = args_.weight.cols,
                            .tile = out});
    }
  }

  const uint8_t* packed(size_t panel, size_t block) const {
    return reinterpret_cast<const uint8_t*>(args_.panels) + (panel * blocks_ + block) * kernels_.block_bytes;
  }

  FoldedOpening opening(const Panels& panels, size_t block, size_t half) const {
    return {.blocks = {packed(panels.at[0], block), packed(panels.at[1], block)},
            .out = scratch_.open[half],
            .next = 0,
            .end = panels.count * kFoldedSteps,
            .each = 0};
  }

  FoldedTask task(const Panels& panels, size_t block, size_t tile, size_t half, const Share& share) const {
    const bool is_last = tile + 1 == share.tiles;
    const size_t next_tile = is_last ? 0 : tile + 1, next_block = is_last ? (block + 1) % blocks_ : block;
    return {.panels = scratch_.open[half],
            .input = share.inputs + tile * blocks_ + block,
            .next_input = share.inputs + next_tile * blocks_ + next_block,
            .sums = {sums(0) + tile * kFoldedTokens,
                     panels.count == 2 ? sums(1) + tile * kFoldedTokens : nullptr}};
  }

  void clear(size_t panels) const { std::memset(sums(0), 0, panels * sums_bytes()); }

  // ---- many tokens: a block is opened, and then meets all of them

  void multiply(const Share& share) const {
    const size_t first = args_.row_begin / kPanelRows, last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    FoldedOpening none = {};
    for (size_t panel = first; panel < last; panel += 2) {
      const Panels panels = {std::min<size_t>(2, last - panel), {panel, std::min(panel + 1, last - 1)}};
      clear(panels.count);
      for (size_t block = 0; block < blocks_; ++block) {
        kernels_.finish[panels.count - 1](scratch_);
        FoldedOpening all = opening(panels, block, 0);
        kernels_.open[panels.count - 1](all);
        for (size_t tile = 0; tile < share.tiles; ++tile)
          kernels_.multiply[panels.count - 1](task(panels, block, tile, 0, share), none, scratch_);
      }
      store(panels, share);
    }
  }

  // ---- few tokens: while they are multiplied with a block, the next one is opened

  // Panels of the first half go with those of the second, so that each is a stream of its own.
  void stream(const Share& share) const {
    const size_t first = args_.row_begin / kPanelRows, last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    const size_t pairs = (last - first) / 2;
    size_t half = 0;
    if (pairs > 0) {
      FoldedOpening all = opening({2, {first, first + pairs}}, 0, half);
      kernels_.open[1](all);
    }
    for (size_t i = 0; i < pairs; ++i) {
      const Panels panels = {2, {first + i, first + pairs + i}};
      half = stream_panels(panels, i + 1 < pairs ? 1 : 0, half, share);
    }
    if ((last - first) % 2 == 0) return;
    FoldedOpening all = opening({1, {last - 1, last - 1}}, 0, half);
    kernels_.open[0](all);
    stream_panels({1, {last - 1, last - 1}}, 0, half, share);
  }

  // `after`: how many panels further those are whose first block is opened at the end; 0: there are none. Returns the half it is in.
  size_t stream_panels(const Panels& panels, size_t after, size_t half, const Share& share) const {
    clear(panels.count);
    for (size_t block = 0; block < blocks_; ++block, half ^= 1) {
      FoldedOpening next = {};
      if (block + 1 < blocks_) {
        next = opening(panels, block + 1, half ^ 1);
      } else if (after != 0) {
        next = opening({panels.count, {panels.at[0] + after, panels.at[1] + after}}, 0, half ^ 1);
      }
      next.each = (panels.count + share.tiles - 1) / share.tiles;
      for (size_t tile = 0; tile < share.tiles; ++tile)
        kernels_.multiply[panels.count - 1](task(panels, block, tile, half, share), next, scratch_);
      CHECK(next.next == next.end);
    }
    store(panels, share);
    return half;
  }

  // What is left to do when all columns are multiplied: outliers, and the wanted rows.
  void store(const Panels& panels, const Share& share) const {
    kernels_.finish[panels.count - 1](scratch_);
    for (size_t p = 0; p < panels.count; ++p) {
      float(*products)[kPanelRows] = sums(p);
      share.outliers.add(packed(panels.at[p], 0), products);
      const size_t first = panels.at[p] * kPanelRows;
      const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
      for (size_t t = 0; t < share.tokens; ++t) {
        float* out = args_.out + (share.token + t) * args_.out_stride;
        std::memcpy(out + from, products[t] + (from - first), (to - from) * sizeof(float));
      }
    }
  }

  const MatmulArgs& args_;
  const FoldedKernels& kernels_;
  size_t blocks_;
  size_t share_;
  std::byte*
      memory_;  // the scratch, the sums of a share with two panels, and inputs where nobody packed them
  FoldedScratch& scratch_;
  const FoldedInput* inputs_;  // [tiles][blocks]
};

}  // namespace

void multiply_folded(const MatmulArgs& args, const FoldedKernels& kernels) {
  CHECK(args.tokens >= kFoldedLeastTokens);
  if (args.row_begin == args.row_end) return;
  FoldedMatmul(args, kernels).run();
}

}  // namespace quire
