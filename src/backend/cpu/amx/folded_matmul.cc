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
        first_(args.row_begin / kPanelRows),
        last_((args.row_end + kPanelRows - 1) / kPanelRows),
        share_(shared_tokens()),
        memory_(panel_scratch(sizeof(FoldedScratch) + sums_bytes() +
                              (args.input_tiles == nullptr ? tiles_of(args.tokens) * tile_bytes() : 0))),
        scratch_(*reinterpret_cast<FoldedScratch*>(memory_)),
        inputs_(reinterpret_cast<const FoldedInput*>(args.input_tiles)) {
    scratch_.turn = 0;
    scratch_.waiting = {};
    if (inputs_ == nullptr) pack_inputs(memory_ + sizeof(FoldedScratch) + sums_bytes());
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
  size_t tile_bytes() const { return blocks_ * sizeof(FoldedInput); }
  size_t sums_bytes() const { return tiles_of(share_) * kFoldedTokens * kPanelRows * sizeof(float); }
  // Of one panel: [tokens][rows].
  float (*sums() const)[kPanelRows] {
    return reinterpret_cast<float(*)[kPanelRows]>(memory_ + sizeof(FoldedScratch));
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

  FoldedTask task(size_t block, size_t tile, size_t half, const Share& share) const {
    const bool is_last = tile + 1 == share.tiles;
    const size_t next_tile = is_last ? 0 : tile + 1, next_block = is_last ? (block + 1) % blocks_ : block;
    return {.panel = &scratch_.open[half],
            .input = share.inputs + tile * blocks_ + block,
            .next_input = share.inputs + next_tile * blocks_ + next_block,
            .sums = sums() + tile * kFoldedTokens};
  }

  // ---- many tokens: a block is opened, and then meets all of them

  void multiply(const Share& share) const {
    FoldedOpening none = {};
    for (size_t panel = first_; panel < last_; ++panel) {
      std::memset(sums(), 0, sums_bytes());
      for (size_t block = 0; block < blocks_; ++block) {
        kernels_.finish(scratch_);
        kernels_.open(packed(panel, block), scratch_.open[0]);
        for (size_t tile = 0; tile < share.tiles; ++tile)
          kernels_.multiply(task(block, tile, 0, share), none, scratch_);
      }
      store(panel, share);
    }
  }

  // ---- few tokens: while they are multiplied with a block, the next one is opened

  void stream(const Share& share) const {
    const size_t end = last_ * blocks_;
    size_t half = 0;
    kernels_.open(packed(first_, 0), scratch_.open[half]);
    for (size_t at = first_ * blocks_; at < end; ++at, half ^= 1) {
      const size_t panel = at / blocks_, block = at % blocks_;
      if (block == 0) std::memset(sums(), 0, sums_bytes());
      FoldedOpening next = {.block = packed(0, at + 1),
                            .out = &scratch_.open[half ^ 1],
                            .next = 0,
                            .end = at + 1 < end ? kFoldedSteps : 0,
                            .every = share.tiles,
                            .clock = 0};
      for (size_t tile = 0; tile < share.tiles; ++tile)
        kernels_.multiply(task(block, tile, half, share), next, scratch_);
      CHECK(next.next == next.end);
      if (block + 1 == blocks_) store(panel, share);
    }
  }

  // What is left to do when all columns are multiplied: outliers, and the wanted rows.
  void store(size_t panel, const Share& share) const {
    kernels_.finish(scratch_);
    share.outliers.add(packed(panel, 0), sums());
    const size_t first = panel * kPanelRows;
    const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
    for (size_t t = 0; t < share.tokens; ++t) {
      float* out = args_.out + (share.token + t) * args_.out_stride;
      std::memcpy(out + from, sums()[t] + (from - first), (to - from) * sizeof(float));
    }
  }

  const MatmulArgs& args_;
  const FoldedKernels& kernels_;
  size_t blocks_;
  size_t first_, last_;  // panels
  size_t share_;
  std::byte* memory_;  // the scratch, the sums of a share with a panel, and inputs where nobody packed them
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
