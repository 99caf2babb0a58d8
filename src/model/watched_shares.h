#pragma once

#include <vector>

#include "backend/backend.h"

namespace quire {

// For an AttentionWatcher: where one token of the batch looks, [heads, width], in a buffer that grows and stays. With `head`
// only its row means anything.
inline Rows watched_shares(Backend& backend, const AttendParams& attend, uint32_t token, size_t width,
                           std::vector<float>& buffer, std::optional<uint32_t> head = std::nullopt) {
  buffer.resize(attend.heads * width);
  const Rows shares{buffer.data(), attend.heads, width, width};
  backend.attention_shares({.query = attend.query,
                            .heads = attend.heads,
                            .kv = attend.kv,
                            .scale = attend.scale,
                            .soft_cap = attend.soft_cap,
                            .sinks = attend.sinks,
                            .token = token,
                            .out = shares,
                            .head = head});
  return shares;
}

}  // namespace quire
