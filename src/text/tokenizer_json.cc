#include "text/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer_json_steps.h"

namespace quire {
namespace {

using Ids = std::unordered_map<std::string_view, TokenId>;

std::optional<TokenId> find(const Ids& ids, const std::string& text) {
  const auto found = ids.find(text);
  return found == ids.end() ? std::nullopt : std::optional(found->second);
}

// Puts a token at its id. Holes are allowed, but not so many that a small file asks for much memory.
Token& place(TokenizerSpec& spec, uint64_t id, const std::string& text, size_t count) {
  if (id >= kMaxTokens || id > 8 * uint64_t(count) + 65536) {
    throw Error("the token '{}' has the id {}, far beyond the {} tokens there are", text, id, count);
  }
  if (id >= spec.tokens.size()) spec.tokens.resize(id + 1);
  Token& token = spec.tokens[id];
  if (!token.text.empty() && token.text != text) {
    throw Error("the tokens '{}' and '{}' have the same id {}", token.text, text, id);
  }
  token.text = text;
  return token;
}

std::string model_type(const Json& model) {
  if (model.contains("type")) return model.at("type").get<std::string>();
  if (model.at("vocab").is_array()) return "Unigram";
  return model.contains("merges") ? "BPE" : "WordPiece";
}

void read_vocab_object(const Json& vocab, TokenizerSpec& spec) {
  if (!vocab.is_object()) throw Error("the tokenizer's vocabulary is not an object");
  for (const auto& [text, id] : vocab.items()) {
    if (!id.is_number_unsigned()) throw Error("the token '{}' has no number as its id", text);
    place(spec, id.get<uint64_t>(), text, vocab.size());
  }
}

std::pair<std::string, std::string> read_merge(const Json& merge) {
  if (merge.is_array()) {
    if (merge.size() != 2) throw Error("a merge of the tokenizer has {} parts, not two", merge.size());
    return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  }
  const std::string line = merge.get<std::string>();
  const size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
    throw Error("the merge '{}' of the tokenizer is not two tokens", line);
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

void read_merges(const Json& merges, const Ids& ids, TokenizerSpec& spec) {
  const auto id_of = [&](const std::string& text) {
    const auto id = find(ids, text);
    if (!id) throw Error("a merge of the tokenizer names '{}', which is no token", text);
    return *id;
  };
  std::unordered_map<uint64_t, size_t> places;  // of a pair given twice the last counts
  places.reserve(merges.size());
  std::vector<Merge> all;
  all.reserve(merges.size());
  for (const Json& entry : merges) {
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_merge(entry);
    const size_t skipped = spec.continuing_prefix.size();
    if (right.size() < skipped) throw Error("a merge of the tokenizer continues with '{}'", right);
    all.push_back({id_of(left), id_of(right), id_of(left + right.substr(skipped))});
    places[uint64_t(all.back().left) << 32 | all.back().right] = all.size() - 1;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (places.at(uint64_t(all[i].left) << 32 | all[i].right) == i) spec.merges.push_back(all[i]);
  }
}

std::string text_or_empty(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? std::string() : found->get<std::string>();
}

bool flag(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null() && found->get<bool>();
}

void read_bpe(const Json& model, TokenizerSpec& spec) {
  spec.model = ModelKind::bpe;
  spec.continuing_prefix = text_or_empty(model, "continuing_subword_prefix");
  spec.word_suffix = text_or_empty(model, "end_of_word_suffix");
  spec.byte_fallback = flag(model, "byte_fallback");
  spec.fuse_unknown = flag(model, "fuse_unk");
  spec.ignore_merges = flag(model, "ignore_merges");
  read_vocab_object(model.at("vocab"), spec);
  Ids ids;
  ids.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) ids.emplace(spec.tokens[id].text, TokenId(id));
  spec.unknown = find(ids, text_or_empty(model, "unk_token"));
  read_merges(model.at("merges"), ids, spec);
}

void read_unigram(const Json& model, TokenizerSpec& spec) {
  spec.model = ModelKind::unigram;
  spec.byte_fallback = flag(model, "byte_fallback");
  const Json& vocab = model.at("vocab");
  if (!vocab.is_array() || vocab.empty()) throw Error("the tokenizer's vocabulary is not a list of tokens");
  double lowest = vocab.at(0).at(1).get<double>();
  for (const Json& entry : vocab) {
    Token token;
    token.text = entry.at(0).get<std::string>();
    token.score = entry.at(1).get<double>();
    lowest = std::min(lowest, token.score);
    spec.tokens.push_back(std::move(token));
  }
  if (spec.tokens.size() > kMaxTokens)
    throw Error("the tokenizer has {} tokens, too many", spec.tokens.size());
  spec.unknown_score = lowest - kUnknownPenalty;
  spec.fuse_unknown = true;
  const Json unknown = model.value("unk_id", Json());
  if (!unknown.is_null()) {
    spec.unknown = unknown.get<TokenId>();
    if (*spec.unknown >= spec.tokens.size())
      throw Error("the unknown token's id {} is no token", *spec.unknown);
  }
}

void read_word_piece(const Json& model, TokenizerSpec& spec) {
  spec.model = ModelKind::word_piece;
  spec.continuing_prefix = model.value("continuing_subword_prefix", "##");
  spec.max_word_chars = std::min(model.value("max_input_chars_per_word", 100u), 10'000u);
  const Json& vocab = model.at("vocab");
  read_vocab_object(vocab, spec);
  const std::string unknown = model.value("unk_token", "[UNK]");
  if (vocab.contains(unknown)) spec.unknown = vocab.at(unknown).get<TokenId>();
}

// An added token that the model has keeps the model's id; others follow behind, whatever id the file says:
// this is how the library counts.
void read_added_tokens(const Json& list, size_t model_tokens, TokenizerSpec& spec) {
  std::unordered_map<std::string, TokenId> ids;
  for (size_t id = 0; id < spec.tokens.size(); ++id) ids.emplace(spec.tokens[id].text, TokenId(id));
  std::unordered_map<TokenId, size_t> places;  // an id given twice: the last counts
  uint64_t next = model_tokens;
  for (const Json& entry : list) {
    AddedToken added;
    added.text = entry.at("content").get<std::string>();
    if (added.text.empty()) continue;
    added.special = flag(entry, "special");
    added.normalized = entry.contains("normalized") ? flag(entry, "normalized") : !added.special;
    added.strip_left = flag(entry, "lstrip");
    added.strip_right = flag(entry, "rstrip");
    added.single_word = flag(entry, "single_word");
    const auto known = ids.find(added.text);
    added.id = known != ids.end() ? known->second : TokenId(next);
    if (known == ids.end()) {
      Token& token = place(spec, next++, added.text, model_tokens + list.size());
      token.in_model = false;
      ids.emplace(added.text, added.id);
    }
    const auto [slot, is_new] = places.emplace(added.id, spec.added_tokens.size());
    if (is_new) {
      spec.added_tokens.push_back(std::move(added));
    } else {
      spec.added_tokens[slot->second] = std::move(added);
    }
  }
}

bool is_byte_token(const std::string& text) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return text.size() == 6 && text.starts_with("<0x") && text[5] == '>' && hex(text[3]) && hex(text[4]);
}

void set_kinds(TokenizerSpec& spec) {
  for (Token& token : spec.tokens) {
    if (spec.byte_fallback && is_byte_token(token.text)) token.kind = TokenKind::byte;
    if (token.text.empty()) token.kind = TokenKind::unused;
  }
  for (const AddedToken& added : spec.added_tokens) {
    spec.tokens[added.id].kind = added.special ? TokenKind::control : TokenKind::user_defined;
  }
  if (spec.unknown) spec.tokens[*spec.unknown].kind = TokenKind::unknown;
}

// A token's text, which the config gives plainly or as an object.
std::optional<TokenId> named_token(const Json& config, const char* key, const TokenizerSpec& spec) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  const std::string text =
      found->is_object() ? found->at("content").get<std::string>() : found->get<std::string>();
  for (size_t id = 0; id < spec.tokens.size() && !text.empty(); ++id) {
    if (spec.tokens[id].text == text) return TokenId(id);
  }
  return std::nullopt;
}

TokenizerSpec read(const Json& json, const Json& config) {
  TokenizerSpec spec;
  const Json& model = json.at("model");
  const std::string type = model_type(model);
  if (type == "BPE") {
    read_bpe(model, spec);
  } else if (type == "Unigram") {
    read_unigram(model, spec);
  } else if (type == "WordPiece") {
    read_word_piece(model, spec);
  } else {
    throw Error("the tokenizer's model '{}' is not supported", type);
  }
  read_added_tokens(json.value("added_tokens", Json::array()), model.at("vocab").size(), spec);
  set_kinds(spec);
  spec.normalizer = read_normalizer(json.value("normalizer", Json()));
  spec.pretokenizer = read_pretokenizer(json.value("pre_tokenizer", Json()));
  const Json decoder = json.value("decoder", Json());
  spec.has_decoder = !decoder.is_null();
  spec.decoder = read_decoder(decoder);
  AroundText around = read_post_processor(json.value("post_processor", Json()));
  spec.prefix = std::move(around.prefix);
  spec.suffix = std::move(around.suffix);
  spec.bos = named_token(config, "bos_token", spec);
  spec.eos = named_token(config, "eos_token", spec);
  spec.pad = named_token(config, "pad_token", spec);
  return spec;
}

}  // namespace

TokenizerSpec tokenizer_spec_from_json(std::string_view tokenizer_json,
                                       std::string_view tokenizer_config_json) {
  const Json json = parse_json(tokenizer_json, "tokenizer.json");
  const Json config = tokenizer_config_json.empty()
                          ? Json::object()
                          : parse_json(tokenizer_config_json, "tokenizer_config.json");
  if (!json.is_object()) throw Error("tokenizer.json is not an object");
  if (!config.is_object()) throw Error("tokenizer_config.json is not an object");
  try {
    return read(json, config);
  } catch (const Json::exception& error) {
    throw Error("tokenizer.json cannot be read: {}", error.what());
  }
}

}  // namespace quire
