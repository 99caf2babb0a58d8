#include <fstream>
#include <iostream>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/evaluator_choice.h"
#include "cli/house.h"
#include "cli/kv_curve.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/pruning_flags.h"
#include "eval/house_eval.h"

namespace quire::cli {
namespace {

const std::vector<std::string> kParts = {"reading", "needles", "inference", "stories", "draft"};

struct EvalCommand {
  ModelOptions model;
  PruningFlags pruning;
  std::string suite = "house";
  std::string data;
  std::string draft = "house-draft";
  std::vector<std::string> parts;
  std::string log;
  std::vector<uint32_t> needle_tokens = {1024, 2048, 3900};
  uint32_t limit = 0;
  bool sentences = false;
  bool sees_question = false;
  bool json = false;

  bool wants(const std::string& part) const {
    return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
  }

  void operator()() const {
    const HouseData house = read_house_data(data.empty() ? house_path("eval") : data);
    std::optional<KvCurve> curve;
    if (pruning.is_auto()) {
      curve = known_curve(model.path());
      if (model.kv.empty()) model.kv = smallest_format(*curve, pruning.wanted_answers());
    }
    const auto [loaded, engine, no_draft, no_predictor, no_drafter] = model.open();
    if (!loaded->text().chat_template)
      throw Error("{} has no chat template: it cannot be asked", model.model);
    std::optional<PruningOptions> prunes = pruning.options();
    if (prunes && asks_evaluator(prunes->policy)) prunes->evaluator = choose_heads(*loaded, model.path());
    OrderedJson result = {
        {"suite", suite}, {"model", model.model}, {"kv", model.kv}, {"kernels", model.kernels}};
    std::vector<Judged> judged;
    {
      std::optional<Progress> progress;
      std::string shown;
      HouseEval eval(*loaded, engine, house, limit, [&](std::string_view part, size_t done, size_t of) {
        if (part != shown) {
          progress.reset();
          progress.emplace("asking, " + std::string(part));
        }
        shown = part;
        progress->update(done, of);
      });
      const auto question = sees_question ? HouseEval::Question::seen : HouseEval::Question::hidden;
      if (prunes) eval.prune(*prunes, question);
      if (curve) {
        const auto chooser =
            std::make_shared<const KeepChooser>(make_chooser(*curve, *loaded, model.path(), model.kv));
        eval.prune([chooser, target = pruning.wanted_answers()](
                       std::span<const TokenId> prompt) { return chooser->choose(prompt, target).pruning; },
                   question);
      }
      if (prunes || curve) {
        result["kv_keep"] = pruning.keep;
        result["kv_policy"] = curve ? "auto" : pruning.policy;
        result["question"] = sees_question ? "visible" : "hidden";
      }
      if (sentences) eval.accept_sentences();
      measure(eval, result);
      judged = eval.judged();
    }
    if (!log.empty()) write_log(judged);
    std::cout << (json ? result.dump() + "\n" : table(result)) << std::flush;
  }

  void measure(HouseEval& eval, OrderedJson& result) const {
    const auto put = [](const Tally& tally) {
      return OrderedJson{{"asked", tally.asked}, {"right", tally.right}, {"share", tally.share()}};
    };
    if (wants("reading")) {
      for (const char* set : {"new", "unseen"}) result["reading"][set] = put(eval.reading(set));
    }
    if (wants("needles")) {
      for (uint32_t tokens : needle_tokens) {
        OrderedJson entry = {{"tokens", tokens}};
        entry.update(put(eval.needles(tokens).tally));
        result["needles"].push_back(std::move(entry));
      }
    }
    if (wants("inference")) result["inference"] = put(eval.explanations());
    if (wants("stories")) {
      const StoryScore stories = eval.stories();
      result["stories"] = {{"loss", stories.loss}, {"tokens", stories.tokens}};
    }
    if (parts.empty() && draft == "house-draft" && !house_has("draft.gguf")) {
      std::cerr << "the house model has no draft model here: that part is left out\n";
    } else if (wants("draft")) {
      ModelOptions options = model;
      options.model = draft;
      const auto [loaded, engine_options, no_draft, no_predictor, no_drafter] = options.open();
      result["draft"] = put(eval.draft_agreement(*loaded));
    }
  }

  void write_log(const std::vector<Judged>& judged) const {
    std::ofstream file(log);
    for (const Judged& j : judged) {
      const OrderedJson line = {{"part", j.part},
                                {"right", j.right},
                                {"question", j.question},
                                {"expected", j.expected},
                                {"answer", j.answer}};
      file << line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
    }
    if (!file.flush()) throw Error("cannot write {}", log);
  }

  static std::string table(const OrderedJson& result) {
    std::string text;
    const auto line = [&](const std::string& what, const OrderedJson& tally) {
      text += fmt::format("{:<52} {:>5.1f} %  {:>4} of {}\n", what, 100 * tally["share"].get<double>(),
                          tally["right"].get<uint32_t>(), tally["asked"].get<uint32_t>());
    };
    if (result.contains("reading")) {
      line("questions about a text, entries it learned from", result["reading"]["new"]);
      line("questions about a text, entries it never saw", result["reading"]["unseen"]);
    }
    for (const OrderedJson& entry : result.value("needles", OrderedJson::array())) {
      line(fmt::format("a fact among other texts, {} tokens", entry["tokens"].get<uint32_t>()), entry);
    }
    if (result.contains("inference"))
      line("questions about inference, on the right topic", result["inference"]);
    if (result.contains("draft")) line("tokens of its stories that the draft model guesses", result["draft"]);
    if (result.contains("stories")) {
      text += fmt::format("{:<52} {:>7.3f} nats a token, {} tokens\n", "loss on stories it never saw",
                          result["stories"]["loss"].get<double>(), result["stories"]["tokens"].get<size_t>());
    }
    return text;
  }
};

}  // namespace

void add_eval(CLI::App& app) {
  auto command = std::make_shared<EvalCommand>();
  CLI::App* eval = app.add_subcommand("eval", "how well a model does what the house model was trained for");
  command->model.add_to(*eval);
  command->pruning.add_to(*eval);
  eval->add_option("suite", command->suite, "what to ask: house")
      ->capture_default_str()
      ->check(CLI::IsMember({"house"}));
  eval->add_option("--only", command->parts, "parts to run: reading, needles, inference, stories, draft")
      ->delimiter(',')
      ->check(CLI::IsMember(kParts));
  eval->add_option("--needle-tokens", command->needle_tokens, "how long the prompts with a needle are")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(128u, 1u << 20));
  eval->add_option("--limit", command->limit, "most questions of each part (0: all)")->capture_default_str();
  eval->add_flag("--sentences", command->sentences,
                 "right is an answer that says the expected somewhere: for models that answer in sentences");
  eval->add_flag("--see-question", command->sees_question,
                 "--kv-keep prunes the whole prompt, its question too (otherwise what stands before it)");
  eval->add_option("--data", command->data,
                   "the folder with the questions (default: beside the house model)");
  eval->add_option("--draft", command->draft, "the draft model that is compared")->capture_default_str();
  eval->add_option("--log", command->log,
                   "write every question with its answer to this file, a JSON object a line");
  eval->add_flag("--json", command->json, "print one JSON object");
  eval->callback([command] { (*command)(); });
}

}  // namespace quire::cli
