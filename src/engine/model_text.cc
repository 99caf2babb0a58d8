#include "engine/model_text.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/gguf_text.h"
#include "model/gguf.h"
#include "text/tokenizer_json.h"

namespace quire {
namespace {

constexpr const char* kTemplateKey = "tokenizer.chat_template";
constexpr const char* kToolTemplateKey = "tokenizer.chat_template.tool_use";
constexpr const char* kResponseKey = "tokenizer.response_template";  // as JSON; a key of our own

// Tokens that end a turn in the chat formats models are trained on. Files often name only one of their end tokens; a
// special token spelled like one of these ends an answer too, but for what closes only a message in the model's format.
constexpr const char* kEndTokens[] = {"<|im_end|>",      "<|eot_id|>",
                                      "<|eom_id|>",      "<end_of_turn>",
                                      "<|end|>",         "<|endoftext|>",
                                      "<|end_of_text|>", "<|return|>",
                                      "<|call|>",        "<EOT>",
                                      "<|EOT|>",         "<eos>",
                                      "<|eot|>",         "<｜end▁of▁sentence｜>",
                                      "<turn|>"};

std::optional<TokenId> special_token(const Tokenizer& tokenizer, const char* text) {
  const auto token = tokenizer.find(text);
  return token && tokenizer.is_special(*token) ? token : std::nullopt;
}

// In the format of gpt-oss an answer is several messages: <|end|> closes each but the last, and what follows an analysis
// is the answer proper. Its vocabulary tells: no other has these three.
std::optional<TokenId> message_end(const Tokenizer& tokenizer) {
  for (const char* text : {"<|return|>", "<|call|>", "<|channel|>"}) {
    if (!special_token(tokenizer, text)) return std::nullopt;
  }
  return special_token(tokenizer, "<|end|>");
}

// `said`: what the file itself says; some say <|end|> where they should not.
std::vector<TokenId> end_tokens(const Tokenizer& tokenizer, std::span<const uint64_t> said) {
  std::vector<TokenId> ends;
  const std::optional<TokenId> no_end = message_end(tokenizer);
  const auto add = [&](uint64_t token) {
    const bool known = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (token < tokenizer.size() && token != no_end && !known) ends.push_back(TokenId(token));
  };
  for (uint64_t token : said) add(token);
  if (tokenizer.eos()) add(*tokenizer.eos());
  for (const char* text : kEndTokens) {
    if (const auto token = special_token(tokenizer, text)) add(*token);
  }
  return ends;
}

// What a generation config recommends, under the keys that a GGUF file has for it.
SamplingOptions sampling_defaults(const Metadata& metadata) {
  SamplingOptions options;
  const auto real = [&](const char* key, float& value) {
    if (const auto said = metadata.maybe_real(key)) value = float(*said);
  };
  real("general.sampling.temp", options.temperature);
  real("general.sampling.top_p", options.top_p);
  real("general.sampling.min_p", options.min_p);
  real("general.sampling.penalty_repeat", options.repetition_penalty);
  if (const auto top_k = metadata.maybe_number("general.sampling.top_k")) options.top_k = uint32_t(*top_k);
  options.check();
  return options;
}

std::optional<ChatTemplate> make_template(const ChatTemplateSources& sources, ChatTemplateSpecials specials) {
  if (sources.empty()) return std::nullopt;
  return ChatTemplate(sources, std::move(specials));
}

// Empty if there is none.
std::string read_file(const std::string& path) {
  if (!std::filesystem::exists(path)) return {};
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// A token in tokenizer_config.json: a text, or an object with its content.
std::string special_text(const Json& config, const char* key) {
  if (!config.contains(key)) return {};
  const Json& value = config[key];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return {};
}

// The templates are files of their own, or a text or a list of named ones in the config.
ChatTemplateSources named_templates(const std::string& folder, const Json& config) {
  ChatTemplateSources sources{.usual = read_file(folder + "/chat_template.jinja"),
                              .tool_use = read_file(folder + "/additional_chat_templates/tool_use.jinja")};
  if (!sources.empty()) return sources;
  if (std::filesystem::exists(folder + "/chat_template.json")) {
    const Json file = read_json_file(folder + "/chat_template.json");
    if (file.is_object() && file.contains("chat_template") && file["chat_template"].is_string()) {
      return {.usual = file["chat_template"].get<std::string>(), .tool_use = {}};
    }
  }
  if (!config.contains("chat_template")) return sources;
  const Json& said = config["chat_template"];
  if (said.is_string()) sources.usual = said.get<std::string>();
  if (!said.is_array()) return sources;
  for (const Json& entry : said) {
    const bool complete = entry.is_object() && entry.contains("name") && entry.contains("template") &&
                          entry["template"].is_string();
    if (!complete) continue;
    if (entry["name"] == "default") sources.usual = entry["template"].get<std::string>();
    if (entry["name"] == "tool_use") sources.tool_use = entry["template"].get<std::string>();
  }
  return sources;
}

// With how answers are read.
ChatTemplateSources folder_templates(const std::string& folder, const Json& config) {
  ChatTemplateSources sources = named_templates(folder, config);
  if (config.contains("response_template") && !config["response_template"].is_null())
    sources.response = config["response_template"].dump();
  return sources;
}

ChatTemplateSpecials folder_specials(const Json& config) {
  ChatTemplateSpecials specials{.bos_token = special_text(config, "bos_token"),
                                .eos_token = special_text(config, "eos_token")};
  for (const char* key : {"pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    if (const std::string text = special_text(config, key); !text.empty()) specials.others[key] = text;
  }
  return specials;
}

std::string folder_config(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  return std::filesystem::exists(path) ? read_file(path) : "{}";
}

Json parse_folder_config(const std::string& folder, const std::string& text) {
  Json config = parse_json(text, folder + "/tokenizer_config.json");
  if (!config.is_object()) throw Error("{}/tokenizer_config.json is not a JSON object", folder);
  return config;
}

ModelText from_folder(const std::string& folder, const Metadata* metadata) {
  const std::string path = folder + "/tokenizer.json";
  if (!std::filesystem::exists(path))
    throw Error("{} has no tokenizer.json, so its tokens have no text", folder);
  const std::string config_text = folder_config(folder);
  const Json config = parse_folder_config(folder, config_text);
  ModelText text{.tokenizer = Tokenizer(tokenizer_spec_from_json(read_file(path), config_text)),
                 .chat_template = std::nullopt,
                 .template_sources = folder_templates(folder, config),
                 .end_tokens = {},
                 .sampling_defaults = {}};
  text.chat_template = make_template(text.template_sources, folder_specials(config));
  std::vector<uint64_t> said;
  if (metadata != nullptr) {
    for (int64_t token : metadata->integers("quire.eos_token_ids")) said.push_back(uint64_t(token));
    text.sampling_defaults = sampling_defaults(*metadata);
  }
  text.end_tokens = end_tokens(text.tokenizer, said);
  return text;
}

ModelText from_gguf(const Metadata& metadata) {
  ModelText text{.tokenizer = Tokenizer(tokenizer_spec_from_gguf(read_gguf_vocabulary(metadata))),
                 .chat_template = std::nullopt,
                 .template_sources = {.usual = metadata.maybe_text(kTemplateKey).value_or(""),
                                      .tool_use = metadata.maybe_text(kToolTemplateKey).value_or(""),
                                      .response = metadata.maybe_text(kResponseKey).value_or("")},
                 .end_tokens = {},
                 .sampling_defaults = sampling_defaults(metadata)};
  const Tokenizer& tokenizer = text.tokenizer;
  ChatTemplateSpecials specials;
  if (tokenizer.bos()) specials.bos_token = tokenizer.token(*tokenizer.bos());
  if (tokenizer.eos()) specials.eos_token = tokenizer.token(*tokenizer.eos());
  text.chat_template = make_template(text.template_sources, std::move(specials));
  std::vector<uint64_t> said;
  for (int64_t token : metadata.integers("quire.eos_token_ids")) said.push_back(uint64_t(token));
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (const auto token = metadata.maybe_number(key)) said.push_back(*token);
  }
  text.end_tokens = end_tokens(tokenizer, said);
  return text;
}

}  // namespace

std::vector<TokenId> ModelText::encode_chat(const ChatInput& chat, size_t most_tokens) const {
  if (!chat_template) throw Error("the model has no chat template");
  return tokenizer.encode(chat_template->render(chat), most_tokens);
}

uint32_t ModelText::system_tokens(const ChatInput& chat, std::span<const TokenId> prompt) const {
  ChatInput other = chat;
  other.messages = OrderedJson::array();
  for (const OrderedJson& message : chat.messages) {
    const std::string role = message.value("role", "");
    if (role != "system" && role != "developer") break;
    other.messages.push_back(message);
  }
  other.messages.push_back({{"role", "user"}, {"content", "?"}});
  try {
    const std::vector<TokenId> tokens = encode_chat(other);
    return uint32_t(std::ranges::mismatch(tokens, prompt).in1 - tokens.begin());
  } catch (const Error&) {  // a template that wants another conversation
    return 0;
  }
}

std::vector<TokenId> ModelText::repeat_request() const {
  const std::string request = " Say the text again.";
  if (!chat_template) return tokenizer.encode(request, {.add_special = false});
  const auto prompt = [&](const std::string& text) {
    ChatInput chat;
    chat.messages = OrderedJson::array({{{"role", "user"}, {"content", text}}});
    return encode_chat(chat);
  };
  try {
    const std::vector<TokenId> asked = prompt("A text." + request), plain = prompt("A text.");
    return {std::ranges::mismatch(asked, plain).in1, asked.end()};
  } catch (const Error&) {  // a template that wants more than one message
    return {};
  }
}

ModelText load_model_text(const ModelFile& file) {
  return file.folder().empty() ? from_gguf(file.metadata()) : from_folder(file.folder(), &file.metadata());
}

ModelText load_model_text(const std::string& path) {
  if (std::filesystem::is_directory(path)) return from_folder(path, nullptr);
  return from_gguf(GgufFile(path).metadata());
}

std::optional<ChatTemplate> load_chat_template(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return from_gguf(GgufFile(path).metadata()).chat_template;
  const Json config = parse_folder_config(path, folder_config(path));
  return make_template(folder_templates(path, config), folder_specials(config));
}

void add_text_metadata(const ModelText& text, Metadata& metadata) {
  write_gguf_vocabulary(gguf_vocabulary_from_spec(text.tokenizer.spec()), metadata);
  const auto& [usual, tool_use, response] = text.template_sources;
  if (!usual.empty()) metadata.set(kTemplateKey, usual);
  if (!response.empty()) metadata.set(kResponseKey, response);
  if (tool_use.empty()) return;
  metadata.set(kToolTemplateKey, tool_use);
  metadata.set("tokenizer.chat_templates",
               std::vector<std::string>{"tool_use"});  // those that are not the default
}

}  // namespace quire
