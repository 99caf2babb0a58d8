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
    scratch_.waiting = {};
    if (inputs_ == nullptr) pack_inputs(memory_ + sizeof(FoldedScratch) + sums_bytes());
  }

  void run() const {
    const ConfiguredTiles configured(kernels_);
    for (size_t token = 0; token < args_.tokens; token += share_) {
      const size_t tokens = std::min(share_, args_.tokens - token);
      const PanelOutliers outliers(args_, kernels_.outliers, kFoldedCols, token, tokens);
      PanelStore store(args_, outliers, blocks_ * kernels_.block_bytes, token, tokens);
      const Share share{tiles_of(tokens), inputs_ + token / kFoldedTokens * blocks_, store};
      if (share.tiles <= kFoldedStreamTiles) {
        stream(share);
      } else {
        multiply(share);
      }
    }
  }

 private:
  using Sums = float (*)[kPanelRows];
  static constexpr size_t kSumsBytes = kFoldedTokens * kPanelRows * sizeof(float);  // of a tile

  // Tokens that are worked on together.
  struct Share {
    size_t tiles;
    const FoldedInput* inputs;  // [tiles][blocks]
    PanelStore& out;
  };
  size_t tile_bytes() const { return blocks_ * sizeof(FoldedInput); }
  // Of one panel, and of the one before, which may still wait while few tokens stream by.
  size_t sums_bytes() const {
    const size_t tiles = tiles_of(share_);
    return std::max(tiles, 2 * std::min(tiles, kFoldedStreamTiles)) * kSumsBytes;
  }
  // [tokens][rows]
  Sums sums(size_t turn, size_t tiles) const {
    return reinterpret_cast<Sums>(memory_ + sizeof(FoldedScratch) + turn * tiles * kSumsBytes);
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

  // ---- many tokens: a block is opened, and then meets all of them

  void multiply(const Share& share) const {
    for (size_t panel = first_; panel < last_; ++panel) {
      std::memset(sums(0, share.tiles), 0, share.tiles * kSumsBytes);
      for (size_t block = 0; block < blocks_; ++block) {
        kernels_.finish(scratch_);
        kernels_.open(packed(panel, block), scratch_);
        for (size_t tile = 0; tile < share.tiles; ++tile)
          kernels_.multiply(task(block, tile, share), scratch_);
      }
      kernels_.finish(scratch_);
      share.out.put(panel, sums(0, share.tiles));
    }
  }

  FoldedTask task(size_t block, size_t tile, const Share& share) const {
    const bool is_last = tile + 1 == share.tiles;
    const size_t next_tile = is_last ? 0 : tile + 1, next_block = is_last ? (block + 1) % blocks_ : block;
    return {.input = share.inputs + tile * blocks_ + block,
            .next_input = share.inputs + next_tile * blocks_ + next_block,
            .sums = sums(0, share.tiles) + tile * kFoldedTokens};
  }

  // ---- few tokens: while they are multiplied with a block, the next one is opened

  void stream(const Share& share) const {
    const size_t begin = first_ * blocks_, end = last_ * blocks_;
    kernels_.open_start(packed(0, begin), scratch_);
    for (size_t at = begin; at < end; ++at) {
      const size_t panel = at / blocks_, block = at % blocks_, next = (block + 1) % blocks_;
      const Sums panel_sums = sums(panel % 2, share.tiles);
      if (block == 0) std::memset(panel_sums, 0, share.tiles * kSumsBytes);
      FoldedStream now = {.block = packed(0, at),
                          .next_block = at + 1 < end ? packed(0, at + 1) : nullptr,
                          .inputs = {},
                          .next_inputs = {},
                          .scales = &scratch_.scales[at % 2],
                          .sums = panel_sums};
      for (size_t tile = 0; tile < share.tiles; ++tile) {
        now.inputs[tile] = share.inputs + tile * blocks_ + block;
        now.next_inputs[tile] = share.inputs + tile * blocks_ + next;
      }
      kernels_.stream[share.tiles - 1](now, scratch_);
      // The last block of a panel is scaled with the first of the next.
      if (block == 0 && panel > first_) share.out.put(panel - 1, sums((panel - 1) % 2, share.tiles));
    }
    kernels_.finish_stream[share.tiles - 1](scratch_);
    share.out.put(last_ - 1, sums((last_ - 1) % 2, share.tiles));
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
