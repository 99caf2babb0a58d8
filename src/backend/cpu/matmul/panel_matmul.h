#pragma once

#include "backend/cpu/matmul/panel_outliers.h"

// Products with weights in panels, but for what an instruction set does itself: it multiplies one panel with a few
// tokens. For very few tokens the codes go from memory into the product; for more, a panel is opened first, so that it
// is unpacked once for all of them.

namespace quire {

// A panel ready for the product: codes [cols / 4][16 rows][4], and by row what scales and minimums come to. How a code
// is kept is the instruction set's affair. A view of memory aligned to 64 bytes.
struct OpenPanel {
  uint8_t* codes;

  // Of sub-blocks with floats.
  float* starts;       // [groups][16]: -kMagic * the first scale of a group
  float* differences;  // [subs][16]: a sub-block's scale less the next one's in the group
  float* mins;         // [subs][16]

  // Of blocks of 256, in the same memory: they have eight sub-blocks or more, so it is enough.
  float* scales;         // [blocks][16]
  float* min_scales;     // [blocks][16]
  int32_t* sub_factors;  // [subs][16]: a sub-block's scale, or that less the next one's
  int16_t* sub_mins;     // [subs / 2][16][2]

  static size_t bytes(size_t cols, size_t sub, size_t group) {
    return kPanelRows * (cols + sizeof(float) * ((cols + group - 1) / group + 2 * (cols / sub)));
  }
  OpenPanel(std::byte* memory, size_t cols, size_t sub, size_t group)
      : codes(reinterpret_cast<uint8_t*>(memory)),
        starts(reinterpret_cast<float*>(codes + kPanelRows * cols)),
        differences(starts + kPanelRows * ((cols + group - 1) / group)),
        mins(differences + kPanelRows * (cols / sub)),
        scales(starts),
        min_scales(differences),
        sub_factors(reinterpret_cast<int32_t*>(min_scales + kPanelRows * (cols / group))),
        sub_mins(reinterpret_cast<int16_t*>(sub_factors + kPanelRows * (cols / sub))) {}
};

// A token's activations as a kernel reads them.
struct PanelInput {
  Q8Row row;
  // [subs]: minus what the sum of a sub-block has too much, see PanelKernels::excess; null where that is 0.
  const int32_t* corrections;
};

inline constexpr size_t kMaxDirectTokens = 4;
inline constexpr size_t kMaxTileTokens = 8;

// What an instruction set does with panels of one format. Kernels write a row of `out` for each of their tokens, their
// number being the place in the array plus one.
struct PanelKernels {
  using Direct = void (*)(const uint8_t* panel, size_t cols, const PanelInput* inputs,
                          float (*out)[kPanelRows]);
  using Tile = void (*)(const OpenPanel& panel, size_t cols, const PanelInput* inputs,
                        float (*out)[kPanelRows]);

  size_t block_bytes, block_values;  // of a packed block
  size_t sub, group;                 // values that share a scale: of the weights, of the activations
  size_t direct_tokens, tile_tokens;
  Direct direct[kMaxDirectTokens];
  void (*open)(const uint8_t* panel, size_t cols, const OpenPanel& out);
  Tile tiles[kMaxTileTokens];
  int32_t excess;  // products take each code for so much more than it is worth
  OutlierKernels outliers;
};

// REQUIRES: the weight is packed as panel_format does it.
void multiply_panels(const MatmulArgs& args, const PanelKernels& kernels);

}  // namespace quire
