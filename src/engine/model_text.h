#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "grammar/grammar_source.h"
#include "model/model_file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire {

class ModelGrammars;
std::shared_ptr<ModelGrammars> make_model_grammars();

// All that a model file says about text: its tokenizer, chat template, end tokens and sampling defaults.
struct ModelText {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;
  ChatTemplateSources template_sources;
  std::vector<TokenId> end_tokens;
  SamplingOptions sampling_defaults;
  std::shared_ptr<ModelGrammars> grammars = make_model_grammars();

  // A conversation as the model will see it.
  std::vector<TokenId> encode_chat(const ChatInput& chat, size_t most_tokens = SIZE_MAX) const;
  // How many of a conversation's first tokens are the system's words, tools and all that stands before the first other message:
  // what begins every prompt of that kind.
  uint32_t system_tokens(const ChatInput& chat, std::span<const TokenId> prompt) const;
  // What answers keep to. Throws Error if it cannot be followed. Any thread.
  std::shared_ptr<grammar::Grammar> compile_grammar(const grammar::GrammarSource& source) const;
  // What, after a text of the user, asks to say it again, up to where the answer would begin.
  std::vector<TokenId> repeat_request() const;
};

// Of an opened model.
ModelText load_model_text(const ModelFile& file);
// Of a path that may hold only a vocabulary: a GGUF file without tensors, or a folder with tokenizer.json.
ModelText load_model_text(const std::string& path);

// The chat template alone, of a path that may hold nothing else; nothing if there is none.
std::optional<ChatTemplate> load_chat_template(const std::string& path);

// Puts the text of a Hugging Face folder into the metadata of a GGUF file that is being written.
void add_text_metadata(const ModelText& text, Metadata& metadata);

}  // namespace quire
