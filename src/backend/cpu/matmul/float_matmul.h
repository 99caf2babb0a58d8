#pragma once

#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/panel_scratch.h"
#include "backend/cpu/matmul/stream_fetch.h"

// Products with f32, f16 and bf16 weights, the last with bf16 activations: the scalar twin's operations (16 lanes of fused multiply-adds by column),
// stated once for the instruction sets. `Isa` is an instruction set's own:
//
//   struct Isa {
//     using Fetch;                          // see stream_fetch.h
//     static constexpr size_t kVectorCols;  // floats in a vector
//     static constexpr size_t kPieceCols;   // columns whose weights are widened together: 8 or 16
//     static Vector load_vector(const float*);
//     static void store_vector(Vector, float*);
//     static Vector fma(Vector a, Vector b, Vector sum);
//     struct Piece { Vector v[kPieceCols / kVectorCols]; };
//     static Piece load(const float*);
//     static void store(const Piece&, float*);
//     static Piece widen(Bf16, const std::byte*);  // and F16, F32: weights of any alignment, exactly
//     static Piece add_product(Piece sum, const Piece&, const Piece&);
//     static float total(const Piece (&)[16 / kPieceCols]);  // the lanes in halves: 8 and 8, 4 and 4, ...
//     static constexpr size_t kTileRows, kTileTokens;        // whose sums fill the registers
//     static constexpr size_t kDirectRows[kDirectTokens];    // by tokens: rows side by side
//   };
//
// It comes from an unnamed namespace, and so what is made of it here stays in the file it is compiled for.

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))  // so that each loop has the registers to itself
#define UNROLL _Pragma("GCC unroll 8")

namespace quire {

struct F32 {
  static constexpr size_t kBytes = 4;
};
struct F16 {
  static constexpr size_t kBytes = 2;
};
struct Bf16 {
  static constexpr size_t kBytes = 2;
};

inline constexpr size_t kDirectTokens = 4;  // up to so many tokens, weights go from memory into the product

template <class Isa, class Type>
class FloatMatmul {
 public:
  explicit ALWAYS_INLINE FloatMatmul(const MatmulArgs& args)
      : args_(args), cols_(args.weight.cols), whole_cols_(cols_ / kLanes * kLanes) {}

  // With panel_scratch() a thread has so many bytes for the blocks.
  static constexpr size_t scratch_bytes() { return kSumBytes + kBlockRows * kBlockStride * sizeof(float); }
  // Calls with so many tokens or a multiple work on whole blocks.
  static constexpr size_t block_tokens() { return kBlockTokens; }

  ALWAYS_INLINE void run() const {
    switch (args_.tokens) {
      case 0:
        return;
      case 1:
        return direct<1>();
      case 2:
        return direct<2>();
      case 3:
        return direct<3>();
      case 4:
        return direct<4>();
      default:
        return blocks();
    }
  }

 private:
  using Piece = typename Isa::Piece;
  using Vector = typename Isa::Vector;
  static constexpr size_t kLanes = 16;
  static constexpr size_t kPieces = kLanes / Isa::kPieceCols;
  static constexpr size_t kRows = Isa::kTileRows, kTokens = Isa::kTileTokens;

  // With more tokens, a block of weights is widened into the first-level cache for all of them. The sums of a block of
  // tokens wait in the second-level one while the columns go by.
  static constexpr size_t kBlockRows = 16, kBlockCols = 512, kBlockTokens = 96;
  static constexpr size_t kBlockStride = kBlockCols + kLanes;  // rows start in different sets of the caches
  static_assert(kDirectTokens == 4 && kBlockRows % kRows == 0 && kBlockTokens % kTokens == 0);

  // Of kRowCount rows by kTokenCount inputs, sixteen lanes each.
  template <size_t kRowCount, size_t kTokenCount>
  struct Sums {
    Piece lanes[kRowCount][kTokenCount][kPieces];
  };

  const std::byte* weight(size_t row, size_t col) const {
    return args_.weight.data + (row * cols_ + col) * Type::kBytes;
  }
  const float* input(size_t token) const {
    return reinterpret_cast<const float*>(args_.input + token * args_.input_stride_bytes);
  }

  // Adds the products of columns [begin, end), a multiple of 16 of them.
  template <class Weights, size_t kRowCount, size_t kTokenCount, bool kPrefetch>
  static ALWAYS_INLINE void add(const std::byte* const* rows, const float* const* inputs,
                                const std::byte* const* ahead, size_t begin, size_t end,
                                Sums<kRowCount, kTokenCount>& all) {
    Piece sums[kRowCount][kTokenCount][kPieces];
    UNROLL for (size_t r = 0; r < kRowCount; ++r) {
      UNROLL for (size_t t = 0; t < kTokenCount; ++t) {
        UNROLL for (size_t p = 0; p < kPieces; ++p) sums[r][t][p] = all.lanes[r][t][p];
      }
    }
    const std::byte *weight[kRowCount], *fetched[kRowCount];
    const float* value[kTokenCount];
    UNROLL for (size_t r = 0; r < kRowCount; ++r) {
      weight[r] = rows[r] + begin * Weights::kBytes;
      if constexpr (kPrefetch) fetched[r] = ahead[r] + begin * Weights::kBytes;
    }
    UNROLL for (size_t t = 0; t < kTokenCount; ++t) value[t] = inputs[t] + begin;
    for (size_t c = begin; c < end; c += kLanes) {
      UNROLL for (size_t p = 0; p < kPieces; ++p) {
        Piece weights[kRowCount];
        UNROLL for (size_t r = 0; r < kRowCount; ++r) {
          weights[r] = Isa::widen(Weights{}, weight[r] + p * Isa::kPieceCols * Weights::kBytes);
        }
        UNROLL for (size_t t = 0; t < kTokenCount; ++t) {
          const Piece values = Isa::load(value[t] + p * Isa::kPieceCols);
          UNROLL for (size_t r = 0; r < kRowCount; ++r) {
            sums[r][t][p] = Isa::add_product(sums[r][t][p], weights[r], values);
          }
        }
      }
      UNROLL for (size_t r = 0; r < kRowCount; ++r) {
        weight[r] += kLanes * Weights::kBytes;
        if constexpr (kPrefetch) {
          fetch_line<typename Isa::Fetch>(fetched[r]);
          fetched[r] += kLanes * Weights::kBytes;
        }
      }
      UNROLL for (size_t t = 0; t < kTokenCount; ++t) value[t] += kLanes;
    }
    UNROLL for (size_t r = 0; r < kRowCount; ++r) {
      UNROLL for (size_t t = 0; t < kTokenCount; ++t) {
        UNROLL for (size_t p = 0; p < kPieces; ++p) all.lanes[r][t][p] = sums[r][t][p];
      }
    }
  }

  // The columns after the last whole sixteen: zeros in the other lanes leave their sums as they are.
  template <size_t kRowCount, size_t kTokenCount>
  NOINLINE void add_rest(const std::byte* const* rows, const float* const* inputs,
                         Sums<kRowCount, kTokenCount>& sums) const {
    std::byte row_rest[kRowCount][kLanes * Type::kBytes] = {};
    float input_rest[kTokenCount][kLanes] = {};
    const std::byte* row_starts[kRowCount];
    const float* input_starts[kTokenCount];
    for (size_t r = 0; r < kRowCount; ++r) {
      std::memcpy(row_rest[r], rows[r] + whole_cols_ * Type::kBytes, (cols_ - whole_cols_) * Type::kBytes);
      row_starts[r] = row_rest[r];
    }
    for (size_t t = 0; t < kTokenCount; ++t) {
      std::memcpy(input_rest[t], inputs[t] + whole_cols_, (cols_ - whole_cols_) * sizeof(float));
      input_starts[t] = input_rest[t];
    }
    add<Type, kRowCount, kTokenCount, false>(row_starts, input_starts, nullptr, 0, kLanes, sums);
  }

  // ---- few tokens: from memory into the product --------------------------------------------------------------------

  template <size_t kTokenCount>
  ALWAYS_INLINE void direct() const {
    constexpr size_t kSide = Isa::kDirectRows[kTokenCount - 1];
    size_t r = args_.row_begin;
    for (; r + kSide <= args_.row_end; r += kSide) direct_rows<kSide, kTokenCount>(r);
    for (; r < args_.row_end; ++r) direct_rows<1, kTokenCount>(r);
  }

  template <size_t kRowCount, size_t kTokenCount>
  NOINLINE void direct_rows(size_t row) const {
    const std::byte *rows[kRowCount], *ahead[kRowCount];
    const float* inputs[kTokenCount];
    // What is fetched ahead at the end of a row belongs to the row after these.
    const size_t row_bytes = cols_ * Type::kBytes;
    const size_t distance = Isa::Fetch::kRowAhead < row_bytes ? Isa::Fetch::kRowAhead : row_bytes;
    const size_t turn = (row_bytes - distance) / Type::kBytes / kLanes * kLanes;
    for (size_t r = 0; r < kRowCount; ++r) {
      rows[r] = weight(row + r, 0);
      ahead[r] = rows[r] + distance;
    }
    for (size_t t = 0; t < kTokenCount; ++t) inputs[t] = input(t);
    Sums<kRowCount, kTokenCount> sums = {};
    add<Type, kRowCount, kTokenCount, true>(rows, inputs, ahead, 0, turn, sums);
    for (size_t r = 0; r < kRowCount; ++r) ahead[r] += (kRowCount - 1) * row_bytes;
    add<Type, kRowCount, kTokenCount, true>(rows, inputs, ahead, turn, whole_cols_, sums);
    if (whole_cols_ < cols_) add_rest(rows, inputs, sums);
    for (size_t t = 0; t < kTokenCount; ++t) {
      float* out = args_.out + t * args_.out_stride + row;
      for (size_t r = 0; r < kRowCount; ++r) out[r] = Isa::total(sums.lanes[r][t]);
    }
  }

  // ---- more tokens: blocks of widened weights ----------------------------------------------------------------------

  // The sums of a tile, which wait in memory from one block of columns to the next.
  struct Tile {
    float lanes[kRows][kTokens][kLanes];
  };
  struct Block {
    size_t row_begin, row_end, token_begin, token_end, col_begin, col_end;
    bool is_first() const { return col_begin == 0; }
  };
  static constexpr size_t kSumBytes = kBlockRows * kBlockTokens * kLanes * sizeof(float);

  void blocks() const {
    std::byte* memory = panel_scratch(scratch_bytes());
    Tile* sums = reinterpret_cast<Tile*>(memory);
    float* widened = reinterpret_cast<float*>(memory + kSumBytes);
    for (size_t t = 0; t < args_.tokens; t += kBlockTokens) {
      const size_t token_end = t + kBlockTokens < args_.tokens ? t + kBlockTokens : args_.tokens;
      for (size_t r = args_.row_begin; r < args_.row_end; r += kBlockRows) {
        const size_t row_end = r + kBlockRows < args_.row_end ? r + kBlockRows : args_.row_end;
        size_t c = 0;
        do {
          const size_t col_end = c + kBlockCols < whole_cols_ ? c + kBlockCols : whole_cols_;
          const Block block = {r, row_end, t, token_end, c, col_end};
          widen_block(block, widened);
          add_block(block, widened, sums);
          c = col_end;
        } while (c < whole_cols_);
      }
    }
  }

  void widen_block(const Block& block, float* out) const {
    for (size_t r = block.row_begin; r < block.row_end; ++r, out += kBlockStride) {
      const std::byte* row = weight(r, block.col_begin);
      for (size_t c = 0; c < block.col_end - block.col_begin; c += Isa::kPieceCols) {
        Isa::store(Isa::widen(Type{}, row + c * Type::kBytes), out + c);
      }
    }
  }

  // A vector of the lanes at a time: the registers hold more rows and tokens so, and a load serves more products.
  static NOINLINE void add_tile(const float* const* rows, const float* const* inputs, size_t cols,
                                Tile& tile) {
    for (size_t lane = 0; lane < kLanes; lane += Isa::kVectorCols) {
      const float *weight[kRows], *value[kTokens];
      Vector sums[kRows][kTokens];
      UNROLL for (size_t r = 0; r < kRows; ++r) {
        weight[r] = rows[r] + lane;
        UNROLL for (size_t t = 0; t < kTokens; ++t) sums[r][t] = Isa::load_vector(tile.lanes[r][t] + lane);
      }
      UNROLL for (size_t t = 0; t < kTokens; ++t) value[t] = inputs[t] + lane;
      for (size_t c = 0; c < cols; c += kLanes) {
        Vector weights[kRows];
        UNROLL for (size_t r = 0; r < kRows; ++r) weights[r] = Isa::load_vector(weight[r] + c);
        UNROLL for (size_t t = 0; t < kTokens; ++t) {
          const Vector values = Isa::load_vector(value[t] + c);
          UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][t] = Isa::fma(weights[r], values, sums[r][t]);
        }
      }
      UNROLL for (size_t r = 0; r < kRows; ++r) {
        UNROLL for (size_t t = 0; t < kTokens; ++t) Isa::store_vector(sums[r][t], tile.lanes[r][t] + lane);
      }
    }
  }

  // In whole tiles: those at the edge compute their first row or token several times.
  void add_block(const Block& block, const float* widened, Tile* tile) const {
    const bool is_last = block.col_end == whole_cols_;
    for (size_t t = block.token_begin; t < block.token_end; t += kTokens) {
      const float* inputs[kTokens];
      for (size_t i = 0; i < kTokens; ++i)
        inputs[i] = input(t + i < block.token_end ? t + i : t) + block.col_begin;
      for (size_t r = block.row_begin; r < block.row_end; r += kRows, ++tile) {
        const float* rows[kRows];
        for (size_t i = 0; i < kRows; ++i) {
          rows[i] = widened + ((r + i < block.row_end ? r + i : r) - block.row_begin) * kBlockStride;
        }
        if (block.is_first()) *tile = {};
        add_tile(rows, inputs, block.col_end - block.col_begin, *tile);
        if (is_last) finish(block, r, t, *tile);
      }
    }
  }

  void finish(const Block& block, size_t row, size_t token, const Tile& tile) const {
    for (size_t t = 0; t < kTokens && token + t < block.token_end; ++t) {
      float* out = args_.out + (token + t) * args_.out_stride;
      for (size_t r = 0; r < kRows && row + r < block.row_end; ++r) {
        Sums<1, 1> sums;
        for (size_t p = 0; p < kPieces; ++p)
          sums.lanes[0][0][p] = Isa::load(tile.lanes[r][t] + p * Isa::kPieceCols);
        if (whole_cols_ < cols_) {
          const std::byte* rows[1] = {weight(row + r, 0)};
          const float* inputs[1] = {input(token + t)};
          add_rest(rows, inputs, sums);
        }
        out[row + r] = Isa::total(sums.lanes[0][0]);
      }
    }
  }

  const MatmulArgs& args_;
  size_t cols_;
  size_t whole_cols_;  // a multiple of 16
};

template <class Isa, class Type>
void matmul_float(const MatmulArgs& args) {
  FloatMatmul<Isa, Type>(args).run();
}

// Inputs of bf16 are widened once for all rows, some tokens at a time.
template <class Isa>
void matmul_bf16(const MatmulArgs& args) {
  using Matmul = FloatMatmul<Isa, Bf16>;
  constexpr size_t kTokens = Matmul::block_tokens();
  const size_t cols = (args.weight.cols + Isa::kPieceCols - 1) / Isa::kPieceCols * Isa::kPieceCols;
  const size_t stride = cols + Isa::kPieceCols;  // rows start in different sets of the caches
  const size_t most = args.tokens < kTokens ? args.tokens : kTokens;
  // The blocks' memory comes first, and is where they will find it: what is there is large enough.
  std::byte* memory = panel_scratch(Matmul::scratch_bytes() + most * stride * sizeof(float));
  float* inputs = reinterpret_cast<float*>(memory + Matmul::scratch_bytes());
  MatmulArgs part = args;
  part.input = reinterpret_cast<const std::byte*>(inputs);
  part.input_stride_bytes = stride * sizeof(float);
  for (size_t begin = 0; begin < args.tokens; begin += kTokens) {
    part.tokens = args.tokens - begin < kTokens ? args.tokens - begin : kTokens;
    part.out = args.out + begin * args.out_stride;
    for (size_t t = 0; t < part.tokens; ++t) {
      const std::byte* row = args.input + (begin + t) * args.input_stride_bytes;
      for (size_t c = 0; c < cols; c += Isa::kPieceCols) {
        Isa::store(Isa::widen(Bf16{}, row + c * Bf16::kBytes), inputs + t * stride + c);
      }
    }
    Matmul(part).run();
  }
}

template <class Isa>
void use_float_matmul(CpuKernels& kernels) {
  kernels.matmul[size_t(DType::f32)] = matmul_float<Isa, F32>;
  kernels.matmul[size_t(DType::f16)] = matmul_float<Isa, F16>;
  kernels.matmul[size_t(DType::bf16)] = matmul_bf16<Isa>;
}

}  // namespace quire
