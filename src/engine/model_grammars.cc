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
        if (tokenizer.is_special(id)) bytes[id] = grammar::special_token_bytes(id);
      }
      compiler_ = std::make_unique<grammar::GrammarCompiler>(std::move(bytes));
    }
  }
  return compiler_->compile(source);
}

std::shared_ptr<ModelGrammars> make_model_grammars() {
  return std::make_shared<ModelGrammars>();
}

std::shared_ptr<grammar::Grammar> ModelText::compile_grammar(const grammar::GrammarSource& source) const {
  return grammars->compile(tokenizer, source);
}

}  // namespace quire
