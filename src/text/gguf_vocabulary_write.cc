#include <algorithm>

#include "base/error.h"
#include "text/gguf_pretokenizers.h"
#include "text/gguf_vocabulary.h"

namespace quire {
namespace {

constexpr float kNeverMerged = -1e9f;

void write_tokens(const TokenizerSpec& spec, GgufVocabulary& to) {
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const Token& token = spec.tokens[id];
    to.tokens.push_back(token.text.empty() ? "[EMPTY_" + std::to_string(id) + "]" : token.text);
    to.token_types.push_back(int32_t(token.text.empty() ? TokenKind::unused : token.kind));
  }
}

std::optional<bool> added(const std::vector<TokenId>& around, std::optional<TokenId> id, const char* side) {
  if (around.empty()) return false;
  if (id && around == std::vector<TokenId>{*id}) return true;
  throw Error("GGUF cannot say which tokens this tokenizer puts {} a text", side);
}

void write_specials(const TokenizerSpec& spec, GgufVocabulary& to) {
  to.bos_token_id = spec.bos;
  to.eos_token_id = spec.eos;
  // What ends a text and what ends a turn need not be the same; GGUF puts only the former behind a text.
  if (spec.suffix.size() == 1 && spec.eos && spec.suffix.front() != *spec.eos) {
    to.eos_token_id = spec.suffix.front();
    to.eot_token_id = *spec.eos;
  }
  to.unknown_token_id = spec.unknown;
  to.padding_token_id = spec.pad;
  to.add_bos_token = added(spec.prefix, spec.bos, "before");
  to.add_eos_token = added(spec.suffix, to.eos_token_id, "after");
}

[[noreturn]] void no_name(const char* what) {
  throw Error("GGUF has no way to say this tokenizer's {}", what);
}

bool is_nfc(const NormalizerStep& step) {
  const auto* form = std::get_if<UnicodeForm>(&step);
  return form != nullptr && form->form == UnicodeForm::Form::nfc;
}

void write_byte_level(const TokenizerSpec& spec, GgufVocabulary& to) {
  to.model = "gpt2";
  // Readers of GGUF take texts as they are; nearly all texts are NFC already.
  if (!std::all_of(spec.normalizer.begin(), spec.normalizer.end(), is_nfc)) no_name("normalizer");
  if (!spec.continuing_prefix.empty() || !spec.word_suffix.empty()) no_name("prefixes and suffixes of words");
  const auto name = name_gguf_pretokenizer(spec.pretokenizer, spec.ignore_merges);
  if (!spec.pre_name.empty()) {
    to.pre = spec.pre_name;
  } else if (name) {
    to.pre = *name;
  } else {
    no_name("pre-tokenizer: no name in GGUF stands for what it does");
  }
  for (const Merge& merge : spec.merges) {
    to.merges.push_back(spec.tokens[merge.left].text + " " + spec.tokens[merge.right].text);
  }
}

// How a SentencePiece-like tokenizer treats spaces, however its steps say it.
struct Spaces {
  bool prefix = false;
  bool merge = false;
  std::string charsmap;
};

bool read_spaces(const NormalizerStep& step, Spaces& spaces) {
  if (const auto* escape = std::get_if<EscapeSpaces>(&step)) {
    spaces.prefix = escape->prefix != EscapeSpaces::Prefix::none;
    spaces.merge = escape->merge;
    return true;
  }
  if (const auto* prepend = std::get_if<PrependText>(&step)) {
    spaces.prefix = true;
    return prepend->text == kSpaceMark;
  }
  if (const auto* map = std::get_if<Charsmap>(&step)) {
    spaces.charsmap = map->bytes;
    return true;
  }
  const auto* replace = std::get_if<ReplaceText>(&step);
  if (replace == nullptr) return false;
  if (replace->pattern == TextPattern{" {2,}", true}) {
    spaces.merge = true;
    return replace->content == " " || replace->content == kSpaceMark;
  }
  return replace->pattern == TextPattern{" ", false} && replace->content == kSpaceMark;
}

bool read_spaces(const PretokenizerStep& step, Spaces& spaces) {
  if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
    spaces.prefix = metaspace->prepend != Metaspace::Prepend::never;
    return metaspace->replacement == kSpaceMark;
  }
  if (std::get_if<SplitWhitespace>(&step) != nullptr) {
    spaces.merge = true;
    return true;
  }
  const auto* split = std::get_if<SplitByPattern>(&step);  // finds nothing where all spaces are marked
  return split != nullptr && split->pattern == TextPattern{" ", false};
}

void write_spaces(const TokenizerSpec& spec, GgufVocabulary& to) {
  Spaces spaces;
  for (const NormalizerStep& step : spec.normalizer) {
    if (!read_spaces(step, spaces)) no_name("normalizer");
  }
  for (const PretokenizerStep& step : spec.pretokenizer) {
    if (!read_spaces(step, spaces)) no_name("pre-tokenizer");
  }
  to.add_space_prefix = spaces.prefix;
  to.remove_extra_whitespaces = spaces.merge;
  to.precompiled_charsmap = spaces.charsmap;
}

void write_scored(const TokenizerSpec& spec, GgufVocabulary& to) {
  to.model = "llama";
  write_spaces(spec, to);
  if (!spec.byte_fallback || *to.remove_extra_whitespaces || !to.precompiled_charsmap.empty()) {
    no_name("kind of byte-pair encoding");
  }
  if (spec.model == ModelKind::score_bpe) {
    for (const Token& token : spec.tokens) to.scores.push_back(float(token.score));
    return;
  }
  // The sooner a token's first merge comes, the better its score.
  to.scores.assign(spec.tokens.size(), kNeverMerged);
  for (size_t rank = spec.merges.size(); rank-- > 0;) to.scores[spec.merges[rank].result] = -float(rank);
}

void write_unigram(const TokenizerSpec& spec, GgufVocabulary& to) {
  to.model = "t5";
  write_spaces(spec, to);
  if (spec.byte_fallback) no_name("byte fallback");
  for (const Token& token : spec.tokens) to.scores.push_back(float(token.score));
}

}  // namespace

GgufVocabulary gguf_vocabulary_from_spec(const TokenizerSpec& spec) {
  GgufVocabulary to;
  write_tokens(spec, to);
  write_specials(spec, to);
  const auto is_byte_level = [](const PretokenizerStep& step) {
    return std::holds_alternative<ByteLevel>(step);
  };
  const bool byte_level = std::any_of(spec.pretokenizer.begin(), spec.pretokenizer.end(), is_byte_level);
  if (spec.model == ModelKind::bpe && (byte_level || !spec.pre_name.empty())) {
    write_byte_level(spec, to);
  } else if (spec.model == ModelKind::bpe || spec.model == ModelKind::score_bpe) {
    write_scored(spec, to);
  } else if (spec.model == ModelKind::unigram) {
    write_unigram(spec, to);
  } else {
    no_name("kind (WordPiece)");
  }
  return to;
}

}  // namespace quire
