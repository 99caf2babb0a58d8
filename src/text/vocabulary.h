#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace quire {

// Finds tokens by their text. Refers to the tokens it was made of, which must outlive it unmoved.
class Vocabulary {
 public:
  explicit Vocabulary(const std::vector<Token>& tokens);

  std::optional<TokenId> find(std::string_view text) const;  // of tokens spelled alike, the last
  // Only tokens the model may produce from plain text: special ones never.
  std::optional<TokenId> find_plain(std::string_view text) const;
  bool is_plain(TokenId id) const;

  std::optional<TokenId> byte_token(unsigned char byte) const { return byte_tokens_[byte]; }  // <0xXX>
  const Token& operator[](TokenId id) const { return (*tokens_)[id]; }
  size_t size() const { return tokens_->size(); }
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  size_t slot_of(std::string_view text) const;

  const std::vector<Token>* tokens_;
  std::vector<uint32_t> slots_;  // id + 1, 0: free; open addressing, a power of two
  std::array<std::optional<TokenId>, 256> byte_tokens_;
  size_t longest_bytes_ = 0;
};

}  // namespace quire
