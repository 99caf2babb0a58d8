#include "backend/cpu/matmul/panel_matmul.h"

#include <algorithm>
#include <span>

#include "backend/cpu/matmul/panel_scratch.h"
#include "backend/cpu/matmul/stream_fetch.h"

namespace quire {
namespace {

// Tokens that share the opening of a panel. More would bring little and need more memory for their corrections.
constexpr size_t kChunkTokens = 240;

// Tokens [begin, end) of a product.
class Chunk {
 public:
  Chunk(const MatmulArgs& args, const PanelKernels& kernels, size_t begin, size_t end)
      : args_(args),
        kernels_(kernels),
        cols_(args.weight.cols),
        begin_(begin),
        end_(end),
        is_direct_(end - begin <= kernels.direct_tokens),
        memory_(panel_scratch(open_bytes() + (end - begin) * correction_bytes())),
        open_(memory_, cols_, kernels.sub, kernels.group),
        outliers_(args, kernels.outliers, kernels.group, begin, end - begin) {
    if (kernels.excess == 0) return;
    for (size_t t = begin; t < end; ++t) {
      const int16_t* sums = kernels.sub == 32 ? row(t).sums32 : row(t).sums16;
      int32_t* out = corrections(t);
      for (size_t i = 0; i < cols_ / kernels.sub; ++i) out[i] = -kernels.excess * sums[i];
    }
  }

  void multiply(size_t first, size_t last) const {
    const size_t bytes = cols_ / kernels_.block_values * kernels_.block_bytes;
    PanelStore store(args_, outliers_, bytes, begin_, end_ - begin_);
    for (size_t panel = first; panel < last; ++panel) {
      const uint8_t* packed = reinterpret_cast<const uint8_t*>(args_.panels) + panel * bytes;
      float products[kChunkTokens][kPanelRows];
      multiply_panel(packed, {packed + bytes, panel + 1 < last ? bytes : 0}, products);
      store.put(panel, products);
    }
  }

 private:
  // `next`: what is opened after it, and comes to the second cache while the tiles are multiplied.
  void multiply_panel(const uint8_t* packed, std::span<const uint8_t> next,
                      float (*products)[kPanelRows]) const {
    PanelInput inputs[kMaxTileTokens];
    if (is_direct_) {
      fill(begin_, end_ - begin_, inputs);
      return kernels_.direct[end_ - begin_ - 1](packed, cols_, inputs, products);
    }
    kernels_.open(packed, cols_, open_);
    const size_t share = next.size() * kernels_.tile_tokens / (end_ - begin_);  // for each tile
    size_t fetched = 0;
    for (size_t t = begin_; t < end_; t += kernels_.tile_tokens) {
      for (const size_t to = std::min(next.size(), fetched + share); fetched < to; fetched += 64)
        fetch_line<TileFetch>(next.data() + fetched);
      const size_t count = std::min(kernels_.tile_tokens, end_ - t);
      fill(t, count, inputs);
      kernels_.tiles[count - 1](open_, cols_, inputs, products + (t - begin_));
    }
  }

  size_t open_bytes() const { return is_direct_ ? 0 : OpenPanel::bytes(cols_, kernels_.sub, kernels_.group); }
  size_t correction_bytes() const {
    return kernels_.excess == 0 ? 0 : cols_ / kernels_.sub * sizeof(int32_t);
  }
  int32_t* corrections(size_t t) const {
    return reinterpret_cast<int32_t*>(memory_ + open_bytes() + (t - begin_) * correction_bytes());
  }

  Q8Row row(size_t t) const { return {args_.input + t * args_.input_stride_bytes, cols_, kernels_.group}; }
  void fill(size_t begin, size_t count, PanelInput* inputs) const {
    for (size_t i = 0; i < count; ++i) {
      inputs[i] = {row(begin + i), kernels_.excess == 0 ? nullptr : corrections(begin + i)};
    }
  }

  const MatmulArgs& args_;
  const PanelKernels& kernels_;
  size_t cols_;
  size_t begin_, end_;
  bool is_direct_;
  std::byte* memory_;  // the open panel, and after it the corrections
  OpenPanel open_;
  PanelOutliers outliers_;
};

}  // namespace

void multiply_panels(const MatmulArgs& args, const PanelKernels& kernels) {
  const size_t first = args.row_begin / kPanelRows, last = (args.row_end + kPanelRows - 1) / kPanelRows;
  for (size_t begin = 0; begin < args.tokens; begin += kChunkTokens) {
    const Chunk chunk(args, kernels, begin, std::min(begin + kChunkTokens, args.tokens));
    chunk.multiply(first, last);
  }
}

}  // namespace quire
