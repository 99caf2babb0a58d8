#pragma once

#include "engine/text_loss.h"
#include "model/importance.h"

namespace quire {

// Computes a text part by part, as losses() does, and sums up what the matrices of all blocks are multiplied with. `progress` is
// told how many tokens are done. REQUIRES: the backend has column taps.
Importance measure_importance(const EngineModel& model, std::span<const TokenId> tokens,
                              const LossOptions& options, const std::function<void(size_t)>& progress = {});

}  // namespace quire
