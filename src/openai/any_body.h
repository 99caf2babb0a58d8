#pragma once

#include <string_view>
#include <vector>

#include "base/check.h"
#include "openai/api_error.h"
#include "openai/openai_request.h"
#include "openai/openai_response.h"
#include "openai/vector_request.h"
#include "text/byte_level.h"
#include "text/tokenizer_spec.h"

// For the fuzzer and the tests: what is promised of any body whatsoever.
namespace quire {

// What is known of text by a model whose tokens are the bytes, and two special ones.
inline ModelText byte_text(const char* chat_template) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = char(byte);
    Token& token = spec.tokens.emplace_back();
    append_bytes_as_chars(token.text, {&c, 1});
  }
  for (const char* special : {"<s>", "</s>"}) {
    const TokenId id = TokenId(spec.tokens.size());
    spec.tokens.push_back({.text = special, .kind = TokenKind::control, .in_model = false});
    spec.added_tokens.push_back({.id = id, .text = special, .special = true});
  }
  spec.pretokenizer = {ByteLevel{}};
  spec.decoder = {DecodeByteLevel{}};
  spec.bos = 256;
  spec.eos = 257;
  return ModelText{.tokenizer = Tokenizer(std::move(spec)),
                   .chat_template = ChatTemplate(chat_template, {.bos_token = "<s>", .eos_token = "</s>"}),
                   .template_sources = {.usual = chat_template, .tool_use = {}},
                   .end_tokens = {257},
                   .sampling_defaults = {}};
}

inline ServedModel byte_model() {
  static const ModelText text = byte_text(
      "{% for m in messages %}{% if m.role == 'assistant' and loop.first %}{{ raise_exception('who asks?') }}"
      "{% endif %}<s>{{ m.role }}{{ m.name }}: {{ m.content | trim }}{{ style }}</s>{% endfor %}");
  static const ServedModel model =
      with_chat_format({.name = "bytes", .text = &text, .vocab = 258, .context = 4096, .created = 0});
  return model;
}

inline void check_tokens(const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) CHECK(token < byte_model().vocab);
}

inline void check_ask(const Ask& ask) {
  const Request& request = ask.request;
  request.sampling.check();
  CHECK(!ask.prompts.empty() && ask.choices >= 1 && ask.choices <= 128 && ask.answers() <= 256);
  for (const auto& prompt : ask.prompts) {
    CHECK(!prompt.empty() && prompt.size() < byte_model().context);
    check_tokens(prompt);
  }
  check_tokens(request.stop_tokens);
  for (const auto& [token, bias] : request.sampling.logit_bias)
    CHECK(token < 258 && bias >= -100 && bias <= 100);
  for (const std::string& stop : request.stop) CHECK(!stop.empty());
  CHECK(request.top_logprobs <= 20 && (request.logprobs || request.top_logprobs == 0));
  CHECK(request.max_tokens > 0 || ask.kind == AskKind::chat || ask.prompt_only);
  CHECK(!ask.include_usage || ask.stream);
}

// Of texts that become vectors, or are judged.
inline void check_texts(const Ask& ask) {
  CHECK(!ask.prompts.empty() && ask.prompts.size() <= kMostTexts && ask.choices == 1 && !ask.stream);
  for (const auto& prompt : ask.prompts) {
    CHECK(!prompt.empty() && prompt.size() <= byte_model().context);
    check_tokens(prompt);
  }
}

// What was understood: asks and prompts. Anything else that is thrown than an ApiError is a bug.
inline int understand(std::string_view body) {
  int understood = 0;
  const ServedModel model = byte_model();
  const auto attempt = [&](const auto& read) {
    try {
      read();
      ++understood;
    } catch (const ApiError& error) {
      CHECK(error.status() == 400 || error.status() == 404);
      const OrderedJson json = error.json();
      CHECK(!json["error"]["message"].get<std::string>().empty());
      CHECK(dump(json).size() < body.size() * 8 + 2000);
    }
  };
  OrderedJson json;
  attempt([&] { json = parse_body(body); });
  if (!json.is_object()) return 0;
  attempt([&] { check_ask(parse_chat(json, model)); });
  attempt([&] { check_ask(parse_completion(json, model)); });
  attempt([&] { parse_continuation(json, model); });
  attempt([&] { check_tokens(parse_prompt(json, model)); });
  for (const auto pooling :
       {std::optional<Pooling>(), std::optional(Pooling::mean), std::optional(Pooling::rank)}) {
    ServedModel other = model;
    other.pooling = pooling;
    other.width = 8;
    attempt([&] { check_texts(parse_embeddings(json, other).ask); });
    attempt([&] { check_texts(parse_rerank(json, other).ask); });
  }
  return understood;
}

}  // namespace quire
