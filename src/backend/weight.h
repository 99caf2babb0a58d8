#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace quire {

// A weight as the backend keeps it. Vectors (norms, biases) are matrices of one f32 row.
struct Weight {
  MatrixView view;                    // of a packed weight only the shape counts: its bytes may be gone
  std::shared_ptr<const void> owner;  // keeps the bytes alive: the mapped file, or a converted copy
  std::shared_ptr<const Buffer> packed =
      {};  // the same in the backend's own layout, if it made one (prepare)

  explicit operator bool() const { return bool(view); }
  const float* vector() const { return reinterpret_cast<const float*>(view.data); }
  // REQUIRES: it is not packed yet.
  Weight slice(size_t begin, size_t count) const {
    CHECK(packed == nullptr);
    return {view.slice(begin, count), owner};
  }
};

// What a weight is for.
struct WeightUse {
  enum Kind : uint8_t {
    product,  // multiplies activations
    table,    // its rows are read one by one
    vector,   // a norm, a bias, sinks: f32
  };
  Kind kind = product;
  size_t stacked = 1;  // of a product of experts: so many matrices, one after the other
};

}  // namespace quire
