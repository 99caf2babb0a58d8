#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxTextBytes = size_t(1) << 30;
// Beyond this many ranges in one segment whose normal form differs, they are all taken as one.
constexpr size_t kMaxMappedRanges = 64;

TokenizerSpec checked(TokenizerSpec spec) {
  const size_t count = spec.tokens.size();
  const auto check = [&](TokenId id, std::string_view what) {
    if (id >= count) throw Error("the tokenizer's {} is token {}, but there are only {}", what, id, count);
  };
  for (const Merge& merge : spec.merges) {
    for (const TokenId id : {merge.left, merge.right, merge.result}) check(id, "merge");
  }
  for (const AddedToken& added : spec.added_tokens) check(added.id, "added token");
  for (const TokenId id : spec.prefix) check(id, "first token");
  for (const TokenId id : spec.suffix) check(id, "last token");
  if (spec.unknown) check(*spec.unknown, "unknown token");
  if (spec.bos) check(*spec.bos, "BOS token");
  if (spec.eos) check(*spec.eos, "EOS token");
  if (spec.pad) check(*spec.pad, "padding token");
  for (const Token& token : spec.tokens) {
    if (!is_valid_utf8(token.text)) throw Error("a token of the tokenizer is not valid UTF-8");
  }
  return spec;
}

TokenizerModel make_model(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  switch (spec.model) {
    case ModelKind::bpe:
      return Bpe(spec, vocabulary);
    case ModelKind::score_bpe:
      return ScoreBpe(spec, vocabulary);
    case ModelKind::unigram:
      return Unigram(spec, vocabulary);
    case ModelKind::word_piece:
      break;
  }
  return WordPiece(spec, vocabulary);
}

// The part of `ranges` inside [begin, end), counted from `begin`.
std::vector<ByteRange> clip(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  std::vector<ByteRange> clipped;
  auto at =
      std::partition_point(ranges.begin(), ranges.end(), [&](const ByteRange& r) { return r.end <= begin; });
  for (; at != ranges.end() && at->begin < end; ++at) {
    clipped.push_back({std::max(at->begin, begin) - begin, std::min(at->end, end) - begin});
  }
  return clipped;
}

// Where ranges of `raw` lie in its normal form: as long as the normal form of what comes before them.
std::vector<ByteRange> map_ranges(const Normalizer& normalizer, std::string_view raw,
                                  std::string_view normalized, std::span<const ByteRange> ranges) {
  if (ranges.empty() || raw == normalized) return {ranges.begin(), ranges.end()};
  if (ranges.size() > kMaxMappedRanges) return {{0, normalized.size()}};
  const auto place_of = [&](size_t at) {
    while (at < raw.size() && (raw[at] & 0xC0) == 0x80) ++at;
    return std::min(normalizer.apply(std::string(raw.substr(0, at))).size(), normalized.size());
  };
  std::vector<ByteRange> mapped;
  for (const ByteRange& range : ranges) mapped.push_back({place_of(range.begin), place_of(range.end)});
  return mapped;
}

}  // namespace

Tokenizer::State::State(TokenizerSpec s)
    : spec(checked(std::move(s))),
      vocabulary(spec.tokens),
      normalizer(spec.normalizer),
      pretokenizer(spec.pretokenizer),
      model(make_model(spec, vocabulary)),
      decoder(spec.decoder, !spec.has_decoder) {
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& token : spec.added_tokens) {
    Added& entry = added[token.id];
    entry.special |= token.special;
    if (!token.normalized) {
      raw.push_back(token);
      continue;
    }
    AddedToken changed = token;
    changed.text = normalizer.apply(token.text);
    if (changed.text != token.text) entry.normalized = changed.text;
    normalized.push_back(std::move(changed));
  }
  raw_tokens = AddedTokenFinder(std::move(raw), spec.added_order);
  normalized_tokens = AddedTokenFinder(std::move(normalized), spec.added_order);
}

void Tokenizer::State::check_count(const std::vector<TokenId>& out, size_t bytes, size_t most) const {
  // Where every byte has a token no token stands for more bytes than the longest has: a text that is one single piece
  // need not be taken apart to be known as too long.
  const bool bytes_count = std::holds_alternative<ScoreBpe>(model) && vocabulary.byte_token(0) &&
                           vocabulary.byte_token(255) && vocabulary.longest_bytes() > 0;
  const size_t least = bytes_count ? bytes / vocabulary.longest_bytes() : 0;
  if (out.size() > most || least > most - out.size())
    throw TooManyTokens("the text has more than {} tokens", most);
}

void Tokenizer::State::encode_segment(std::string_view segment, bool at_start, const EncodeOptions& options,
                                      std::vector<TokenId>& out) const {
  const std::string normalized = normalizer.apply(std::string(segment));
  const auto encode_part = [&](size_t begin, size_t end) {
    if (begin >= end) return;
    const Pieces pieces = pretokenizer.split(normalized.substr(begin, end - begin), at_start && begin == 0);
    std::visit(
        [&](const auto& m) {
          for (size_t i = 0; i < pieces.ranges.size(); ++i) {
            check_count(out, pieces[i].size(), options.most_tokens);
            m.encode(pieces[i], out);
          }
        },
        model);
  };
  if (normalized_tokens.empty()) return encode_part(0, normalized.size());
  std::vector<ByteRange> mapped;
  if (options.parse_special && normalized_tokens.has_special())
    mapped = map_ranges(normalizer, segment, normalized, options.plain);
  size_t done = 0;
  for (const AddedTokenMatch& match : normalized_tokens.find(normalized, options.parse_special, mapped)) {
    encode_part(done, match.range.begin);
    out.push_back(match.id);
    done = match.range.end;
  }
  encode_part(done, normalized.size());
}

void Tokenizer::State::encode_text(std::string_view text, const EncodeOptions& options,
                                   std::vector<TokenId>& out) const {
  const auto encode_part = [&](size_t begin, size_t end) {
    if (begin >= end) return;
    EncodeOptions inside = options;
    const std::vector<ByteRange> plain = clip(options.plain, begin, end);
    inside.plain = plain;
    encode_segment(text.substr(begin, end - begin), begin == 0, inside, out);
  };
  size_t done = 0;
  for (const AddedTokenMatch& match : raw_tokens.find(text, options.parse_special, options.plain)) {
    encode_part(done, match.range.begin);
    out.push_back(match.id);
    done = match.range.end;
  }
  encode_part(done, text.size());
}

std::optional<TokenDecoder::Piece> Tokenizer::State::piece_of(TokenId id, Special special) const {
  if (id >= spec.tokens.size() || spec.tokens[id].text.empty()) return std::nullopt;
  const auto entry = added.find(id);
  if (entry == added.end()) return TokenDecoder::Piece{spec.tokens[id].text, false};
  if (special == Special::skip && entry->second.special) return std::nullopt;
  const std::string& normalized = entry->second.normalized;
  return TokenDecoder::Piece{normalized.empty() ? spec.tokens[id].text : normalized, spec.added_verbatim};
}

Tokenizer::Tokenizer(TokenizerSpec spec) : state_(std::make_unique<State>(std::move(spec))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) throw Error("a text of {} bytes is too long to tokenize", text.size());
  std::vector<TokenId> out;
  if (options.add_special) out = state_->spec.prefix;
  if (is_valid_utf8(text)) {
    state_->encode_text(text, options, out);
  } else {
    // Ranges are counted in bytes: they move with what is replaced before them.
    Utf8Stream stream;
    std::string whole;
    std::vector<ByteRange> plain;
    size_t done = 0;
    const auto copy_to = [&](size_t end) {
      end = std::min(end, text.size());
      if (end > done) whole += stream.push(text.substr(done, end - done));
      done = std::max(done, end);
      return whole.size();
    };
    for (const ByteRange& range : options.plain) {
      const size_t begin = copy_to(range.begin);
      plain.push_back({begin, copy_to(range.end)});
    }
    copy_to(text.size());
    whole += stream.finish();
    EncodeOptions moved = options;
    moved.plain = plain;
    state_->encode_text(whole, moved, out);
  }
  if (options.add_special) out.insert(out.end(), state_->spec.suffix.begin(), state_->spec.suffix.end());
  state_->check_count(out, 0, options.most_tokens);
  return out;
}

std::vector<TokenId> Tokenizer::encode(const MarkedText& text, size_t most_tokens) const {
  return encode(
      text.text,
      {.add_special = false, .parse_special = true, .plain = text.plain, .most_tokens = most_tokens});
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, Special special) const {
  TokenDecoder::Stream stream = state_->decoder.start();
  std::string text;
  for (const TokenId id : tokens) {
    if (auto piece = state_->piece_of(id, special)) text += stream.push(std::move(*piece));
  }
  return text += stream.finish();
}

size_t Tokenizer::size() const {
  return state_->spec.tokens.size();
}

std::string_view Tokenizer::token(TokenId id) const {
  return id < size() ? std::string_view(state_->spec.tokens[id].text) : std::string_view();
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  return state_->vocabulary.find(token);
}

size_t Tokenizer::longest_token_bytes() const {
  return state_->vocabulary.longest_bytes();
}

bool Tokenizer::is_special(TokenId id) const {
  const auto entry = state_->added.find(id);
  return entry != state_->added.end() && entry->second.special;
}

std::optional<TokenId> Tokenizer::bos() const {
  return state_->spec.bos;
}

std::optional<TokenId> Tokenizer::eos() const {
  return state_->spec.eos;
}

const TokenizerSpec& Tokenizer::spec() const {
  return state_->spec;
}

}  // namespace quire
