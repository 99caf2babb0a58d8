#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/id.h"

// A tokenizer as data. Where it came from (a tokenizer.json, a GGUF) is forgotten here: two files that say
// the same thing give the same spec. Texts are UTF-8.
namespace quire {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581: how vocabularies write a space
inline constexpr size_t kMaxTokens = size_t(1) << 24;           // of any vocabulary
inline constexpr double kUnknownPenalty = 10;  // below the worst token, as SentencePiece has it

// GGUF's numbering.
enum class TokenKind : int32_t { normal = 1, unknown, control, user_defined, unused, byte };

struct Token {
  std::string text;  // as the vocabulary spells it; empty: no token has this id
  double score = 0;
  TokenKind kind = TokenKind::normal;
  bool in_model = true;  // false: only an added token, which the model itself never produces
};

// `left` and `right` next to each other become `result`. Earlier in the list means sooner.
struct Merge {
  TokenId left = 0;
  TokenId right = 0;
  TokenId result = 0;
  bool operator==(const Merge&) const = default;
};

enum class ModelKind {
  bpe,        // merges by rank
  score_bpe,  // any two neighbours that spell a token merge, best score first (SentencePiece BPE)
  unigram,    // the path of the best sum of scores
  word_piece  // the longest token, then the longest that continues it
};

// A token that is cut out of the text before the model sees the rest.
struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool special = false;     // cut out only when the caller asks; left out of decoded text
  bool normalized = false;  // sought in the normalized text, and itself normalized
  bool strip_left = false;  // takes the white space before it along
  bool strip_right = false;
  bool single_word = false;  // only where no word character touches it
  bool operator==(const AddedToken&) const = default;
};

enum class AddedTokenOrder {
  leftmost,      // from the left, the longest at each place
  longest_first  // the longest anywhere, then the next longest in what is left
};

struct TextPattern {
  std::string text;
  bool is_regex = false;
  bool operator==(const TextPattern&) const = default;
};

// --- normalizer: text -> text

struct UnicodeForm {
  enum class Form { nfc, nfd, nfkc, nfkd } form = Form::nfc;
  bool operator==(const UnicodeForm&) const = default;
};
struct ReplaceText {
  TextPattern pattern;
  std::string content;
  bool operator==(const ReplaceText&) const = default;
};
struct PrependText {  // nothing is put before an empty text
  std::string text;
  bool operator==(const PrependText&) const = default;
};
struct Lowercase {
  bool operator==(const Lowercase&) const = default;
};
struct StripSpaces {
  bool left = true;
  bool right = true;
  bool operator==(const StripSpaces&) const = default;
};
struct StripAccents {
  enum class Marks { all, nonspacing } marks = Marks::all;
  bool operator==(const StripAccents&) const = default;
};
struct NmtCleanup {  // control characters out, exotic spaces to ' '
  bool operator==(const NmtCleanup&) const = default;
};
struct BertCleanup {
  bool clean_text = true;
  bool isolate_han = true;
  bool operator==(const BertCleanup&) const = default;
};
struct BytesToChars {  // each byte becomes the character that stands for it (see byte_level.h)
  bool operator==(const BytesToChars&) const = default;
};
struct Charsmap {  // SentencePiece's precompiled map
  std::string bytes;
  enum class Match { grapheme, longest } match = Match::grapheme;
  bool operator==(const Charsmap&) const = default;
};
// SentencePiece's own handling of spaces: each becomes U+2581.
struct EscapeSpaces {
  enum class Prefix {
    none,
    always,
    first_word
  } prefix = Prefix::none;  // one more, before the text or its words
  bool merge = false;       // a run counts as one, and none is left at the end
  bool operator==(const EscapeSpaces&) const = default;
};
using NormalizerStep =
    std::variant<UnicodeForm, ReplaceText, PrependText, Lowercase, StripSpaces, StripAccents, NmtCleanup,
                 BertCleanup, BytesToChars, Charsmap, EscapeSpaces>;

// --- pre-tokenizer: text -> pieces the model encodes one by one

enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitByPattern {
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what lies between the matches counts as the match
  bool operator==(const SplitByPattern&) const = default;
};
struct ByteLevel {
  bool add_prefix_space = false;
  bool use_regex = false;  // GPT-2's own pattern first
  bool operator==(const ByteLevel&) const = default;
};
struct Metaspace {
  enum class Prepend { always, first, never } prepend = Prepend::always;
  std::string replacement = "\xE2\x96\x81";  // one character
  bool split = true;
  bool operator==(const Metaspace&) const = default;
};
struct SplitDigits {
  bool individual = false;
  bool operator==(const SplitDigits&) const = default;
};
struct SplitPunctuation {
  SplitBehavior behavior = SplitBehavior::isolated;
  bool operator==(const SplitPunctuation&) const = default;
};
struct SplitWords {  // runs of word characters, runs of what is neither word nor space
  bool operator==(const SplitWords&) const = default;
};
struct SplitWhitespace {
  bool operator==(const SplitWhitespace&) const = default;
};
struct SplitByChar {
  std::string delimiter;
  bool operator==(const SplitByChar&) const = default;
};
using PretokenizerStep = std::variant<SplitByPattern, ByteLevel, Metaspace, SplitDigits, SplitPunctuation,
                                      SplitWords, SplitWhitespace, SplitByChar>;

// --- decoder: tokens -> text

struct DecodeByteLevel {
  bool operator==(const DecodeByteLevel&) const = default;
};
struct DecodeMetaspace {
  std::string replacement = "\xE2\x96\x81";
  bool drop_in_first = true;  // the first token's are dropped, not made spaces
  bool operator==(const DecodeMetaspace&) const = default;
};
struct DecodeByteFallback {  // runs of <0xXX> become their bytes
  bool operator==(const DecodeByteFallback&) const = default;
};
struct DecodeFuse {  // from here on the tokens are one
  bool operator==(const DecodeFuse&) const = default;
};
struct DecodeStrip {
  std::string content;  // one character
  uint32_t start = 0;   // at most so many from the start of each token
  uint32_t stop = 0;
  bool operator==(const DecodeStrip&) const = default;
};
struct DecodeReplace {
  TextPattern pattern;
  std::string content;
  bool operator==(const DecodeReplace&) const = default;
};
struct DecodeWordPiece {
  std::string prefix;
  bool cleanup = true;
  bool operator==(const DecodeWordPiece&) const = default;
};
struct DecodeSuffix {  // the end-of-word mark becomes a space, in the last token nothing
  std::string suffix;
  bool operator==(const DecodeSuffix&) const = default;
};
using DecoderStep = std::variant<DecodeByteLevel, DecodeMetaspace, DecodeByteFallback, DecodeFuse,
                                 DecodeStrip, DecodeReplace, DecodeWordPiece, DecodeSuffix>;

struct TokenizerSpec {
  ModelKind model = ModelKind::bpe;
  std::vector<Token> tokens;  // by id
  std::vector<Merge> merges;  // no pair twice
  std::optional<TokenId> unknown;
  bool byte_fallback = false;      // an unknown character becomes its <0xXX> tokens
  double unknown_score = 0;        // unigram: the cost of an unknown character
  bool fuse_unknown = false;       // neighbouring unknown characters are one unknown token
  bool unknown_separates = false;  // bpe without an unknown token: what a lost character parts does not merge
  bool ignore_merges = false;      // a piece that is a token is that token
  std::string continuing_prefix;
  std::string word_suffix;
  uint32_t max_word_chars = 100;  // word_piece: longer words are unknown

  std::vector<AddedToken> added_tokens;
  AddedTokenOrder added_order = AddedTokenOrder::leftmost;
  bool added_verbatim = false;  // the decoder leaves their text as it is
  std::vector<NormalizerStep> normalizer;
  std::vector<PretokenizerStep> pretokenizer;
  std::vector<DecoderStep> decoder;
  bool has_decoder = true;  // without one, decoded tokens are joined by spaces

  std::vector<TokenId> prefix;  // what add_special puts before a text
  std::vector<TokenId> suffix;  // and after it
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> pad;
  std::string pre_name;  // GGUF's name of the pre-tokenizer, where the file gave one
};

}  // namespace quire
