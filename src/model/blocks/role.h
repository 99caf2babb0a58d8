#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ranks/row_share.h"

namespace quire {

enum class RoleKind : uint8_t {
  product,  // a matrix that activations are multiplied with: [out, in], of experts [experts, out, in]
  vector,   // a norm, a bias: used as f32 whatever the file holds; of experts [experts, values]
  table,    // rows that are read one by one
};

enum class Presence : uint8_t { required, optional, absent };

// What a block wants of a model file, and what for. All that loads, prepares, counts, invents or lists weights goes
// through roles and knows of no block.
struct Role {
  static constexpr uint8_t kInput = 0xff;   // the block's input
  static constexpr uint8_t kInside = 0xfe;  // rows that the backend keeps to itself

  std::string name = {};             // to its block: "query"
  std::string tensor = {};           // to the file, after the layer's "blk.N.": "attn_q.weight"
  std::vector<uint64_t> shape = {};  // outermost first, as the file has it
  RoleKind kind = RoleKind::product;
  Presence presence = Presence::required;
  uint8_t reads = kInput;  // of a product: which rows it multiplies; else a place in Block::scratch
  bool meets_next =
      false;          // of a gate: its results and those of the role after it meet in Backend::activate alone
  uint32_t used = 1;  // of a product of experts: how many of them a token takes part in

  float factor = 1;    // of a vector: multiplies its values
  uint64_t below = 0;  // of a table of whole numbers: all of them are; 0: it is of other numbers

  // Where a file has no tensor `unless`, the role may be `shape` from `begin` on of a longer tensor that several share.
  struct Part {
    std::string unless = {}, tensor = {};
    uint64_t begin = 0, length = 0;  // of the outermost measure; of a stack, of each of its matrices
    bool flat =
        false;  // of a stack: the longer tensor is one matrix, in which its matrices follow each other
    bool transposed = false;  // of a flat stack: each matrix of the role is those rows the other way round
  };
  Part part = {};

  // Where ranks divide a model, `shape` is of the outermost measure only what this one has: from `begin` on of `whole`.
  struct Share {
    uint64_t begin = 0, whole = 0;  // whole 0: it has all
  };
  Share share = {};

  // Of the longer tensor.
  double part_share() const {
    const size_t measure = shape.size() < 3 ? 0 : part.transposed ? 2 : 1;
    return double(shape[measure]) / double(part.length);
  }
  bool is_stack() const { return shape.size() == 3; }  // of matrices, of which a token is given some
  uint64_t stacked() const { return is_stack() ? shape.front() : 1; }
};

inline Role vector_role(std::string name, std::string tensor, uint64_t width,
                        Presence presence = Presence::optional) {
  return {.name = std::move(name),
          .tensor = std::move(tensor),
          .shape = {width},
          .kind = RoleKind::vector,
          .presence = presence};
}

// A role of which a rank has only this.
inline Role divided(Role role, RowShare share) {
  if (share.count == role.shape.front()) return role;
  role.share = {share.begin, role.shape.front()};
  role.shape.front() = share.count;
  return role;
}

// A norm's weight and bias.
inline std::array<Role, 2> norm_roles(const std::string& name, const std::string& tensor, uint64_t width,
                                      Presence presence = Presence::required) {
  const bool absent = presence == Presence::absent;
  return {vector_role(name, tensor + ".weight", width, presence),
          vector_role(name + " bias", tensor + ".bias", width, absent ? presence : Presence::optional)};
}

}  // namespace quire
