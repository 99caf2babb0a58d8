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
  if (budget && rows() >= budget->first_seen()) return false;  // only what is sure is judged by
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
  if (budget) budget->restart();
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
  // What a tell or a judge must see is computed, and what is found ends before it: the last token never is.
  const auto up_to = [&](size_t computed) { return all.first(std::min(computed + 1, tokens.size())); };
  if (request.watch) return up_to(rows_told);
  const uint32_t unseen = budget ? budget->first_seen() : UINT32_MAX;
  if (request.on_prompt_score) return up_to(std::min(scores_told, unseen));
  if (pooled) return up_to(pooled->findable());
  if (budget) return up_to(unseen);
  if (!prune.scorer) return all;
  const TokenScorer& scorer = *prune.scorer;
  if (!prune.chooses_before_prefill())
    return up_to(scorer.tokens() - std::min(scorer.tokens(), scorer.observed_tokens()));
  // What a pass over the prompt would compute may be there; what stays of it is not a prefix of anything.
  return prune.kept.empty() ? up_to(scorer.tokens() - scorer.observed_in_pass()) : all.first(0);
}

}  // namespace quire
