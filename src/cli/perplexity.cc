#include <cmath>
#include <iostream>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/budget_flags.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "engine/text_loss.h"

namespace quire::cli {
namespace {

constexpr uint32_t kPartTokens = 512;  // unless --ctx says otherwise

struct PerplexityCommand {
  ModelOptions model;
  BudgetFlags budget;
  std::string file;
  bool json = false;
  bool per_token = false;

  void operator()() const {
    const std::string text = read_text(file);
    if (const auto bound = budget.options()) return score_whole(text, *bound);
    ModelOptions parted = model;
    if (!parted.context) parted.context = kPartTokens;
    const auto [loaded, engine, no_draft, no_predictor, no_drafter] = parted.open();
    const uint32_t part = engine.context;
    const std::vector<TokenId> tokens = tokens_in_parts(loaded->text().tokenizer, text, part);
    if (tokens.size() < 2) throw Error("{} has {} tokens: too few to score any", file, tokens.size());
    // Without a cache, a part is computed in one step.
    const uint32_t chunk = engine.kv_cache ? engine.prefill_chunk : part;
    const LossOptions options{.part_tokens = part, .prefill_chunk = chunk, .kv_formats = engine.kv_formats};
    std::vector<double> nll;
    {
      Progress progress("scoring");
      nll = losses(loaded->engine_model(), tokens, options,
                   [&](size_t done) { progress.update(done, tokens.size()); });
    }
    print(nll, tokens.size(), fmt::format("windows of {}", part), {});
  }

  // All of it as one text, however long: whatever the budget has let go is not seen any more.
  void score_whole(const std::string& text, const BudgetOptions& bound) const {
    ModelOptions::Opened opened = model.open();
    Request request;
    request.prompt = opened.model->text().tokenizer.encode(text);
    if (request.prompt.size() < 2)
      throw Error("{} has {} tokens: too few to score any", file, request.prompt.size());
    request.budget = bound;
    request.max_tokens = 1;
    std::vector<double> nll;
    const size_t tokens = request.prompt.size();
    Progress progress("scoring");
    request.on_prompt_score = [&](const PromptScore& score) {
      nll.push_back(score.loss);
      progress.update(nll.size() + 1, tokens);
    };
    const std::unique_ptr<Engine> engine = opened.make_engine();
    const Answer answer = engine->run(std::move(request));
    print(nll, tokens,
          fmt::format("one text in {} rows, {} in {}, {} let go", answer.account.budget_rows,
                      human_bytes(answer.kv_bytes), counted(answer.kv_pages, "page"),
                      answer.account.forgotten_tokens),
          {{"budget_rows", answer.account.budget_rows},
           {"forgotten_tokens", answer.account.forgotten_tokens},
           {"counted_anew", answer.account.counted_anew},
           {"kv_bytes", answer.kv_bytes}});
  }

  void print(const std::vector<double>& nll, size_t tokens, const std::string& how,
             const OrderedJson& more) const {
    const double mean = std::accumulate(nll.begin(), nll.end(), 0.0) / double(nll.size());
    if (!json) {
      std::cout << fmt::format("perplexity {:.4f} over {} scored of {} tokens ({}), {:.5f} nats each\n",
                               std::exp(mean), nll.size(), tokens, how, mean);
      return;
    }
    OrderedJson object = {
        {"tokens", tokens}, {"scored", nll.size()}, {"nll_mean", mean}, {"perplexity", std::exp(mean)}};
    object.update(more.is_null() ? OrderedJson::object() : more);
    if (per_token) object["nll"] = nll;
    std::cout << object.dump() << "\n";
  }
};

}  // namespace

void add_perplexity(CLI::App& app) {
  auto command = std::make_shared<PerplexityCommand>();
  CLI::App* perplexity = app.add_subcommand("perplexity", "how well the model predicts a text");
  command->model.add_to(*perplexity);
  command->budget.add_to(*perplexity);
  command->budget.add_choice_to(*perplexity);
  perplexity->add_option("file", command->file, "the text, or - for stdin")->required();
  perplexity->add_flag("--json", command->json, "print one JSON object");
  perplexity->add_flag("--per-token", command->per_token, "with --json: the score of every token");
  perplexity->callback([command] { (*command)(); });
}

}  // namespace quire::cli
