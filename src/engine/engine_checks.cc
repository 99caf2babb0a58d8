#include <algorithm>

#include "backend/device_lost.h"
#include "base/check.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/pruning/zip_scorer.h"

// What a request may ask for.

namespace quire {
namespace {

constexpr uint64_t kMostTokens = uint64_t(1) << 31;  // of a sequence, however few rows it has

}  // namespace

void Engine::check(const Request& request) const {
  if (!lost_.empty()) throw DeviceLost("{}", lost_);
  request.sampling.check();
  if (request.prompt.empty()) throw Error("the prompt is empty: there is nothing to continue");
  if (model_.ranks != nullptr) check_divided(request);
  if (request.embedding) check_embedding(request);
  if (request.budget) check_budget(request);
  if (!request.embedding && !outlives_context(request) && request.prompt.size() >= options_.context) {
    throw Error("the prompt has {} tokens, but the context holds {} with at least one for the answer",
                request.prompt.size(), options_.context);
  }
  for (TokenId token : request.prompt) {
    if (token >= model_.spec->vocab) {
      throw Error("the prompt has the token {}, but the model knows {} tokens only", token,
                  model_.spec->vocab);
    }
  }
  if (request.pruning) check_pruning(request);
  if (request.watch) check_watch(request);
  if (request.on_prompt_score && request.pruning)
    throw Error(
        "a prompt that is pruned is not told of token by token: its rows do not stay in their places");
  if (request.on_prompt_score && !options_.kv_cache)
    throw Error("a prompt is told of token by token with the KV cache only");
  uint64_t tokens = options_.context;
  if (request.max_tokens > 0)
    tokens = std::min<uint64_t>(tokens, request.prompt.size() + uint64_t(request.max_tokens));
  if (request.embedding) tokens = request.prompt.size();
  if (request.budget) return;  // which has been looked at
  if (!kv_.could_hold(uint32_t(tokens), options_.prefill_chunk)) {
    throw Error("{} tokens of prompt and {} of answer need {} bytes of KV cache, but there are {} in all",
                request.prompt.size(), tokens - request.prompt.size(),
                kv_bytes(kv_.layout(), pages_for(kv_.layout(), uint32_t(tokens), options_.prefill_chunk, 1)),
                kv_.stats().capacity_bytes);
  }
}

void Engine::check_rows_can_go() const {
  if (!options_.kv_cache) throw Error("without a KV cache there is nothing to prune");
  bool keeps_rows = false;
  for (const KvLayer& layer : kv_shapes(*model_.spec, KvFormats())) {
    if (std::ranges::all_of(layer, &KvStream::state)) continue;  // or nothing
    keeps_rows = true;
    if (layer.size() != 1 || layer.front().stride != 1)
      throw Error("layers of this model keep more than keys and values: such a cache cannot be pruned");
    if (layer.front().shares_with)
      throw Error("layers of this model read each other's keys and values: such a cache cannot be pruned");
  }
  for (const LayerSpec& layer : model_.spec->layers) {
    if (layer.attention() != nullptr && !layer.attention()->slopes.empty())
      throw Error(
          "layers of this model know how far a key is behind by where its row is (ALiBi): such a cache "
          "cannot "
          "be pruned");
  }
  if (!keeps_rows) throw Error("no layer of this model keeps keys and values: there is nothing to prune");
}

void Engine::check_budget(const Request& request) const {
  const BudgetOptions& budget = *request.budget;
  budget.check();
  check_rows_can_go();
  // Which throws if the budget is too small, or larger than the context.
  const BudgetRun run(budget, *model_.spec, kv_.layout(), options_.context, positions_end_.empty());
  if (request.pruning)
    throw Error("a budget bounds the prompt too: it does not go with what is kept of a prompt (kv_keep)");
  if (request.watch) throw Error("with a budget no head is watched: its rows do not stay in their places");
  if (request.embedding) throw Error("a text that becomes a vector has no budget");
  const uint64_t tokens = request.prompt.size() + uint64_t(request.max_tokens);
  if (positions_end_.empty() && tokens > kMostTokens)
    throw Error("{} tokens of prompt and answer are more than the {} that a sequence may have", tokens,
                kMostTokens);
  if (!positions_end_.empty() && tokens > options_.context) {
    throw Error(
        "{} tokens of prompt and {} of answer are more than the context of {}, and a budget does not take "
        "this "
        "model beyond it: {}",
        request.prompt.size(), request.max_tokens, options_.context, positions_end_);
  }
  const SequenceSize size =
      run.size_of(request.prompt.size() + (request.max_tokens > 0 ? request.max_tokens : options_.context));
  if (!kv_.could_hold(size, options_.prefill_chunk)) {
    throw Error("a budget of {} rows needs {} bytes of KV cache, but there are {} in all", run.rows(),
                kv_bytes(kv_.layout(), pages_for(kv_.layout(), size, options_.prefill_chunk, 1)),
                kv_.stats().capacity_bytes);
  }
}

void Engine::check_pruning(const Request& request) const {
  const PruningOptions& pruning = *request.pruning;
  pruning.check();
  pruning.check_heads();
  check_heads(pruning.policy, kv_.layout(), model_.backend->traits());
  if (pruning.scored > request.prompt.size())
    throw Error("{} tokens are to be pruned, but the prompt has {} only", pruning.scored,
                request.prompt.size());
  const size_t layers = model_.spec->layers.size();
  check_rows_can_go();
  if (pruning.is_shared && pruning.policy == PruningPolicy::evaluator_prompt)
    throw Error(
        "the policy evaluator-prompt chooses before a text is computed, with what is asked after it: a "
        "document that many ask is pruned with another");
  if (pruning.is_shared && !KvCache::may_share_documents(kv_.layout()))
    throw Error(
        "layers of this model have windows, states or pages of their own: what is left of a pruned document "
        "cannot be shared");
  const bool reads_again =
      pruning.policy == PruningPolicy::zip || pruning.policy == PruningPolicy::evaluator_prompt;
  if (reads_again && kv_.layout().has_states())
    throw Error(
        "the policy {} reads a prompt twice, which layers of this model that keep a state cannot: prune with "
        "evaluator, snap, expected or streaming",
        name(pruning.policy));
  if (asks_evaluator(pruning.policy)) {
    if (pruning.evaluator.layer >= layers ||
        std::ranges::max(pruning.evaluator.heads) >= model_.spec->layers[pruning.evaluator.layer].gqa().heads)
      throw Error("the evaluator heads are those of another model");
    if (model_.spec->layers[pruning.evaluator.layer].window() > 0)
      throw Error("layer {} sees a window only: its heads cannot judge a prompt", pruning.evaluator.layer);
  }
  const uint32_t scored = pruning.scored > 0 ? pruning.scored : uint32_t(request.prompt.size());
  const uint32_t again =
      pruning.policy == PruningPolicy::zip ? ZipScorer::pass_tokens(scored, model_.repeat_request) : 0;
  if (scored + again > options_.context) {
    throw Error(
        "{} tokens of prompt are read again in parts of {} after themselves, but the context holds {}",
        scored, again, options_.context);
  }
  if (!kv_.could_hold(scored + again, std::max(options_.prefill_chunk, again))) {
    throw Error(
        "{} tokens of prompt and {} that are read again need more KV cache than the {} bytes there are",
        scored, again, kv_.stats().capacity_bytes);
  }
}

// What looks into single heads, whose rows other ranks have.
void Engine::check_divided(const Request& request) const {
  if (request.pruning || request.budget)
    throw Error("the cache of a model that ranks have divided is not pruned yet (kv_keep, kv_budget)");
  if (request.watch) throw Error("the heads of a model that ranks have divided are not watched yet");
}

void Engine::check_embedding(const Request& request) const {
  CHECK(request.embedding->on_vector != nullptr);
  if (request.embedding->pooling == Pooling::rank)
    throw Error("this model judges pairs of texts (pooling 'rank'): it makes no vectors");
  if (request.prompt.size() > options_.context)
    throw Error("the text has {} tokens, but the context holds {}", request.prompt.size(), options_.context);
  if (request.pruning || request.watch || request.on_prompt_score || request.grammar)
    throw Error("a text that becomes a vector has no answer, and nothing else is told of it");
}

void Engine::check_watch(const Request& request) const {
  CHECK(request.watch->on_row != nullptr);
  place_of(request.watch->layer, request.watch->head);  // throws if there is none
  if (request.pruning)
    throw Error("a prompt that is pruned cannot be watched: its rows do not stay in their places");
  if (request.prompt.size() > HeadWatch::kMostTokens) {
    throw Error(
        "a head is watched over at most {} tokens, for it has a share for every pair of them; the prompt has "
        "{}",
        HeadWatch::kMostTokens, request.prompt.size());
  }
}

}  // namespace quire
