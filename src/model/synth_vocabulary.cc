#include "model/synth_vocabulary.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace quire {
namespace {

constexpr uint32_t kByteTokens = 256;
constexpr const char* kSpecialTokens[] = {"<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"};
constexpr const char* kChatTemplate =
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{{ m['content'] }}{{ eos_token }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
constexpr int64_t kNormal = 1;  // GGUF's kinds of tokens
constexpr int64_t kControl = 3;
constexpr int64_t kUnused = 5;

void append_utf8(uint32_t character, std::string& out) {
  if (character < 0x80) {
    out += char(character);
  } else {
    out += char(0xC0 | character >> 6);
    out += char(0x80 | (character & 0x3F));
  }
}

// The characters that stand for bytes in byte-level vocabularies: printable bytes are themselves, the others follow
// from U+0100 on.
SynthVocabulary bytes() {
  SynthVocabulary vocabulary;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < kByteTokens; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append_utf8(printable ? byte : next++, vocabulary.tokens.emplace_back());
  }
  vocabulary.types.assign(kByteTokens, kNormal);
  vocabulary.first_word = kByteTokens;
  return vocabulary;
}

void add_special_tokens(SynthVocabulary& vocabulary) {
  vocabulary.bos = uint32_t(vocabulary.tokens.size());
  vocabulary.eos = vocabulary.bos + 1;
  for (const char* token : kSpecialTokens) {
    vocabulary.tokens.emplace_back(token);
    vocabulary.types.push_back(kControl);
  }
}

}  // namespace

SynthVocabulary make_synth_vocabulary(uint32_t size) {
  CHECK(size >= kByteTokens + std::size(kSpecialTokens));
  SynthVocabulary v = bytes();
  const uint32_t words = size - uint32_t(std::size(kSpecialTokens));
  std::vector<std::string> shorter;
  for (char c = 'a'; c <= 'z'; ++c) shorter.emplace_back(1, c);
  for (int length = 2; length <= 4 && v.tokens.size() < words; ++length) {
    std::vector<std::string> longer;
    for (const std::string& prefix : shorter) {
      for (char c = 'a'; c <= 'z' && v.tokens.size() < words; ++c) {
        v.merges.push_back(prefix + " " + c);
        longer.push_back(prefix + c);
        v.tokens.push_back(longer.back());
        v.types.push_back(kNormal);
      }
    }
    shorter = std::move(longer);
  }
  for (uint32_t i = 0; v.tokens.size() < words; ++i) {
    v.tokens.push_back(fmt::format("<unused{}>", i));
    v.types.push_back(kUnused);
  }
  add_special_tokens(v);
  return v;
}

SynthVocabulary make_synth_vocabulary(const std::vector<std::string>& words) {
  SynthVocabulary v = bytes();
  v.tokens.insert(v.tokens.end(), words.begin(), words.end());
  v.types.resize(v.tokens.size(), kNormal);
  add_special_tokens(v);
  return v;
}

void set_vocabulary(const SynthVocabulary& v, Metadata& metadata) {
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", std::string("gpt-2"));
  metadata.set("tokenizer.ggml.tokens", v.tokens);
  metadata.set("tokenizer.ggml.token_type", v.types);
  metadata.set("tokenizer.ggml.merges", v.merges);
  metadata.set("tokenizer.ggml.bos_token_id", uint64_t(v.bos));
  metadata.set("tokenizer.ggml.eos_token_id", uint64_t(v.eos));
  metadata.set("tokenizer.ggml.add_bos_token", false);
  metadata.set("tokenizer.chat_template", std::string(kChatTemplate));
}

}  // namespace quire
