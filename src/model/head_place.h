#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"

namespace quire {

// One query head among those of its model, all counted from 0.
struct HeadPlace {
  uint32_t layer = 0, layers = 0;
  uint32_t head = 0, heads = 0;
  uint32_t kv_head = 0, kv_heads = 0;  // whose rows it reads
  std::vector<uint32_t> sharing;       // the query heads that read the same, itself included
  uint32_t window = 0;                 // of the layer; 0: it sees everything
  bool sinks = false;                  // take a part of every token's attention
};

// Throws Error if there is no such layer or head.
HeadPlace place_of_head(const ModelSpec& spec, uint32_t layer, uint32_t head);

}  // namespace quire
