#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/marked_text.h"
#include "text/start_finder.h"
#include "text/tokenizer_spec.h"

namespace quire {

// Where added tokens stand in a text.
struct AddedTokenMatch {
  ByteRange range;  // with the white space it takes along
  TokenId id = 0;
};

// Finds added tokens. Immutable; any thread may use it.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // REQUIRES: the texts of `tokens` are what is sought. Throws Error if one is too long.
  AddedTokenFinder(std::vector<AddedToken> tokens, AddedTokenOrder order);

  bool empty() const { return tokens_.empty(); }
  bool has_special() const { return has_special_; }

  // Special tokens are found only with `parse_special`, and never where they touch `plain` (sorted ranges).
  // In order of place.
  std::vector<AddedTokenMatch> find(std::string_view text, bool parse_special,
                                    std::span<const ByteRange> plain) const;

 private:
  struct Place {
    size_t begin = 0;
    size_t bytes = 0;
    uint32_t index = 0;             // in tokens_
    StartFinder::Start start = {};  // what else begins there
  };
  std::vector<Place> leftmost(std::string_view text) const;
  template <class Allowed>
  std::vector<Place> longest_first(std::string_view text, Allowed&& allowed) const;
  bool stands_alone(std::string_view text, const Place& place) const;

  std::vector<AddedToken> tokens_;
  AddedTokenOrder order_ = AddedTokenOrder::leftmost;
  bool has_special_ = false;
  StartFinder finder_;  // of indexes in tokens_
};

}  // namespace quire
