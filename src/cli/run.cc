#include <algorithm>
#include <iostream>
#include <span>

#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/answer_line.h"
#include "cli/budget_flags.h"
#include "cli/commands.h"
#include "cli/evaluator_choice.h"
#include "cli/grammar_flags.h"
#include "cli/kv_curve.h"
#include "cli/kv_file.h"
#include "cli/model_options.h"
#include "cli/pruning_flags.h"
#include "cli/rank_choice.h"
#include "cli/token_watch.h"
#include "engine/pruning/document.h"

namespace quire::cli {
namespace {

struct RunCommand {
  ModelOptions model;
  SamplingFlags sampling;
  PruningFlags pruning;
  BudgetFlags budget;
  GrammarFlags grammar;
  std::string prompt = "-";
  std::string system;
  bool raw = false;
  bool json = false;
  bool ignore_end = false;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  std::string load_kv_file, save_kv_file;
  std::string document_file;
  WatchOptions watch;

  // `bound`: what the system's words are pinned of, if they are to be.
  std::vector<TokenId> prompt_tokens(const LoadedModel& loaded, const std::string& text,
                                     std::optional<BudgetOptions>& bound) const {
    if (raw || !loaded.text().chat_template) return loaded.text().tokenizer.encode(text);
    ChatInput chat;
    chat.messages = OrderedJson::array();
    if (!system.empty()) chat.messages.push_back({{"role", "system"}, {"content", system}});
    chat.messages.push_back({{"role", "user"}, {"content", text}});
    std::vector<TokenId> tokens = loaded.text().encode_chat(chat);
    if (bound && budget.pins_system())
      bound->pinned = std::max(bound->pinned, loaded.text().system_tokens(chat, tokens));
    return tokens;
  }

  std::string asked_text() const {
    if (prompt == "-" && ::isatty(STDIN_FILENO) != 0)
      std::cerr << "Write the prompt and end it with Ctrl-D:\n";
    return prompt == "-" ? read_text("-") : prompt;
  }

  void operator()() {
    if (has_followed(model)) return;
    const std::pair<const char*, bool> given[] = {{"--kv-keep", pruning.options() || pruning.is_auto()},
                                                  {"--kv-budget", !budget.budget.empty()},
                                                  {"--load-kv", !load_kv_file.empty()},
                                                  {"--save-kv", !save_kv_file.empty()}};
    refuse_with_ranks(model, given);
    if (!document_file.empty() && pruning.keep.empty())
      wrong_usage("--document is a text that is pruned: --kv-keep says how much of it stays");
    if (document_file == "-" && prompt == "-") wrong_usage("stdin is the document or the prompt, not both");
    if (watch.drafts && model.draft.empty())
      wrong_usage("--show-drafts wants a drafter: --draft MODEL, lookup or mtp");
    std::optional<PruningOptions> prunes = pruning.options();
    if (prunes) model.prunes_with = prunes->policy;
    std::optional<BudgetOptions> bound;
    if (prunes || pruning.is_auto()) {
      if (!budget.budget.empty()) wrong_usage("--kv-budget bounds the prompt too: leave --kv-keep out");
    } else {
      bound = budget.options(pruning.policy, pruning.window);
    }
    std::optional<KvCurve> curve;
    if (pruning.is_auto()) {
      curve = known_curve(model.path());
      if (model.kv.empty()) model.kv = smallest_format(*curve, pruning.wanted_answers());
    }
    ModelOptions::Opened opened = model.open();
    const LoadedModel* loaded = opened.model.get();
    if (prunes && asks_evaluator(prunes->policy)) prunes->evaluator = choose_heads(*loaded, model.path());
    const std::unique_ptr<Engine> owned = opened.make_engine();
    Engine& engine = *owned;
    Request request = sampling.request(*loaded);
    request.pruning = prunes;
    request.grammar = grammar.grammar(loaded->text());
    const std::string before = document_file.empty() ? "" : read_text(document_file) + "\n\n";
    request.prompt = prompt_tokens(*loaded, before + asked_text(), bound);
    const uint32_t of_document =
        before.empty() ? 0 : document_tokens(request.prompt, [&](const std::string& other) {
          return prompt_tokens(*loaded, before + other, bound);
        });
    request.budget = bound;
    KeepChooser::Choice choice;
    if (curve) {
      choice = make_chooser(*curve, *loaded, model.path(), model.kv)
                   .choose(before.empty() ? request.prompt : std::span(request.prompt).first(of_document),
                           pruning.wanted_answers());
      request.pruning = choice.pruning;
      fmt::print(stderr, "[--kv-keep auto, --kv {}: {}]\n", model.kv, choice.words);
    }
    if (request.pruning && of_document > 0) {
      request.pruning->scored = of_document;
      request.pruning->is_shared = true;
    }
    request.ignore_end = ignore_end;
    request.logprobs = logprobs || top_logprobs > 0 || watch.steps();
    request.top_logprobs = std::max(top_logprobs, watch.top);
    request.watched = candidate_tokens(loaded->text().tokenizer, watch.candidates);
    const bool colours = ::isatty(STDOUT_FILENO) != 0;
    TokenWatch watcher(watch, loaded->text().tokenizer,
                       colours ? TokenWatch::Marks::colours : TokenWatch::Marks::brackets);
    OrderedJson logprob_list = OrderedJson::array(), steps = OrderedJson::array();
    request.on_token = [&](const TokenEvent& event) {
      if (json) {
        if (logprobs || top_logprobs > 0) logprob_list.push_back(logprob_json(event));
        if (watch.any()) steps.push_back(watcher.json(event));
        return;
      }
      std::cout << (watch.steps() ? watcher.line(event) : watcher.text(event)) << std::flush;
    };
    std::vector<TokenId> tokens = request.prompt;
    const auto document = request.pruning ? engine.lookup_document(tokens, *request.pruning) : std::nullopt;
    if (!load_kv_file.empty()) load_kv(engine, *loaded, load_kv_file);
    const Answer answer = engine.run(std::move(request));
    if (json) {
      print_json(answer, engine, choice, std::move(logprob_list), std::move(steps));
    } else {
      if (watch.steps()) std::cout << "\n" << answer.text;
      std::cout << std::endl;
      std::cerr << answer_line(answer, engine) << describe_traffic(model);
    }
    if (save_kv_file.empty()) return;
    if (document) {
      const std::span<const TokenId> text = std::span(tokens).first(document->key.tokens);
      return save_kv(engine, *loaded, {text, document->key.salt}, save_kv_file);
    }
    tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end());
    save_kv(engine, *loaded, tokens, save_kv_file);
  }

  void print_json(const Answer& answer, const Engine& engine, const KeepChooser::Choice& choice,
                  OrderedJson logprob_list, OrderedJson steps) const {
    OrderedJson object = answer_json(answer, engine, model.kv);
    if (answer.account.kept && !answer.account.kept->document.empty())
      object["kv"]["document"] = answer.account.kept->document;
    if (pruning.is_auto()) {
      object["kv"]["choice"] = {
          {"bytes", choice.bytes}, {"answers", choice.answers}, {"words", choice.words}};
      if (choice.pruning) {
        object["kv"]["choice"]["policy"] = name(choice.pruning->policy);
        object["kv"]["choice"]["keep"] = choice.pruning->share;
      }
    }
    if (!logprob_list.empty()) object["logprobs"] = std::move(logprob_list);
    if (watch.any()) object["steps"] = std::move(steps);
    std::cout << object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << std::endl;
  }

  OrderedJson logprob_json(const TokenEvent& event) const {
    OrderedJson top = OrderedJson::array();
    for (const TokenLogprob& t :
         std::span(event.top_logprobs).first(std::min<size_t>(top_logprobs, event.top_logprobs.size())))
      top.push_back({{"token", t.token}, {"logprob", t.logprob}});
    return {{"token", event.token}, {"logprob", event.logprob}, {"top", std::move(top)}};
  }
};

}  // namespace

void add_run(CLI::App& app) {
  auto command = std::make_shared<RunCommand>();
  CLI::App* run = app.add_subcommand("run", "one prompt, streamed to stdout, figures to stderr");
  command->model.add_to(*run);
  command->model.add_draft_to(*run);
  command->sampling.add_to(*run);
  command->pruning.add_to(*run);
  command->budget.add_to(*run);
  command->grammar.add_to(*run);
  run->add_option("prompt", command->prompt, "the prompt, or - for stdin")->capture_default_str();
  run->add_option(
      "--document", command->document_file,
      "a file with a text before the prompt, of which --kv-keep prunes what it says whatever is asked: "
      "--save-kv saves what is left of it, and --load-kv begins with that");
  run->add_option("--system", command->system, "a system message before the prompt");
  run->add_flag("--raw", command->raw, "no chat template: the model continues the prompt as it is");
  run->add_flag("--json", command->json, "print one JSON object at the end instead of streaming");
  run->add_flag("--ignore-eos", command->ignore_end, "go on past the model's end tokens");
  run->add_flag("--logprobs", command->logprobs, "with --json: the log-probability of each token");
  run->add_option("--top-logprobs", command->top_logprobs, "with --json: and of this many others");
  run->add_option("--load-kv", command->load_kv_file,
                  "a snapshot to start from: what it has of the prompt is not computed again");
  run->add_option("--save-kv", command->save_kv_file,
                  "where to save the keys and values of the prompt and the answer, for --load-kv");
  run->add_option("--top", command->watch.top,
                  "a line for each token instead of the stream: with this many of the likeliest")
      ->check(CLI::Range(1u, 1000u));
  run->add_option("--candidates", command->watch.candidates,
                  "and where these tokens stand, e.g. yes,no: rank and probability")
      ->delimiter(',')
      ->allow_extra_args(false);
  run->add_flag(
      "--show-drafts", command->watch.drafts,
      "mark what a drafter guessed: rightly [so], in vain {so}; underlined and struck on a terminal");
  run->callback([command] { (*command)(); });
}

}  // namespace quire::cli
