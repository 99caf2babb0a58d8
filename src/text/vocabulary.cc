#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

#include <fmt/format.h>

namespace quire {

Vocabulary::Vocabulary(const std::vector<Token>& tokens)
    : tokens_(&tokens), slots_(std::bit_ceil(tokens.size() * 2 + 2)) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& text = tokens[id].text;
    if (text.empty()) continue;
    slots_[slot_of(text)] = uint32_t(id + 1);
    longest_bytes_ = std::max(longest_bytes_, text.size());
  }
  for (int byte = 0; byte < 256; ++byte) byte_tokens_[byte] = find(fmt::format("<0x{:02X}>", byte));
}

size_t Vocabulary::slot_of(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>()(text) & mask;
  while (slots_[slot] != 0 && (*tokens_)[slots_[slot] - 1].text != text) slot = (slot + 1) & mask;
  return slot;
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  if (text.empty() || (longest_bytes_ != 0 && text.size() > longest_bytes_)) return std::nullopt;
  const uint32_t found = slots_[slot_of(text)];
  if (found == 0) return std::nullopt;
  return found - 1;
}

std::optional<TokenId> Vocabulary::find_plain(std::string_view text) const {
  const auto id = find(text);
  return id && is_plain(*id) ? id : std::nullopt;
}

bool Vocabulary::is_plain(TokenId id) const {
  const Token& token = (*tokens_)[id];
  return token.in_model && token.kind != TokenKind::control && token.kind != TokenKind::unknown;
}

}  // namespace quire
