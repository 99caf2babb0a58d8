#pragma once

#include <map>
#include <optional>
#include <vector>

#include "engine/drafts/drafter.h"
#include "engine/drafts/suffix_text.h"

namespace quire {

// Guesses what most often followed the longest end of a text that stood somewhere before: in the text itself, or in answers of late
// to requests of the same salt. What it keeps of those is bounded; what it keeps of a text is a thousandth of its keys and values.
class SuffixDrafter : public Drafter {
 public:
  static constexpr uint32_t kKeptTokens = 128 * 1024;  // of answers, twice: the newest, and those before them

  explicit SuffixDrafter(uint32_t kept_tokens = kKeptTokens) : kept_tokens_(kept_tokens) {}

  void catch_up() override;
  void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) override;
  void forget(SequenceId sequence) override;
  void forget_all() override;

  size_t kept_bytes() const;  // of answers

 private:
  using Answers = std::map<CacheSalt, SuffixText>;
  // A sequence's place in answers of others.
  struct Place {
    const SuffixText* answers = nullptr;
    SuffixText::Match match = {};
  };
  struct Known {
    CacheSalt salt = {};
    SuffixText text = {};
    std::vector<TokenId> answer = {};
    Place newest = {}, older = {};
    uint64_t turn = 0;     // of the answers, when the places were found
    bool is_gone = false;  // its answer is to be kept
    uint32_t kept = 0;     // tokens of it that are
  };

  void learn(const Sequence& sequence, Known& known);
  void find_places(const Sequence& sequence, Known& known);
  bool keep_some(Known& known, uint32_t& left);
  void turn_over();

  uint32_t kept_tokens_;
  std::map<SequenceId, Known> known_;
  size_t gone_ = 0;  // of these
  std::optional<SequenceId> being_kept_;
  Answers newest_, older_;
  uint32_t newest_tokens_ = 0;
  uint64_t turn_ = 0;
};

}  // namespace quire
