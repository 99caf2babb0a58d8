#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

// Something that is to be known of one token at one layer, once its keys are stored: where its heads look, or its queries. It
// joins values that the step was given, because what scorers add up may span several steps.
struct Tap {
  enum class What : uint8_t {
    shares,   // of each row up to the token's own in a head's sum; 0 where a window hides it, and beyond
    queries,  // before the format of the layer's keys turned them
  };
  enum class Join : uint8_t { store, sum, most };
  What what = What::shares;
  Join join = Join::store;
  uint32_t layer = 0;
  uint32_t token = 0;  // of the batch
  uint32_t first_head = 0, heads = 1;
  uint32_t heads_per_row = 1;  // so many heads, one after the other, join one row of values
  uint32_t width = 0;          // of a row: so many of the shares, or the values of a query
  size_t at = 0;               // of the first row in the step's values; the others follow

  uint32_t rows() const { return heads / heads_per_row; }
};

// How large the columns are that a product of the model multiplies: their squares, summed over the tokens of a step, of experts each
// for itself over those that chose it. Like a Tap it joins the step's values.
struct ColumnTap {
  uint32_t block = 0;  // of the model's, in the order in which they are computed
  uint32_t role = 0;   // of the block's
  uint32_t matrices = 1;
  uint32_t columns = 0;
  size_t at = 0;  // in the step's values: [matrices, columns], and then how many tokens each has seen

  size_t squares() const { return size_t(matrices) * columns; }
  size_t size() const { return squares() + matrices; }
};

// Where they are summed up; empty: nobody asks.
struct ColumnSums {
  std::span<float> squares = {};  // [matrices, columns]
  std::span<float> tokens = {};   // [matrices]
};

// What queries to come are expected to make of the first rows of a run at one layer, from samples of such queries.
struct Expectation {
  uint32_t layer = 0;
  uint32_t run = 0;  // whose page table it is
  uint32_t rows = 0;
  uint32_t samples = 0;
  size_t samples_at = 0;               // in the step's values: [samples, heads * key_dim], not turned
  size_t scores_at = 0, norms_at = 0;  // [heads, rows], and of the values [kv_heads, rows]
};

// A token of a step that is whatever a draw of the step before gave.
struct DrawnToken {
  uint32_t token = 0;  // of the batch
  uint32_t draw = 0;   // of the step before
};

}  // namespace quire
