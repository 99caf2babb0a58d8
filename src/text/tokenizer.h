#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/id.h"
#include "text/marked_text.h"

namespace quire {

struct TokenizerSpec;

// A text has more tokens than the caller can use.
class TooManyTokens : public Error {
 public:
  using Error::Error;
};

struct EncodeOptions {
  bool add_special = true;     // BOS and the like, as the tokenizer's own rules say
  bool parse_special = false;  // special tokens written in the text become their ids
  std::span<const ByteRange> plain =
      {};  // where they never do (see MarkedText); added tokens that are not special still do
  size_t most_tokens = SIZE_MAX;  // the rest of a text that has more is not looked at: TooManyTokens
};

// Text to token ids and back. Immutable once made; any thread may use it.
class Tokenizer {
 public:
  // Throws Error if the spec contradicts itself (ids out of range, a pattern that does not compile).
  explicit Tokenizer(TokenizerSpec spec);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Broken UTF-8 in `text` counts as U+FFFD. Without parse_special no special token comes from the text,
  // however it is spelled. Throws Error if a pattern of the tokenizer exceeds its bounds on this text.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // A rendered conversation: special tokens count where the template wrote them.
  std::vector<TokenId> encode(const MarkedText& text, size_t most_tokens = SIZE_MAX) const;

  // The text of `tokens` as a whole; ids that are no token are left out, special tokens only with `skip`.
  enum class Special { skip, keep };
  std::string decode(std::span<const TokenId> tokens, Special special = Special::skip) const;

  size_t size() const;                       // ids are below this
  std::string_view token(TokenId id) const;  // as the vocabulary spells it; empty if there is none
  std::optional<TokenId> find(std::string_view token) const;
  size_t longest_token_bytes() const;
  bool is_special(TokenId id) const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  const TokenizerSpec& spec() const;

 private:
  friend class Detokenizer;
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace quire
