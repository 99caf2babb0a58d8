#include "engine/model_grammars.h"

#include "engine/model_text.h"
#include "text/token_bytes.h"

namespace quire {

std::shared_ptr<grammar::Grammar> ModelGrammars::compile(const Tokenizer& tokenizer,
                                                         const grammar::GrammarSource& source) {
  {
    const std::lock_guard lock(mutex_);
    if (!compiler_) {
      std::vector<std::string> bytes = token_bytes(tokenizer);
      for (TokenId id = 0; id < bytes.size(); ++id) {
        if (tokenizer.is_special(id)) {
          bytes[id] = grammar::special_token_bytes(id);
        } else if (bytes[id].find('\xFF') != std::string::npos) {
          bytes[id].clear();  // no text has that byte, and nothing else may spell a special token
        }
      }
      compiler_ = std::make_unique<grammar::GrammarCompiler>(std::move(bytes));
      compiler_->budget().set_most(most_bytes_);
    }
  }
  return compiler_->compile(source);
}

void ModelGrammars::limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  most_bytes_ = bytes;
  if (compiler_) compiler_->budget().set_most(bytes);
}

grammar::GrammarFigures ModelGrammars::figures() const {
  const std::lock_guard lock(mutex_);
  if (!compiler_) return {.most_bytes = most_bytes_};
  return compiler_->budget().figures();
}

std::shared_ptr<ModelGrammars> make_model_grammars() {
  return std::make_shared<ModelGrammars>();
}

std::shared_ptr<grammar::Grammar> ModelText::compile_grammar(const grammar::GrammarSource& source) const {
  return grammars->compile(tokenizer, source);
}

}  // namespace quire
