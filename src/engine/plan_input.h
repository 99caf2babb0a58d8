#pragma once

#include "engine/scheduler.h"
#include "runner/step_input.h"

namespace quire {

// A plan as the runner wants it: tokens, page tables and, for each run that samples, a draw after its last known token and
// one after each draft, as if all drafts before it had been drawn.
// Its sequences count on it from then on.
// Adds the draw of the next guess, with the keys of the model's own.
void add_draft_draw(const Sequence& sequence, StepInput& input);
StepInput input_of(const StepPlan& plan, KvCache& kv);

// The draw after the first `draft` of the sequence's drafts. `seen`: what penalties count, if there are any.
SampleParams draw_params(const Sequence& sequence, uint32_t draft, std::span<const SampleParams::Seen> seen);

}  // namespace quire
