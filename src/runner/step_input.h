#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "kv/layout/kv_view.h"
#include "kv/pages/kv_moves.h"

namespace quire {

// How one token is drawn. The ranges are parts of StepInput's lists; what `how` points to is filled in by the runner.
struct Draw {
  struct Range {
    uint32_t begin = 0, count = 0;
  };
  SampleParams how;
  Range seen = {}, logit_bias = {}, watched = {}, allowed = {};
};

// All that one step computes, as plain data: whoever has it and the pages can compute the step.
struct StepInput {
  // The tokens of all runs, one run after the other.
  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> run_of_token;
  std::vector<TokenRun> runs;
  std::vector<uint32_t> logit_rows;  // the tokens whose logits are computed, ascending
  std::vector<DrawnToken> drawn;     // tokens that nobody knows yet
  KvTables tables;                   // by run
  KvMoves moves;                     // made before anything is computed
  KvMoves aside;                     // made after them, beside what is computed
  size_t layers = kAllLayers;        // the first so many are computed; fewer than all: no logits
  static constexpr size_t kAllLayers = ~size_t(0);

  std::vector<Draw> draws;  // the i-th draws from the i-th of logit_rows
  std::vector<SampleParams::Seen> seen;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> watched;
  std::vector<uint32_t> allowed;  // bits of tokens, as SampleParams has them

  enum class Report : uint8_t { draws, logits };
  Report report = Report::draws;  // logits: those of all logit_rows come back too
  // What was made of the token before each, for a model that joins: [tokens, dim].
  std::vector<float> hidden;
  enum class Hidden : uint8_t { none, all };
  Hidden report_hidden = Hidden::none;  // all: what is made of each token comes back
  // What else comes back: the values, with what these have made of them. Expectations come before anything is computed, of
  // tables that may belong to no run.
  std::vector<Expectation> expectations;
  std::vector<Tap> taps;
  std::vector<ColumnTap> columns;
  std::vector<float> values;

  enum class Logits : uint8_t { none, last, all };
  // Appends a run of tokens that starts at `position` of its sequence, none of whose tokens was pruned.
  void add(std::span<const TokenId> run_tokens, uint32_t position, Logits logits);
  // The same of tokens that are anywhere in their sequence, from this row on (TokenRun), with the logits of the last
  // `logits`.
  void add(std::span<const TokenId> run_tokens, std::span<const uint32_t> run_positions, uint32_t row,
           uint32_t logits);
  // Appends a draw from the next row of logits.
  void add_draw(const SampleParams& how);

  BatchView batch() const { return {tokens, positions, run_of_token, runs, logit_rows}; }
};

}  // namespace quire
