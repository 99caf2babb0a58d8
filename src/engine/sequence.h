#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/pooled_rows.h"
#include "engine/pruning/budget_run.h"
#include "engine/pruning/document.h"
#include "engine/pruning/token_scorer.h"
#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "kv/pages/page_table.h"
#include "text/detokenizer.h"

namespace quire {

class AnswerConstraint;

// What steps on their way do for a sequence.
struct StepsAhead {
  uint32_t rows = 0;       // that they compute
  uint32_t drawing = 0;    // tokens that they draw
  uint32_t last_draw = 0;  // which draw of the last of them
  bool astray = false;     // they compute with a token that was not drawn after all
};

// How a prompt is pruned, from the judging on. Of one that keeps all there is no scorer, and nothing happens.
struct PruneRun {
  std::unique_ptr<TokenScorer> scorer;
  std::optional<ScoringPass> pass;  // what the scorer wants computed now, if that was asked
  uint32_t pass_index = 0, pass_done = 0;
  uint32_t dropped = 0;                 // tokens that have no row any more, or never had
  std::vector<uint32_t> kept;           // those that stay, if that was known before the prompt was computed
  std::optional<DocumentKey> document;  // where others find what stays; nothing: nobody does

  bool is_due() const { return scorer && dropped == 0; }
  bool chooses_before_prefill() const { return scorer && scorer->chooses_before_prefill(); }
  void end_pass();
  // All rows are gone. What stays, where it is known, is computed again; all else is judged anew.
  void restart();
};

// Whether a sequence waits for pages from a tier.
struct TierWait {
  bool loading = false;
  bool asked = false;                     // whether the tier has any, since it was last to start
  std::optional<uint32_t> memory_tokens;  // that were found without it; nothing if no page came from there

  void restart() { loading = asked = false; }
};

// One timeline of tokens: what is known, what is computed, where its keys and values are. Engine thread only.
struct Sequence {
  Sequence(SequenceId id, Request request, PageTable table, const Tokenizer* tokenizer,
           Clock::time_point now);

  // Tokens that are known, or will be when the steps on their way are done, and not computed. No phases: prefill is a large
  // backlog, decode a backlog of one.
  uint32_t backlog() const { return uint32_t(tokens.size()) + ahead.drawing - prune.dropped - rows(); }
  // Rows that are in pages, or will be.
  uint32_t rows() const { return computed + ahead.rows; }
  // Whether a step may be planned for it before the one on its way has said what it drew.
  bool can_go_ahead() const;
  // How many of them may be computed in one run: a prompt that will be pruned ends one.
  // So does one that fills its budget.
  uint32_t longest_run() const {
    const uint32_t most = to_score() > 0 ? to_score() : backlog();
    if (budget) return std::min(most, budget->rows() - rows());
    if (to_score() > 0) return most;
    return prune.is_due() ? prune.scorer->tokens() - rows() : backlog();
  }
  // How many of its coming rows predict a token of the prompt that somebody wants to know about.
  uint32_t to_score() const {
    const uint32_t last = uint32_t(request.prompt.size()) - 1;
    const uint32_t known = rows() + prune.dropped;
    return request.on_prompt_score && known < last ? last - known : 0;
  }
  // Its prompt is computed, and nothing more may be before it is pruned.
  bool must_prune() { return at_pruning() && !prune.chooses_before_prefill() && due_pass() == nullptr; }
  // What its scorer wants computed now, before anything else; null if nothing.
  const ScoringPass* due_pass();
  // Its budget is full, or will be when the steps on their way are done: nothing more is computed before rows have gone.
  bool must_let_go() const { return budget && budget->is_full(rows()); }
  // Which of its tokens a coming row is of, and the position of that.
  uint32_t token_of(uint32_t row) const {
    return row < prune.kept.size() ? prune.kept[row] : row + prune.dropped;
  }
  uint32_t position_of(uint32_t row) const { return token_of(row) - (budget ? budget->set_back() : 0); }
  // What it has or needs room for, with so many tokens.
  SequenceSize size_of(uint32_t tokens) const {
    return budget ? budget->size_of(tokens) : SequenceSize(tokens);
  }
  // What it may begin with, pruned by others, and leaves for others.
  std::optional<SaltedTokens> document() const {
    if (!prune.document) return std::nullopt;
    return SaltedTokens(std::span(tokens).first(prune.document->tokens), prune.document->salt);
  }
  // The beginning of its tokens that may come from the cache, and the first one after it.
  SaltedTokens findable() const;
  // Something is told of every token of its prompt: it waits for nobody else to compute them.
  bool computes_whole_prompt() const {
    return request.watch || request.on_prompt_score || (pooled && pooled->wants_all());
  }
  uint32_t answer_tokens() const { return uint32_t(tokens.size() - request.prompt.size()); }
  bool is_loading() const { return host.loading || disk.loading || remote.loading; }
  bool finished() const { return answer.finish_reason != FinishReason::none; }

  void append(TokenId token);  // and counts it for the penalties
  // It holds no pages and computes all it needs again. Allocates nothing. REQUIRES: its table is empty.
  void start_over();

  SequenceId id;
  Request request;
  std::vector<TokenId> tokens;  // the prompt, then the answer
  uint32_t computed = 0;        // rows of keys and values that are in pages
  StepsAhead ahead;
  uint32_t scores_told = 0;          // of its prompt: what predicts those need not be computed again
  uint32_t rows_told = 0;            // of its watched head: those before it need not be computed again
  std::optional<PooledRows> pooled;  // of one that becomes a vector; else nothing
  PruneRun prune;
  std::unique_ptr<BudgetRun> budget;  // of one that may have so many rows only; else null
  PageTable table;
  std::vector<TokenId> drafts;  // guesses at what comes next, for the coming step
  std::map<TokenId, uint32_t>
      seen;  // of a request with penalties: token -> how often in the answer; 0: in the prompt only
  std::optional<Detokenizer> detokenizer;
  StopMatcher stop;
  std::shared_ptr<AnswerConstraint> constraint;  // of a request with a grammar; else null
  Answer answer;

  bool running = false;
  bool hopeless = false;  // all the room there is was not enough
  std::optional<SequenceId>
      lead;  // the first of several answers to one prompt, which computes the prompt for all
  uint64_t waiting_since = 0;  // the step
  TierWait host, disk, remote;

  Clock::time_point submitted;
  bool started = false;  // some token of it was computed
  std::vector<Clock::time_point> token_times;
  GapCause gap_cause = GapCause::none;  // the worst since its last token

 private:
  bool at_pruning() const {
    return prune.is_due() && computed == (prune.chooses_before_prefill() ? 0 : prune.scorer->tokens());
  }
};

}  // namespace quire
