#include "engine/gguf_text.h"

#include "base/error.h"

namespace quire {
namespace {

constexpr const char* kPrefix = "tokenizer.ggml.";

std::optional<uint32_t> token_id(const Metadata& metadata, const char* key, size_t tokens) {
  const auto value = metadata.maybe_number(std::string(kPrefix) + key);
  if (!value || *value == 0xffffffffu) return std::nullopt;  // -1 says that there is none
  if (*value >= tokens) {
    throw Error("{}: {}{} is {}, but there are {} tokens", metadata.file_name(), kPrefix, key, *value,
                tokens);
  }
  return uint32_t(*value);
}

std::string charsmap(const Metadata& metadata) {
  std::string bytes;
  if (!metadata.has("tokenizer.ggml.precompiled_charsmap")) return bytes;
  for (int64_t byte : metadata.integers("tokenizer.ggml.precompiled_charsmap")) bytes += char(byte);
  return bytes;
}

}  // namespace

GgufVocabulary read_gguf_vocabulary(const Metadata& metadata) {
  const auto key = [](const char* name) { return std::string(kPrefix) + name; };
  GgufVocabulary v;
  v.model = metadata.text(key("model"));
  v.pre = metadata.maybe_text(key("pre")).value_or("");
  v.tokens = metadata.texts(key("tokens"));
  for (double score : metadata.reals(key("scores"))) v.scores.push_back(float(score));
  for (int64_t type : metadata.integers(key("token_type"))) v.token_types.push_back(int32_t(type));
  v.merges = metadata.texts(key("merges"));
  v.bos_token_id = token_id(metadata, "bos_token_id", v.tokens.size());
  v.eos_token_id = token_id(metadata, "eos_token_id", v.tokens.size());
  v.eot_token_id = token_id(metadata, "eot_token_id", v.tokens.size());
  v.eom_token_id = token_id(metadata, "eom_token_id", v.tokens.size());
  v.unknown_token_id = token_id(metadata, "unknown_token_id", v.tokens.size());
  v.padding_token_id = token_id(metadata, "padding_token_id", v.tokens.size());
  v.add_bos_token = metadata.maybe_flag(key("add_bos_token"));
  v.add_eos_token = metadata.maybe_flag(key("add_eos_token"));
  v.add_space_prefix = metadata.maybe_flag(key("add_space_prefix"));
  v.remove_extra_whitespaces = metadata.maybe_flag(key("remove_extra_whitespaces"));
  v.precompiled_charsmap = charsmap(metadata);
  return v;
}

void write_gguf_vocabulary(const GgufVocabulary& v, Metadata& metadata) {
  const auto set = [&](const char* name, MetadataValue value) {
    metadata.set(kPrefix + std::string(name), std::move(value));
  };
  set("model", v.model);
  if (!v.pre.empty()) set("pre", v.pre);
  set("tokens", v.tokens);
  if (!v.scores.empty()) set("scores", std::vector<double>(v.scores.begin(), v.scores.end()));
  if (!v.token_types.empty())
    set("token_type", std::vector<int64_t>(v.token_types.begin(), v.token_types.end()));
  if (!v.merges.empty()) set("merges", v.merges);
  const auto set_id = [&](const char* name, const std::optional<uint32_t>& id) {
    if (id) set(name, uint64_t(*id));
  };
  set_id("bos_token_id", v.bos_token_id);
  set_id("eos_token_id", v.eos_token_id);
  set_id("eot_token_id", v.eot_token_id);
  set_id("eom_token_id", v.eom_token_id);
  set_id("unknown_token_id", v.unknown_token_id);
  set_id("padding_token_id", v.padding_token_id);
  const auto set_flag = [&](const char* name, const std::optional<bool>& flag) {
    if (flag) set(name, *flag);
  };
  set_flag("add_bos_token", v.add_bos_token);
  set_flag("add_eos_token", v.add_eos_token);
  set_flag("add_space_prefix", v.add_space_prefix);
  set_flag("remove_extra_whitespaces", v.remove_extra_whitespaces);
  if (!v.precompiled_charsmap.empty()) {
    std::vector<int64_t> bytes;
    for (char byte : v.precompiled_charsmap) bytes.push_back(int8_t(byte));
    set("precompiled_charsmap", bytes);
  }
}

}  // namespace quire
