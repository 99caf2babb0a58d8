#include <iostream>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/house.h"
#include "cli/model_name.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "eval/evaluator_heads.h"

namespace quire::cli {
namespace {

struct KvHeadsCommand {
  ModelOptions model;
  HeadSearch search;
  std::string data, out;
  bool json = false;

  void operator()() const {
    const HouseData house = read_house_data(data.empty() ? house_path("eval") : data);
    if (out.empty()) check_may_write_beside(model.path());
    const ModelOptions::Opened opened = model.open();
    if (search.tokens > opened.engine.context)
      throw Error("prompts of {} tokens do not fit the context of {}", search.tokens, opened.engine.context);
    FoundHeads found;
    {
      Progress progress("looking at the heads");
      found = find_evaluator_heads(*opened.model, house, search,
                                   [&](size_t done) { progress.update(done, search.prompts); });
    }
    const std::string path = out.empty() ? evaluator_heads_path(model.path()) : out;
    write_evaluator_heads(path, found, search);
    const auto is_chosen = [&](const HeadShare& head) {
      return head.layer == found.best.layer && std::ranges::count(found.best.heads, head.head) > 0;
    };
    if (json) {
      OrderedJson heads = OrderedJson::array();
      for (const HeadShare& head : found.heads)
        heads.push_back(
            {{"layer", head.layer}, {"head", head.head}, {"share", head.share}, {"chosen", is_chosen(head)}});
      std::cout << OrderedJson{{"layer", found.best.layer},
                               {"heads", found.best.heads},
                               {"all", heads},
                               {"file", path}}
                       .dump()
                << "\n";
      return;
    }
    fmt::print("how much of the attention of a prompt's last {} tokens goes to the fact they ask for\n\n",
               search.window);
    fmt::print("{:>6} {:>6} {:>8}\n", "layer", "head", "share");
    for (const HeadShare& head : std::span(found.heads).first(std::min<size_t>(10, found.heads.size())))
      fmt::print("{:>6} {:>6} {:>6.1f} % {}\n", head.layer, head.head, 100 * head.share,
                 is_chosen(head) ? "chosen" : "");
    fmt::print("\nlayer {} is the evaluator, with {}; written to {}\n", found.best.layer,
               counted(found.best.heads.size(), "head"), path);
  }
};

}  // namespace

void add_kv_heads(CLI::App& app) {
  auto command = std::make_shared<KvHeadsCommand>();
  CLI::App* heads = app.add_subcommand("kv-heads",
                                       "finds the heads that look at what matters, for --kv-policy "
                                       "evaluator, and stores them beside the model");
  command->model.add_to(*heads);
  heads->add_option("--tokens", command->search.tokens, "of a prompt that hides a fact")
      ->capture_default_str()
      ->check(CLI::Range(128u, 1u << 17));
  heads->add_option("--prompts", command->search.prompts, "how many")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  heads->add_option("--layers", command->search.layers, "the share of the layers that is looked at")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 1.0));
  heads->add_option("--data", command->data, "the folder with the texts (default: beside the house model)");
  heads->add_option("-o,--output", command->out, "the file to write (default: beside the model)");
  heads->add_flag("--json", command->json, "print one JSON object");
  heads->callback([command] { (*command)(); });
}

}  // namespace quire::cli
