#include "text/token_bytes.h"

#include <algorithm>
#include <optional>

#include "text/byte_level.h"
#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace quire {
namespace {

bool has_byte_level(const TokenizerSpec& spec) {
  return std::ranges::any_of(
      spec.decoder, [](const DecoderStep& step) { return std::holds_alternative<DecodeByteLevel>(step); });
}

bool has_byte_fallback(const TokenizerSpec& spec) {
  return std::ranges::any_of(
      spec.decoder, [](const DecoderStep& step) { return std::holds_alternative<DecodeByteFallback>(step); });
}

// A word that no decoder changes.
const TokenDecoder::Piece kBefore{"a", false};

}  // namespace

std::vector<std::string> token_bytes(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  const bool byte_level = has_byte_level(spec), byte_fallback = has_byte_fallback(spec);
  const TokenDecoder decoder(spec.decoder, !spec.has_decoder);
  TokenDecoder::Stream alone = decoder.start();
  std::string before = alone.push(kBefore);
  before += alone.finish();
  std::vector<std::string> bytes(tokenizer.size());
  const Vocabulary vocabulary(spec.tokens);
  std::vector<int> byte_of(tokenizer.size(), -1);
  for (int byte = 0; byte_fallback && byte < 256; ++byte) {
    if (const auto id = vocabulary.byte_token(static_cast<unsigned char>(byte))) byte_of[*id] = byte;
  }
  for (TokenId id = 0; id < tokenizer.size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string_view text = tokenizer.token(id);
    if (text.empty()) continue;
    if (byte_of[id] >= 0) {
      bytes[id].assign(1, char(byte_of[id]));
      continue;
    }
    if (byte_level && is_valid_utf8(text)) {
      const auto raw = chars_to_bytes(text);
      // An added token may be left as it is spelled.
      const bool added =
          std::ranges::any_of(spec.added_tokens, [&](const AddedToken& one) { return one.id == id; });
      bytes[id] = raw && !(added && spec.added_verbatim) ? *raw : std::string(text);
      continue;
    }
    TokenDecoder::Stream stream = decoder.start();
    std::string whole = stream.push(kBefore);
    whole += stream.push({std::string(text), false});
    whole += stream.finish();
    if (whole.starts_with(before)) bytes[id] = whole.substr(before.size());
  }
  return bytes;
}

}  // namespace quire
