#include "openai/rerank_prompt.h"

#include "openai/api_error.h"
#include "text/marked_text.h"

namespace quire {
namespace {

constexpr const char* kBefore =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    "Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: ";
constexpr const char* kUsualInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";
constexpr const char* kAfter = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

// Special tokens that are spelled in what somebody else wrote are text.
void add_plain(MarkedText& text, const std::string& words) {
  const size_t begin = text.text.size();
  text.text += words;
  if (!words.empty()) text.plain.push_back({begin, text.text.size()});
}

}  // namespace

JudgeTokens judge_tokens(const ServedModel& model) {
  const Tokenizer& tokenizer = model.text->tokenizer;
  const auto yes = tokenizer.find("yes"), no = tokenizer.find("no"), turn = tokenizer.find("<|im_start|>");
  if (yes && no && turn && tokenizer.is_special(*turn)) return {*yes, *no};
  throw ApiError(
      400, "model", "no_rerank",
      fmt::format("the model '{}' cannot be asked as Qwen3-Reranker is: its vocabulary lacks 'yes', "
                  "'no' or '<|im_start|>'; other models that judge pairs are not supported yet",
                  model.name));
}

std::vector<TokenId> judge_prompt(const Judgement& judgement, const std::string& field,
                                  const ServedModel& model) {
  MarkedText text{.text = kBefore, .plain = {}};
  add_plain(text, judgement.instruction.empty() ? kUsualInstruction : judgement.instruction);
  text.text += "\n<Query>: ";
  add_plain(text, judgement.query);
  text.text += "\n<Document>: ";
  add_plain(text, judgement.document);
  text.text += kAfter;
  try {
    return model.text->tokenizer.encode(text, model.context - 1);
  } catch (const TooManyTokens&) {
    throw ApiError(400, field, "context_length_exceeded",
                   fmt::format("'{}' does not fit the context of {} tokens with the query and the question "
                               "around it",
                               field, model.context));
  }
}

}  // namespace quire
