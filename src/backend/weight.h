#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
  // What products are multiplied with: one number, or one for each of stacked matrices; null: 1. Only where
  // BackendTraits::weight_scales says so.
  std::shared_ptr<const std::vector<float>> scales = {};

  explicit operator bool() const { return bool(view); }
  const float* vector() const { return reinterpret_cast<const float*>(view.data); }
  // Of the stacked matrix `index`.
  float scale(size_t index = 0) const {
    return scales == nullptr ? 1.0f : (*scales)[scales->size() == 1 ? 0 : index];
  }
  // REQUIRES: it is not packed yet.
  Weight slice(size_t begin, size_t count) const {
    CHECK(packed == nullptr && (scales == nullptr || scales->size() == 1));
    return {view.slice(begin, count), owner, nullptr, scales};
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
