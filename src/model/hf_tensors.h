#pragma once

#include <vector>

#include "model/hf_config.h"
#include "model/model_file.h"
#include "model/safetensors.h"

namespace quire {

// Which row of the file becomes row r of the result.
enum class HfRows : uint8_t {
  plain,
  pairs,        // per head: the first half's i-th row, then the second half's, as GGUF rotates neighbours
  even,         // the even ones of the file
  odd,          // the odd ones
  first_half,   // of each expert
  second_half,  // of each expert
  sections,     // of every group some, then of every group others
};
// Two tensors are made of one in the file.
inline bool is_half(HfRows rows) {
  return rows != HfRows::plain && rows != HfRows::pairs && rows != HfRows::sections;
}

// Rows that the file has group by group, and GGUF section by section: the queries of all groups, then their keys.
struct HfSections {
  struct Section {
    uint64_t begin = 0, rows = 0;  // in a group
  };
  uint64_t groups = 0, group_rows = 0;  // as the file has them
  std::vector<Section> list;

  uint64_t rows() const {  // of the result
    uint64_t sum = 0;
    for (const Section& section : list) sum += groups * section.rows;
    return sum;
  }
  // Where the file has what GGUF has there. REQUIRES: place < rows().
  uint64_t in_file(uint64_t place) const {
    size_t i = 0;
    for (; place >= groups * list[i].rows; ++i) place -= groups * list[i].rows;
    return place / list[i].rows * group_rows + list[i].begin + place % list[i].rows;
  }
};

// Value heads that the file has in the order of their key heads, and GGUF round by round: every key head's first, every one's
// second. Rows from `begin` on, or columns, `size` to a head.
struct HfTiles {
  uint64_t key_heads = 0, value_heads = 0;  // no key heads: nothing is tiled
  uint64_t begin = 0, size = 0;
  bool columns = false;

  bool reorders() const { return key_heads > 0 && value_heads != key_heads; }
  // Where the file has what GGUF has there.
  uint64_t in_file(uint64_t place) const {
    if (place < begin) return place;
    const uint64_t head = (place - begin) / size, round = head / key_heads;
    return begin + (head % key_heads * (value_heads / key_heads) + round) * size + (place - begin) % size;
  }
};

// Bytes of the file that make (one expert of) a tensor.
struct HfPart {
  const SafetensorsTensor* data = nullptr;
  const SafetensorsTensor* scale = nullptr;  // of FP8 weights; the exponents of MXFP4 blocks
  const PackedMatrix* packed = nullptr;      // what `data` stands for, if it is one of HfPackedTensors
};

// How a tensor as GGUF has it comes from those in the folder. A plain one is a view of the file.
struct HfTensor {
  TensorEntry entry;
  std::vector<HfPart> parts;  // one, or one per expert; none if it is computed
  std::vector<float> computed;
  HfRows rows = HfRows::plain;
  uint64_t heads = 0;        // REQUIRED for `pairs`
  HfSections sections = {};  // REQUIRED for `sections`
  HfTiles tiles = {};        // REQUIRES: plain rows
  bool transposed = false;   // the file has a column for each row of the result
  // The matrices of so many heads, one after the other; or each of them the other way round.
  uint64_t head_stack = 0;
  bool heads_turned = false;
  float added = 0;                    // to each value
  std::vector<HfFactor> factors;      // of rows; empty: none is multiplied
  bool negative_exponential = false;  // each value x becomes -e^x

  // What the file has: in each part `experts` matrices of `file_rows` (after transposing) by `cols`.
  uint64_t experts = 1;
  uint64_t file_rows = 0;
  uint64_t cols = 0;

  uint64_t result_rows() const {  // of each of those matrices
    if (rows == HfRows::sections) return sections.rows();
    return is_half(rows) ? file_rows / 2 : file_rows;
  }
};

// The tensors of a folder in GGUF's names, order of rows and types: a vector, a norm or a router is f32, FP8
// becomes bf16 or f32 (hf_shapes.h), the rest is as it is in the file. Throws Error for a tensor that has no place in the model.
std::vector<HfTensor> plan_hf_tensors(const SafetensorsFolder& files, const HfPackedTensors& packed,
                                      const HfConfig& config, const std::string& folder);

// Makes a tensor, or looks at it in place. Adds what packed matrices lose by it.
TensorData load_hf_tensor(const HfTensor& tensor, const HfConfig& config, PackedLoss& loss);

}  // namespace quire
