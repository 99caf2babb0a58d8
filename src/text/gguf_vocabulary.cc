#include "text/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>

#include "base/error.h"
#include "text/gguf_pretokenizers.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace quire {
namespace {

// Files that call these anything else than control tokens are wrong: a text must not end a turn.
const std::unordered_set<std::string_view>& control_texts() {
  static const std::unordered_set<std::string_view> texts = {"<|eot_id|>",
                                                             "<|im_end|>",
                                                             "<|end|>",
                                                             "<|return|>",
                                                             "<|call|>",
                                                             "<|flush|>",
                                                             "<|calls|>",
                                                             "<end_of_turn>",
                                                             "<|endoftext|>",
                                                             "</s>",
                                                             "<|eom_id|>",
                                                             "<EOT>",
                                                             "_<EOT>",
                                                             "[EOT]",
                                                             "[EOS]",
                                                             "<|end_of_text|>",
                                                             "<end_of_utterance>",
                                                             "<eos>",
                                                             "<turn|>",
                                                             "<|tool_response>",
                                                             "[e~[",
                                                             "<｜end▁of▁sentence｜>",
                                                             "<|fim_prefix|>",
                                                             "<fim-prefix>",
                                                             "<fim_prefix>",
                                                             "<｜fim▁begin｜>",
                                                             "<PRE>",
                                                             "▁<PRE>",
                                                             "<|code_prefix|>",
                                                             "<|prefix|>",
                                                             "<|fim_suffix|>",
                                                             "<fim-suffix>",
                                                             "<fim_suffix>",
                                                             "<｜fim▁hole｜>",
                                                             "<SUF>",
                                                             "▁<SUF>",
                                                             "<|code_suffix|>",
                                                             "<|suffix|>",
                                                             "<|fim_middle|>",
                                                             "<fim-middle>",
                                                             "<fim_middle>",
                                                             "<｜fim▁end｜>",
                                                             "<MID>",
                                                             "▁<MID>",
                                                             "<|code_middle|>",
                                                             "<|middle|>",
                                                             "<|fim_pad|>",
                                                             "<fim-pad>",
                                                             "<fim_pad>",
                                                             "<PAD>",
                                                             "[PAD]",
                                                             "<|fim_repo|>",
                                                             "<|repo_name|>",
                                                             "<fim-repo>",
                                                             "<REPO>",
                                                             "<reponame>",
                                                             "<|file_sep|>"};
  return texts;
}

TokenKind kind_of(const GgufVocabulary& from, size_t id) {
  if (control_texts().contains(from.tokens[id])) return TokenKind::control;
  if (from.token_types.empty()) return TokenKind::normal;
  const int32_t type = from.token_types[id];
  return type >= 1 && type <= 6 ? TokenKind(type) : TokenKind::normal;
}

void read_tokens(GgufVocabulary& from, TokenizerSpec& spec) {
  const size_t count = from.tokens.size();
  if (count == 0) throw Error("the model's vocabulary is empty");
  if (count > kMaxTokens)
    throw Error("the model's vocabulary has {} tokens; at most {} fit", count, kMaxTokens);
  if (!from.scores.empty() && from.scores.size() < count) {
    throw Error("the model's vocabulary has {} tokens but {} scores", count, from.scores.size());
  }
  if (!from.token_types.empty() && from.token_types.size() < count) {
    throw Error("the model's vocabulary has {} tokens but {} token types", count, from.token_types.size());
  }
  spec.tokens.resize(count);
  for (size_t id = 0; id < count; ++id) {
    Token& token = spec.tokens[id];
    token.kind = kind_of(from, id);
    token.score = from.scores.empty() ? 0 : from.scores[id];
    if (!std::isfinite(token.score)) throw Error("the score of token {} is not a number", id);
    std::string& text = from.tokens[id];
    token.text = text.empty()          ? fmt::format("[EMPTY_{}]", id)
                 : is_valid_utf8(text) ? std::move(text)
                                       : replace_broken_utf8(text);
    const bool unknown = token.kind == TokenKind::unknown;
    const bool control = token.kind == TokenKind::control;
    if (!unknown && !control && token.kind != TokenKind::user_defined) continue;
    AddedToken added;
    added.id = TokenId(id);
    added.text = token.text;
    added.special = unknown || control;
    spec.added_tokens.push_back(std::move(added));
  }
  spec.added_order = AddedTokenOrder::longest_first;
  spec.added_verbatim = true;
}

void read_merges(const GgufVocabulary& from, TokenizerSpec& spec) {
  const Vocabulary vocabulary(spec.tokens);
  std::unordered_set<uint64_t> seen;
  seen.reserve(from.merges.size());
  spec.merges.reserve(from.merges.size());
  for (const std::string& line : from.merges) {
    const size_t space = line.find(' ', 1);
    if (space == std::string::npos)
      throw Error("the merge '{}' of the model's vocabulary is not two tokens", line);
    const std::string left = line.substr(0, space), right = line.substr(space + 1);
    const auto left_id = vocabulary.find(left), right_id = vocabulary.find(right);
    const auto result = vocabulary.find(left + right);
    if (!left_id || !right_id || !result) continue;  // can never come to pass, or ends in no token
    if (!seen.insert(uint64_t(*left_id) << 32 | *right_id).second) continue;
    spec.merges.push_back({*left_id, *right_id, *result});
  }
}

std::optional<TokenId> id_or(std::optional<uint32_t> given, std::optional<uint32_t> otherwise, size_t count) {
  if (given && *given < count) return given;
  return otherwise && *otherwise < count ? otherwise : std::nullopt;
}

struct Defaults {
  std::optional<uint32_t> bos = std::nullopt;
  std::optional<uint32_t> eos = std::nullopt;
  std::optional<uint32_t> unknown = std::nullopt;
  std::optional<uint32_t> pad = std::nullopt;
  bool add_bos = false;
  bool add_eos = false;
};

void read_specials(const GgufVocabulary& from, const Defaults& defaults, TokenizerSpec& spec) {
  const size_t count = spec.tokens.size();
  spec.bos = id_or(from.bos_token_id, defaults.bos, count);
  spec.eos = id_or(from.eos_token_id, defaults.eos, count);
  spec.unknown = id_or(from.unknown_token_id, defaults.unknown, count);
  spec.pad = id_or(from.padding_token_id, defaults.pad, count);
  if (from.add_bos_token.value_or(defaults.add_bos) && spec.bos) spec.prefix = {*spec.bos};
  if (from.add_eos_token.value_or(defaults.add_eos) && spec.eos) spec.suffix = {*spec.eos};
}

// Tokens that spell spaces as U+2581 and bytes as <0xXX>.
void decode_like_sentencepiece(TokenizerSpec& spec, bool drop_first_space) {
  spec.decoder.emplace_back(DecodeReplace{{std::string(kSpaceMark), false}, " "});
  spec.decoder.emplace_back(DecodeByteFallback{});
  spec.decoder.emplace_back(DecodeFuse{});
  if (drop_first_space) spec.decoder.emplace_back(DecodeStrip{" ", 1, 0});
}

void make_bpe(GgufVocabulary& from, TokenizerSpec& spec) {
  GgufPretokenizer pre = find_gguf_pretokenizer(from.model == "gemma4" ? "gemma4" : from.pre);
  spec.model = ModelKind::bpe;
  spec.pre_name = from.pre;
  read_merges(from, spec);
  Defaults defaults;
  if (from.model == "gpt2") defaults.bos = defaults.eos = 11;
  defaults.add_bos = pre.add_bos;
  read_specials(from, defaults, spec);
  spec.unknown.reset();  // what has no token is left out
  spec.unknown_separates = true;
  spec.ignore_merges = pre.ignore_merges;
  spec.pretokenizer = std::move(pre.steps);
  if (pre.byte_level) {
    spec.decoder.emplace_back(DecodeByteLevel{});
    return;
  }
  spec.normalizer.emplace_back(EscapeSpaces{});
  spec.byte_fallback = true;
  decode_like_sentencepiece(spec, false);
}

void make_score_bpe(const GgufVocabulary& from, TokenizerSpec& spec) {
  spec.model = ModelKind::score_bpe;
  read_specials(from, {.bos = 1, .eos = 2, .unknown = 0, .add_bos = true}, spec);
  const bool prefix = from.add_space_prefix.value_or(true);
  spec.byte_fallback = true;
  spec.normalizer.emplace_back(
      EscapeSpaces{prefix ? EscapeSpaces::Prefix::always : EscapeSpaces::Prefix::none, false});
  decode_like_sentencepiece(spec, prefix);
}

void make_unigram(GgufVocabulary& from, TokenizerSpec& spec) {
  spec.model = ModelKind::unigram;
  read_specials(from, {.eos = 1, .unknown = 2, .pad = 0, .add_eos = true}, spec);
  double lowest = 0;
  bool any = false;
  for (Token& token : spec.tokens) {
    if (token.kind == TokenKind::normal) {
      lowest = any ? std::min(lowest, token.score) : token.score;
      any = true;
    }
    if (token.kind == TokenKind::user_defined) token.score = 0;
    token.in_model = token.kind != TokenKind::byte;
  }
  spec.unknown_score = lowest - kUnknownPenalty;
  const bool prefix = from.add_space_prefix.value_or(false);
  if (!from.precompiled_charsmap.empty()) {
    spec.normalizer.emplace_back(Charsmap{std::move(from.precompiled_charsmap), Charsmap::Match::longest});
  }
  spec.normalizer.emplace_back(
      EscapeSpaces{prefix ? EscapeSpaces::Prefix::first_word : EscapeSpaces::Prefix::none,
                   from.remove_extra_whitespaces.value_or(false)});
  decode_like_sentencepiece(spec, prefix);
}

}  // namespace

TokenizerSpec tokenizer_spec_from_gguf(GgufVocabulary vocabulary) {
  TokenizerSpec spec;
  const std::string model = vocabulary.model;
  if (model != "gpt2" && model != "gemma4" && model != "llama" && model != "t5") {
    throw Error("the model's tokenizer '{}' is not known; known are gpt2, gemma4, llama, t5", model);
  }
  read_tokens(vocabulary, spec);
  if (model == "llama") {
    make_score_bpe(vocabulary, spec);
  } else if (model == "t5") {
    make_unigram(vocabulary, spec);
  } else {
    make_bpe(vocabulary, spec);
  }
  return spec;
}

}  // namespace quire
