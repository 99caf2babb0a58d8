#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine_loop.h"
#include "server/http.h"
#include "server/key_quota.h"
#include "server/request_steps.h"
#include "text/tokenizer.h"

namespace quire {

// What a request has computed so far: its tokens that were fed to the model, and by which passes. The last token of an answer
// was drawn and never fed.
struct FedText {
  struct Pass {
    bool prefill = false;
    uint32_t begin = 0, tokens = 0;  // keys before `begin` it found in the cache
  };
  CacheSalt salt;
  uint32_t prompt_tokens = 0, cached_tokens = 0, pruned_tokens = 0;
  size_t known_tokens = 0;        // prompt and answer
  std::vector<TokenId> tokens;    // left out, as the passes, if there are more than can be watched
  std::vector<Pass> passes;       // those that computed something for the first time, in their order
  std::vector<uint32_t> pass_of;  // by token; of those that came from the cache 0

  bool computed(uint32_t position) const { return position >= cached_tokens; }
  // Throws ApiError if there is no attention to show.
  void check() const;
};
FedText fed_text(const RequestRecord& record);

// Where a head looks, in cells that are few enough to be drawn: neighbouring tokens of a long text share one. As
// `quire explain --view attention` has it: shares are added in a column and averaged in a row.
class AttentionGrid {
 public:
  static constexpr uint32_t kMostCells = 256;  // in a row

  explicit AttentionGrid(FedText text);
  // One token after the other, those that came from the cache left out.
  void add(uint32_t position, std::span<const float> shares);
  OrderedJson json(const std::string& id, const HeadPlace& place, const Tokenizer& tokenizer) const;
  const FedText& text() const { return text_; }

 private:
  struct Row {
    uint32_t position = 0, tokens = 0;  // the first of so many
    std::vector<double> sums;           // by cell
  };
  FedText text_;
  uint32_t cell_tokens_;
  std::vector<Row> rows_;
};

// Computes the tokens of requests once more and watches a head meanwhile. The same tokens give the same bits, alone or in
// company, in whatever chunks (promise 2): what is seen now is what the request saw. Belongs to the thread of its executor.
class HeadLooks {
 public:
  // What it is given must outlive it.
  HeadLooks(const asio::any_io_executor& executor, EngineLoop& loop, KeyQuota quota = {})
      : executor_(executor), loop_(loop), quota_(quota) {}

  struct Result {
    std::shared_ptr<const AttentionGrid> grid;
    HeadPlace place;
  };
  // Goes behind all requests, and ends when the exchange's client leaves. Throws ApiError if it cannot be done.
  asio::awaitable<Result> look(Exchange& exchange, FedText text, uint32_t layer, uint32_t head,
                               std::string client);

 private:
  static constexpr size_t kMostOpen = 8, kMostOpenInAll = 64;  // of a key, and of all
  static constexpr std::chrono::seconds kPatience{30};

  asio::any_io_executor executor_;
  EngineLoop& loop_;
  KeyQuota quota_;
  std::map<std::string, uint32_t> open_;  // by whose they are
};

}  // namespace quire
