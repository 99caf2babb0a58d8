#include "engine/sequence.h"

#include <algorithm>
#include <utility>

namespace quire {

void PruneRun::end_pass() {
  pass.reset();
  pass_done = 0;
  ++pass_index;
}

void PruneRun::restart() {
  pass.reset();
  pass_index = pass_done = 0;
  if (kept.empty()) dropped = 0;
  if (scorer) scorer->restart();
}

Sequence::Sequence(SequenceId id, Request ask, PageTable table, const Tokenizer* tokenizer,
                   Clock::time_point now)
    : id(id),
      request(std::move(ask)),
      tokens(request.prompt),
      table(std::move(table)),
      stop(request.stop),
      submitted(now) {
  if (request.sampling.has_penalties()) {
    for (TokenId token : tokens) seen.emplace(token, 0);
  }
  if (tokenizer != nullptr) detokenizer.emplace(*tokenizer);
  answer.prompt_tokens = uint32_t(tokens.size());
  if (request.watch) rows_told = request.watch->first;
  if (request.embedding) pooled.emplace(request.embedding->pooling, answer.prompt_tokens);
}

bool Sequence::can_go_ahead() const {
  if (ahead.rows == 0) return true;
  if (ahead.astray) return false;
  // What it draws next depends on the token before, or it is not known how many tokens there will be.
  return drafts.empty() && !request.sampling.has_penalties() && !prune.scorer && !request.watch &&
         !constraint && (request.max_tokens == 0 || answer_tokens() + ahead.drawing < request.max_tokens);
}

void Sequence::append(TokenId token) {
  tokens.push_back(token);
  if (request.sampling.has_penalties()) ++seen[token];
}

void Sequence::start_over() {
  computed = 0;
  ahead = {};
  drafts.clear();
  prune.restart();
  host.restart();
  disk.restart();
  remote.restart();
  running = false;
}

const ScoringPass* Sequence::due_pass() {
  if (!at_pruning()) return nullptr;
  if (!prune.pass) prune.pass = prune.scorer->pass(prune.pass_index, tokens);
  return prune.pass ? &*prune.pass : nullptr;
}

SaltedTokens Sequence::findable() const {
  const SaltedTokens all(tokens, request.salt);
  if (request.watch) return all.first(std::min<size_t>(size_t(rows_told) + 1, tokens.size()));
  if (request.on_prompt_score) return all.first(std::min<size_t>(size_t(scores_told) + 1, tokens.size()));
  if (pooled) return all.first(std::min<size_t>(size_t(pooled->findable()) + 1, tokens.size()));
  if (!prune.scorer) return all;
  if (prune.chooses_before_prefill()) return all.first(0);
  const TokenScorer& scorer = *prune.scorer;
  const uint32_t cacheable = scorer.tokens() - std::min(scorer.tokens(), scorer.observed_tokens());
  return all.first(std::min<size_t>(cacheable + 1, tokens.size()));
}

}  // namespace quire
