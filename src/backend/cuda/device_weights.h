#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/matmul/experts.h"
#include "backend/cuda/matmul/products.h"
#include "backend/cuda/weight_copies.h"

namespace quire::cuda {

// The weights of models on a device, in few large pieces of memory. Those of one block that multiply the same rows come to lie one
// after the other, so that they can be multiplied as one. One thread.
class DeviceWeights {
 public:
  // Takes memory for so many bytes at once. Throws Error if there is not enough.
  void expect(size_t bytes);

  size_t bytes_for(const MatrixView& weight, const WeightUse& use) const;
  // Brings a weight there: packed for products, as it is for tables and vectors. It is there when this returns.
  Weight add(const Weight& weight, const WeightUse& use, cudaStream_t stream);
  // A gate and its up, with their rows in turn where they are of one type; of experts, Error if they are not.
  void add_gated(Weight& gate, Weight& up, const WeightUse& use, cudaStream_t stream);
  // All of a model is there: what was needed to bring it is let go.
  void done() {
    staging_ = {};
    copies_ = nullptr;
  }

  // A product's weight that was added.
  const PackedWeight& packed(const Weight& weight) const { return packed_.at(weight.view.data); }
  // The same of experts.
  const ExpertStack& experts(const Weight& weight) const { return experts_.at(weight.view.data); }
  // The same of a matrix for each head; a head alone is no stack.
  ExpertStack heads(const Weight& weight, uint32_t count) const {
    if (count > 1) return experts(weight);
    const PackedWeight& one = packed(weight);
    return {one.shape, 1, one.data, one.map};
  }
  // Whether these two were added with their rows in turn; `packed` of either is both.
  static bool are_in_turn(const Weight& gate, const Weight& up) { return gate.view.data == up.view.data; }
  // The weights of all as one, or null: they do not lie one after the other, or are of different types.
  const PackedWeight* together(std::span<const Projection> projections);

 private:
  struct Piece {
    std::shared_ptr<DeviceBuffer> memory;
    size_t used = 0;
  };
  std::shared_ptr<const Buffer> take(size_t bytes);
  PackStaging staging();
  WeightCopies& copies();

  Piece piece_;
  DeviceBuffer staging_;
  std::unique_ptr<WeightCopies> copies_;
  std::unordered_map<const std::byte*, PackedWeight> packed_;
  std::unordered_map<const std::byte*, ExpertStack> experts_;
  std::unordered_map<const std::byte*, PackedWeight> together_;  // by the first; no data: they are not
};

}  // namespace quire::cuda
