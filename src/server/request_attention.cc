#include "server/request_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "openai/api_error.h"
#include "server/counted.h"
#include "server/mailbox.h"
#include "text/utf8.h"

namespace quire {
namespace {

// What the engine's thread says of a look.
struct Seen {
  std::optional<Answer> answer;
  std::string refused;
};

// Why nothing was seen; nothing if it was.
std::optional<ApiError> failure(const Seen& seen) {
  if (!seen.answer) return ApiError(400, "", "invalid_value", seen.refused);
  if (!seen.refused.empty()) return ApiError(503, "", "out_of_memory", seen.refused);
  switch (seen.answer->finish_reason) {
    case FinishReason::deadline:
      return ApiError(503, "", "busy", "other requests left no time to look at this one; try again later");
    case FinishReason::no_room:
      return ApiError(503, "", "no_room", "what is pinned leaves too few KV pages to look at this request");
    case FinishReason::cancelled:
      return ApiError(503, "", "cancelled", "the server is shutting down");
    case FinishReason::failed:
      return ApiError(500, "", "step_failed", "the server failed while it looked at this request");
    default:
      return std::nullopt;
  }
}

double rounded(double share) {
  return std::round(share * 1000) / 1000;
}

Request look_request(const std::shared_ptr<AttentionGrid>& grid, uint32_t layer, uint32_t head) {
  Request request;
  request.prompt = grid->text().tokens;
  request.salt = grid->text().salt;
  request.max_tokens = 1;  // the least there is; nobody reads it
  request.ignore_end = true;
  request.sampling.temperature = 0;
  request.priority = std::numeric_limits<int32_t>::min();  // whoever else asks goes first
  request.watch = {.layer = layer,
                   .head = head,
                   .first = grid->text().cached_tokens,
                   .on_row = [grid](uint32_t position, std::span<const float> shares) {
                     if (position < grid->text().tokens.size()) grid->add(position, shares);
                   }};
  return request;
}

}  // namespace

FedText fed_text(const RequestRecord& record) {
  FedText text;
  text.salt = record.salt;
  text.prompt_tokens = uint32_t(record.prompt.size());
  text.cached_tokens = record.answer.account.cached_tokens;
  text.pruned_tokens = record.answer.account.pruned_tokens + record.answer.account.forgotten_tokens;
  text.known_tokens = record.prompt.size() + record.answer.tokens.size();
  if (text.known_tokens > HeadWatch::kMostTokens + 1) return text;
  text.pass_of.resize(text.cached_tokens);
  for (const RequestSteps::Pass& pass : all_steps_of(record).passes) {
    // After a preemption tokens are computed again: only what is new counts.
    if (pass.entries_after <= text.pass_of.size()) continue;
    text.pass_of.resize(pass.entries_after, uint32_t(text.passes.size()));
    text.passes.push_back({pass.prefill, pass.entries_before, pass.tokens});
  }
  text.pass_of.resize(std::min(text.pass_of.size(), text.known_tokens));
  text.tokens = record.prompt;
  text.tokens.insert(text.tokens.end(), record.answer.tokens.begin(), record.answer.tokens.end());
  text.tokens.resize(text.pass_of.size());
  return text;
}

void FedText::check() const {
  if (pruned_tokens > 0) {
    throw ApiError(400, "", "pruned",
                   "rows of this request were pruned: its heads did not see the whole text, and what they "
                   "saw is gone");
  }
  if (known_tokens > HeadWatch::kMostTokens + 1) {
    throw ApiError(400, "", "too_long",
                   fmt::format("a head has a share for every pair of tokens: it is shown for at most {}, and "
                               "this request has {}",
                               HeadWatch::kMostTokens, known_tokens));
  }
  if (passes.empty()) {
    throw ApiError(409, "", "not_computed", "nothing of this request is computed yet");
  }
}

AttentionGrid::AttentionGrid(FedText text)
    : text_(std::move(text)),
      cell_tokens_(std::max(1u, uint32_t((text_.tokens.size() + kMostCells - 1) / kMostCells))) {}

void AttentionGrid::add(uint32_t position, std::span<const float> shares) {
  const bool joins = !rows_.empty() && position / cell_tokens_ == rows_.back().position / cell_tokens_ &&
                     position != text_.prompt_tokens;  // a row is of the prompt or of the answer
  if (!joins) {
    rows_.emplace_back();
    rows_.back().position = position;
  }
  Row& row = rows_.back();
  ++row.tokens;
  row.sums.resize(position / cell_tokens_ + 1);
  for (size_t p = 0; p < shares.size(); ++p) row.sums[p / cell_tokens_] += double(shares[p]);
}

OrderedJson AttentionGrid::json(const std::string& id, const HeadPlace& place,
                                const Tokenizer& tokenizer) const {
  OrderedJson tokens = OrderedJson::array(), passes = OrderedJson::array(), rows = OrderedJson::array();
  for (const TokenId& token : text_.tokens)
    tokens.push_back(replace_broken_utf8(tokenizer.decode({&token, 1}, Tokenizer::Special::keep)));
  for (const FedText::Pass& pass : text_.passes) {
    passes.push_back(
        {{"phase", pass.prefill ? "prefill" : "decode"}, {"begin", pass.begin}, {"tokens", pass.tokens}});
  }
  for (const Row& row : rows_) {
    OrderedJson shares = OrderedJson::array();
    for (const double sum : row.sums) shares.push_back(rounded(sum / row.tokens));
    rows.push_back({{"position", row.position},
                    {"tokens", row.tokens},
                    {"pass", text_.pass_of[row.position]},
                    {"shares", std::move(shares)}});
  }
  return {{"id", id},
          {"layer", place.layer},
          {"layers", place.layers},
          {"head", place.head},
          {"heads", place.heads},
          {"kv_head", place.kv_head},
          {"kv_heads", place.kv_heads},
          {"sharing", place.sharing},
          {"window", place.window},
          {"sinks", place.sinks},
          {"prompt_tokens", text_.prompt_tokens},
          {"cached_tokens", text_.cached_tokens},
          {"cell_tokens", cell_tokens_},
          {"tokens", std::move(tokens)},
          {"passes", std::move(passes)},
          {"rows", std::move(rows)}};
}

asio::awaitable<HeadLooks::Result> HeadLooks::look(Exchange& exchange, FedText text, uint32_t layer,
                                                   uint32_t head, std::string client) {
  uint32_t& open = open_[quota_.owner(client)];
  if (open >= quota_.of_each(kMostOpen, kMostOpenInAll))
    throw ApiError(429, "", "queue_full", "too many look at heads already; try again later");
  const auto grid = std::make_shared<AttentionGrid>(std::move(text));
  Request request = look_request(grid, layer, head);
  request.client = std::move(client);
  request.deadline = Clock::now() + kPatience;
  const auto box = std::make_shared<Mailbox<Seen>>(executor_);
  const auto place = std::make_shared<HeadPlace>();
  const auto begin = [request, place, layer, head](Engine& engine) {
    *place = engine.place_of(layer, head);
    return std::vector(1, engine.submit(request));
  };
  const auto done = [box](uint32_t, const Answer* answer, const std::string& refused) {
    Seen seen;
    if (answer != nullptr) seen.answer = *answer;
    seen.refused = refused;
    box->put(std::move(seen));
  };
  const EngineLoop::Ticket ticket = loop_.start(begin, done);
  exchange.when_gone([&loop = loop_, ticket] { loop.cancel(ticket); });
  std::vector<Seen> seen;
  {
    const Counted counted(open);
    seen = co_await box->take();
  }
  if (const auto why = failure(seen.front())) throw *why;
  Result result;
  result.grid = grid;
  result.place = *place;
  co_return result;
}

}  // namespace quire
