#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/explain/view.h"
#include "cli/model_options.h"
#include "replay/replayer.h"

namespace quire::cli {
namespace {

struct ReplayCommand {
  ModelOptions model;
  bool model_given = false;
  std::string file;
  std::string request;
  ExplainOptions explain;  // of --view
  bool json = false;

  void operator()() {
    Recording recording = read_recording_file(file);
    const RecordingHead& head = recording.head;
    if (!request.empty()) keep_request(recording);
    if (!model_given) {
      model.model = head.model_path;
      model.offline = true;  // a recording, which may be a stranger's, fetches nothing
    }
    if (!model.context) model.context = head.context;
    if (model.kv.empty()) model.kv = head.kv;
    const ModelOptions::Opened opened = model.open();
    const KvIdentity now = opened.model->kv_identity();
    if (now.model != head.identity.model)
      throw Error(
          "{} was recorded with the model '{}', and this is '{}', or another version of it: -m names the "
          "right one",
          file, head.identity.model_name, now.model_name);
    if (!explain.view.empty()) return show(recording, opened);
    // Bits are promised for one kernel set, one format of the cache and one way of positions.
    const bool alike = now.kernels == head.identity.kernels && model.kv == head.kv &&
                       now.positions == head.identity.positions;
    const std::string how = fmt::format("kernels {}, --kv {}", now.kernels, model.kv);
    if (!alike && !json)
      fmt::print("recorded with kernels {}, --kv {}; this is {}: other bits are no bug\n",
                 head.identity.kernels, head.kv, how);
    const size_t differ = run_all(recording, opened);
    if (!json) tell_rest(recording);
    if (alike && differ > 0)
      throw Error(
          "{} of {} came out otherwise with the same kernels and formats: the file was changed, or this is a "
          "bug of quire",
          differ, counted(recording.answers.size(), "answer"));
    if (!recording.damaged.empty())
      throw Error("{} of {} cannot be replayed: damaged", counted(recording.damaged.size(), "part"), file);
  }

  void keep_request(Recording& recording) const {
    std::erase_if(recording.answers, [&](const RecordedAnswer& answer) { return answer.id != request; });
    if (recording.answers.empty()) throw Error("{} has no request '{}' that is whole", file, request);
  }

  // How many are not what they were.
  size_t run_all(const Recording& recording, const ModelOptions::Opened& opened) const {
    const KvLayout layout = make_kv_layout(kv_shapes(opened.model->spec(), opened.engine.kv_formats));
    Engine engine(opened.model->engine_model(),
                  replay_options(opened.engine, layout, longest_of(recording.answers)));
    size_t differ = 0, tokens = 0;
    OrderedJson rows = OrderedJson::array();
    for (const RecordedAnswer& answer : recording.answers) {
      const ReplayOutcome outcome = replay(engine, answer, &opened.model->text());
      differ += outcome.same() ? 0 : 1;
      tokens += answer.tokens.size();
      if (json) {
        rows.push_back(row_json(answer, outcome));
      } else {
        fmt::print("{} {}: {}\n", answer.id, answer.index,
                   words(answer, outcome, opened.model->text().tokenizer));
      }
    }
    if (json) {
      const OrderedJson all = {
          {"answers", recording.answers.size()},
          {"differ", differ},
          {"damaged", recording.damaged},
          {"cut_bytes", recording.cut_bytes},
          {"recorded", {{"kernels", recording.head.identity.kernels}, {"kv", recording.head.kv}}},
          {"kernels", opened.model->kv_identity().kernels},
          {"kv", model.kv},
          {"results", std::move(rows)}};
      std::cout << all.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
    } else {
      fmt::print("{} of {} the same to the bit; {} in all\n", recording.answers.size() - differ,
                 counted(recording.answers.size(), "answer"), counted(tokens, "token"));
    }
    return differ;
  }

  static std::string words(const RecordedAnswer& answer, const ReplayOutcome& outcome,
                           const Tokenizer& tokenizer) {
    if (!outcome.refused.empty()) return "cannot be run: " + outcome.refused;
    if (outcome.same()) return fmt::format("the same ({})", counted(answer.tokens.size(), "token"));
    const auto token = [&](std::optional<TokenId> id, float logprob) {
      return id ? fmt::format("{} \"{}\" ({})", *id, token_text(tokenizer, {&*id, 1}), logprob) : "the end";
    };
    std::string text;
    if (const auto& at = outcome.token)
      text = fmt::format("token {} of {} was {} and is {}", at->at + 1, answer.tokens.size(),
                         token(at->given, at->given_logprob), token(at->drawn, at->drawn_logprob));
    if (const auto& at = outcome.logprob)
      text += fmt::format("{}log-probabilities differ from token {} on ({} and {}), by {:.3g} at most",
                          text.empty() ? "the same tokens; " : "; ", at->at + 1, at->given_logprob,
                          at->drawn_logprob, outcome.largest_logprob_change);
    return text;
  }

  static OrderedJson row_json(const RecordedAnswer& answer, const ReplayOutcome& outcome) {
    OrderedJson row = {{"id", answer.id},
                       {"index", answer.index},
                       {"tokens", answer.tokens.size()},
                       {"same", outcome.same()},
                       {"first_other_token", nullptr},
                       {"first_other_logprob", nullptr},
                       {"largest_logprob_change", outcome.largest_logprob_change}};
    if (outcome.token) row["first_other_token"] = outcome.token->at;
    if (outcome.logprob) row["first_other_logprob"] = outcome.logprob->at;
    if (!outcome.refused.empty()) row["refused"] = outcome.refused;
    return row;
  }

  void tell_rest(const Recording& recording) const {
    if (recording.cut_bytes > 0)
      fmt::print("the last {} are of an answer that was not written to its end\n",
                 counted(recording.cut_bytes, "byte"));
    for (const size_t number : recording.damaged)
      fmt::print("part {} of the file is damaged: it is not what was written\n", number);
  }

  void show(const Recording& recording, const ModelOptions::Opened& opened) {
    if (recording.answers.empty()) throw Error("{} has no answer that is whole", file);
    const RecordedAnswer& answer = recording.answers.front();
    explain.model = model;
    explain.json = json;
    ExplainInput input{.options = explain,
                       .model = *opened.model,
                       .engine = opened.engine,
                       .prompt = answer.request.prompt,
                       .generated = std::max(2u, uint32_t(answer.tokens.size()))};
    input.sampling = answer.request.sampling;
    input.choice = answer.request.choice;
    if (answer.request.budget)
      throw Error("it kept to a budget: the views show what keeps all its rows only");
    if (answer.request.pruning) throw Error("its prompt was pruned: the views show whole prompts only");
    show_view(input);
  }
};

}  // namespace

void add_replay(CLI::App& app) {
  auto command = std::make_shared<ReplayCommand>();
  CLI::App* replay = app.add_subcommand(
      "replay", "runs requests that `quire serve --record` has kept again, alone, and compares bit by bit");
  replay->add_option("file", command->file, "the recording")->required();
  command->model.add_to(*replay);
  replay->get_option("--model")->description("the model (default: as the recording names it)");
  replay->add_option("--request", command->request, "only the request of this id");
  replay
      ->add_option("--view", command->explain.view,
                   "instead: a view of `quire explain` of one request (the first, or --request)")
      ->check(CLI::IsMember(view_names()));
  command->explain.view.clear();
  replay->add_option("--svg", command->explain.svg, "a file to draw the view to");
  replay->add_flag("--json", command->json, "print one JSON object");
  replay->callback([command, replay] {
    command->model_given = replay->get_option("--model")->count() > 0;
    (*command)();
  });
}

}  // namespace quire::cli
