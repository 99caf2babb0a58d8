#include "engine/model_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "engine/gguf_text.h"
#include "model/gguf.h"
#include "text/tokenizer_json.h"

namespace quire {
namespace {

// Tokens that end a turn in the chat formats models are trained on. Files often name only one of their end tokens; a
// special token spelled like one of these ends an answer too.
constexpr const char* kEndTokens[] = {
    "<|im_end|>",      "<|eot_id|>",           "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>",
    "<|end_of_text|>", "<|return|>",           "<|call|>",   "<EOT>",         "<|EOT|>", "<eos>",
    "<|eot|>",         "<｜end▁of▁sentence｜>"};

std::vector<TokenId> end_tokens(const Tokenizer& tokenizer, std::span<const uint64_t> said) {
  std::vector<TokenId> ends;
  const auto add = [&](uint64_t token) {
    if (token < tokenizer.size() && std::find(ends.begin(), ends.end(), token) == ends.end()) {
      ends.push_back(TokenId(token));
    }
  };
  for (uint64_t token : said) add(token);
  if (tokenizer.eos()) add(*tokenizer.eos());
  for (const char* text : kEndTokens) {
    const auto token = tokenizer.find(text);
    if (token && tokenizer.is_special(*token)) add(*token);
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

std::optional<ChatTemplate> make_template(const std::string& source, ChatTemplateSpecials specials) {
  if (source.empty()) return std::nullopt;
  return ChatTemplate(source, std::move(specials));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
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

// The template is a file of its own, or a text in the config, or the one called "default" of a list there.
std::string folder_template(const std::string& folder, const Json& config) {
  if (std::filesystem::exists(folder + "/chat_template.jinja"))
    return read_file(folder + "/chat_template.jinja");
  if (std::filesystem::exists(folder + "/chat_template.json")) {
    const Json file = read_json_file(folder + "/chat_template.json");
    if (file.is_object() && file.contains("chat_template") && file["chat_template"].is_string()) {
      return file["chat_template"].get<std::string>();
    }
  }
  if (!config.contains("chat_template")) return {};
  const Json& said = config["chat_template"];
  if (said.is_string()) return said.get<std::string>();
  if (!said.is_array()) return {};
  for (const Json& entry : said) {
    const bool complete = entry.is_object() && entry.contains("name") && entry.contains("template") &&
                          entry["template"].is_string();
    if (complete && entry["name"] == "default") return entry["template"].get<std::string>();
  }
  return {};
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
                 .template_source = folder_template(folder, config),
                 .end_tokens = {},
                 .sampling_defaults = {}};
  text.chat_template = make_template(text.template_source, folder_specials(config));
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
                 .template_source = metadata.maybe_text("tokenizer.chat_template").value_or(""),
                 .end_tokens = {},
                 .sampling_defaults = sampling_defaults(metadata)};
  const Tokenizer& tokenizer = text.tokenizer;
  ChatTemplateSpecials specials;
  if (tokenizer.bos()) specials.bos_token = tokenizer.token(*tokenizer.bos());
  if (tokenizer.eos()) specials.eos_token = tokenizer.token(*tokenizer.eos());
  text.chat_template = make_template(text.template_source, std::move(specials));
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
  return make_template(folder_template(path, config), folder_specials(config));
}

void add_text_metadata(const ModelText& text, Metadata& metadata) {
  write_gguf_vocabulary(gguf_vocabulary_from_spec(text.tokenizer.spec()), metadata);
  if (!text.template_source.empty()) metadata.set("tokenizer.chat_template", text.template_source);
}

}  // namespace quire
