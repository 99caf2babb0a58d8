#include "backend/cpu/amx/grouped_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/panel_scratch.h"

namespace quire {
namespace {

// Tokens that share the opening of panels: their inputs stay in the second-level cache (2 MB on such machines).
constexpr size_t kShareTokens = 256;
constexpr size_t kBlockSteps = kGroupedBlockCols / kGroupedStepCols;
constexpr size_t kShareTiles = kShareTokens / kGroupedTileTokens;

class ConfiguredTiles {
 public:
  explicit ConfiguredTiles(const GroupedKernels& kernels) : kernels_(kernels) { kernels.configure(); }
  ~ConfiguredTiles() { kernels_.release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;

 private:
  const GroupedKernels& kernels_;
};

class GroupedMatmul {
 public:
  GroupedMatmul(const MatmulArgs& args, const GroupedKernels& kernels)
      : args_(args),
        kernels_(kernels),
        cols_(args.weight.cols),
        steps_(grouped_steps(cols_)),
        groups_((cols_ + kernels.group - 1) / kernels.group),
        panel_bytes_((steps_ + kBlockSteps - 1) / kBlockSteps * kernels.start_bytes +
                     steps_ * kernels.step_bytes),
        first_(args.row_begin / kPanelRows),
        last_((args.row_end + kPanelRows - 1) / kPanelRows) {}

  void run() const {
    if (args_.tokens == 1) return multiply_one();
    const size_t tiles = (args_.tokens + kGroupedTileTokens - 1) / kGroupedTileTokens;
    const size_t tile_bytes = kernels_.inputs.tile_bytes(cols_);
    Memory memory(args_.input_tiles == nullptr ? tiles * tile_bytes : 0, std::min(tiles, kShareTiles));
    const std::byte* inputs = args_.input_tiles;
    if (inputs == nullptr) {
      pack_inputs(memory.inputs);
      inputs = memory.inputs;
    }
    const ConfiguredTiles configured(kernels_);
    if (tiles <= kGroupedStreamTiles) return stream(inputs, memory);
    for (size_t token = 0; token < args_.tokens; token += kShareTokens) {
      multiply_share(token, std::min(kShareTokens, args_.tokens - token),
                     inputs + token / kGroupedTileTokens * tile_bytes, memory);
    }
  }

 private:
  // Of this thread, valid during one product.
  struct Memory {
    Memory(size_t input_bytes, size_t tiles)
        : bytes(panel_scratch(sizeof(GroupedScratch) + tiles * (2 * sizeof(GroupedSums) + kTileProducts) +
                              input_bytes)),
          scratch(*reinterpret_cast<GroupedScratch*>(bytes)),
          sums(reinterpret_cast<GroupedSums*>(bytes + sizeof(GroupedScratch))),
          products(reinterpret_cast<float (*)[kPanelRows]>(sums + 2 * tiles)),
          inputs(reinterpret_cast<std::byte*>(products + tiles * kGroupedTileTokens)) {}
    static constexpr size_t kTileProducts = kGroupedTileTokens * kPanelRows * sizeof(float);

    std::byte* bytes;
    GroupedScratch& scratch;
    GroupedSums* sums;              // [tiles][2 panels]
    float (*products)[kPanelRows];  // [tokens], of one panel
    std::byte* inputs;
  };

  const uint8_t* packed(size_t panel) const {
    return reinterpret_cast<const uint8_t*>(args_.panels) + panel * panel_bytes_;
  }
  const uint8_t* packed(size_t panel, size_t step) const {
    return packed(panel) + step / kBlockSteps * kernels_.start_bytes + step * kernels_.step_bytes;
  }

  void pack_inputs(std::byte* out) const {
    for (size_t t = 0; t < args_.tokens; t += kGroupedTileTokens, out += kernels_.inputs.tile_bytes(cols_)) {
      kernels_.inputs.pack({.rows = args_.input + t * args_.input_stride_bytes,
                            .stride_bytes = args_.input_stride_bytes,
                            .tokens = std::min(kGroupedTileTokens, args_.tokens - t),
                            .cols = cols_,
                            .col_begin = 0,
                            .col_end = cols_,
                            .tile = out});
    }
  }

  GroupedInput input(const std::byte* tiles, size_t tile, size_t step) const {
    const std::byte* begin = tiles + tile * kernels_.inputs.tile_bytes(cols_);
    return {reinterpret_cast<const int8_t*>(begin + step * kGroupedStepBytes),
            reinterpret_cast<const float*>(begin + steps_ * kGroupedStepBytes) +
                step * kGroupedStepCols / kernels_.group * kGroupedTileTokens};
  }

  // ---- one token

  // What a token's product needs beside its codes.
  struct OneMemory {
    OneMemory(size_t cols, size_t groups, size_t outliers) {
      const size_t values_bytes = grouped_steps(cols) * kGroupedStepCols;
      std::byte* at = panel_scratch(values_bytes + outliers * kPanelRows * sizeof(float) +
                                    (groups + 2 * outliers + outlier_spans(cols)) * sizeof(uint32_t));
      values = reinterpret_cast<int8_t*>(at);
      outlier_weights = reinterpret_cast<float(*)[kPanelRows]>(at + values_bytes);
      corrections = reinterpret_cast<int32_t*>(outlier_weights + outliers);
      outlier_cols = reinterpret_cast<uint32_t*>(corrections + groups);
      outlier_values = reinterpret_cast<float*>(outlier_cols + outliers);
      outlier_ends = reinterpret_cast<uint32_t*>(outlier_values + outliers);
    }
    int8_t* values;
    float (*outlier_weights)[kPanelRows];
    int32_t* corrections;
    uint32_t* outlier_cols;
    float* outlier_values;
    uint32_t* outlier_ends;
  };

  void multiply_one() const {
    const Q8Row row(args_.input, cols_, kernels_.group);
    const size_t spans = outlier_spans(cols_);
    size_t outliers = 0;
    for (size_t span = 0; span < spans; ++span) outliers += row.outlier_counts[span];
    const OneMemory memory(cols_, groups_, outliers);
    for (size_t g = 0; g < groups_; ++g) {
      int sum = 0;
      for (size_t i = g * kernels_.group / 32; i < std::min((g + 1) * kernels_.group, cols_) / 32; ++i)
        sum += row.sums32[i];
      memory.corrections[g] = -128 * sum;
    }
    for (size_t span = 0, k = 0; span < spans; ++span) {
      const Outlier* list = row.outliers + span * most_outliers(kernels_.group);
      for (size_t i = 0; i < row.outlier_counts[span]; ++i, ++k) {
        memory.outlier_cols[k] = uint32_t(span * kOutlierSpan) + list[i].col;
        memory.outlier_values[k] = list[i].value;
      }
      memory.outlier_ends[span] = uint32_t(k);
    }
    const int8_t* values = row.values;
    if (cols_ % kGroupedStepCols != 0) {  // what stands after them in the row would be multiplied too
      std::memset(memory.values, 0, steps_ * kGroupedStepCols);
      std::memcpy(memory.values, row.values, cols_);
      values = memory.values;
    }
    alignas(64) float products[1][kPanelRows];
    GroupedOne one = {.panel = nullptr,
                      .steps = steps_,
                      .values = values,
                      .scales = row.scales,
                      .corrections = memory.corrections,
                      .outlier_cols = memory.outlier_cols,
                      .outlier_values = memory.outlier_values,
                      .outlier_ends = memory.outlier_ends,
                      .outlier_weights = memory.outlier_weights,
                      .out = products[0]};
    for (size_t panel = first_; panel < last_; ++panel) {
      one.panel = packed(panel);
      kernels_.multiply_one(one);
      store(panel, 0, 1, products);
    }
  }

  // ---- up to kGroupedStreamTiles tiles of tokens

  // Panels of the first half go with those of the second, so that each is a stream of its own.
  void stream(const std::byte* inputs, Memory& memory) const {
    const size_t tiles = (args_.tokens + kGroupedTileTokens - 1) / kGroupedTileTokens;
    const size_t pairs = (last_ - first_) / 2;
    GroupedStream stream = {};
    stream.steps = steps_;
    for (size_t t = 0; t < tiles; ++t) {
      stream.inputs[t] = input(inputs, t, 0);
      for (size_t p = 0; p < 2; ++p) stream.sums[p][t] = memory.sums + 2 * t + p;
    }
    for (size_t i = 0; i < pairs; ++i) {
      const size_t panels[2] = {first_ + i, first_ + pairs + i};
      const bool is_last = i + 1 == pairs;
      for (size_t p = 0; p < 2; ++p) {
        stream.panels[p] = packed(panels[p]);
        stream.next[p] = is_last ? nullptr : packed(panels[p] + 1);
      }
      if (i == 0) kernels_.open_first[1](stream, memory.scratch);
      kernels_.stream[1][tiles - 1](stream, memory.scratch);
      for (size_t p = 0; p < 2; ++p) finish(panels[p], p, {0, args_.tokens, inputs}, memory);
    }
    if ((last_ - first_) % 2 == 0) return;
    stream.panels[0] = packed(last_ - 1);
    stream.next[0] = nullptr;
    kernels_.open_first[0](stream, memory.scratch);
    kernels_.stream[0][tiles - 1](stream, memory.scratch);
    finish(last_ - 1, 0, {0, args_.tokens, inputs}, memory);
  }

  // ---- more

  void multiply_share(size_t token, size_t tokens, const std::byte* inputs, Memory& memory) const {
    const size_t tiles = (tokens + kGroupedTileTokens - 1) / kGroupedTileTokens;
    for (size_t panel = first_; panel < last_; panel += 2) {
      const size_t panels = std::min<size_t>(2, last_ - panel);
      std::memset(memory.sums, 0, 2 * tiles * sizeof(GroupedSums));
      for (size_t step = 0; step < steps_; step += kGroupedChunkSteps) {
        GroupedChunk chunk = {{packed(panel, step), packed(panel + panels - 1, step)},
                              std::min(kGroupedChunkSteps, steps_ - step),
                              {},
                              nullptr,
                              {}};
        kernels_.open_chunk[panels - 1](chunk, memory.scratch);
        for (size_t t = 0; t < tiles; ++t) {
          chunk.input = input(inputs, t, step);
          chunk.next_values =
              t + 1 < tiles ? input(inputs, t + 1, step).values : input(inputs, 0, step + chunk.steps).values;
          for (size_t p = 0; p < 2; ++p) chunk.sums[p] = memory.sums + 2 * t + p;
          kernels_.multiply_chunk[panels - 1](chunk, memory.scratch);
        }
      }
      for (size_t p = 0; p < panels; ++p) finish(panel + p, p, {token, tokens, inputs}, memory);
    }
  }

  // Tokens that are worked on together, and their tiles.
  struct Share {
    size_t token, tokens;
    const std::byte* inputs;
  };

  // What is left to do for a panel when its sums are there; `place` is that of the panel among two.
  void finish(size_t panel, size_t place, const Share& share, Memory& memory) const {
    const size_t tiles = (share.tokens + kGroupedTileTokens - 1) / kGroupedTileTokens;
    for (size_t t = 0; t < tiles; ++t)
      kernels_.transpose(memory.sums[2 * t + place], memory.products + t * kGroupedTileTokens);
    kernels_.add_outliers(packed(panel), cols_, share.inputs, tiles, memory.products);
    store(panel, share.token, share.tokens, memory.products);
  }

  // The wanted rows of a panel's products with tokens [token, token + count).
  void store(size_t panel, size_t token, size_t count, const float (*products)[kPanelRows]) const {
    const size_t first = panel * kPanelRows;
    const size_t from = std::max(first, args_.row_begin), to = std::min(first + kPanelRows, args_.row_end);
    for (size_t t = 0; t < count; ++t) {
      float* out = args_.out + (token + t) * args_.out_stride;
      if (to - from == kPanelRows) {
        std::memcpy(out + first, products[t], kPanelRows * sizeof(float));
      } else {
        std::memcpy(out + from, products[t] + (from - first), (to - from) * sizeof(float));
      }
    }
  }

  const MatmulArgs& args_;
  const GroupedKernels& kernels_;
  size_t cols_, steps_, groups_, panel_bytes_;
  size_t first_, last_;  // panels
};

}  // namespace

void multiply_grouped(const MatmulArgs& args, const GroupedKernels& kernels) {
  if (args.tokens == 0 || args.row_begin == args.row_end) return;
  GroupedMatmul(args, kernels).run();
}

}  // namespace quire
