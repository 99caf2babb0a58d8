#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/evaluator_choice.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

struct KvHeadsCommand {
  ModelOptions model;
  HeadSearch search;
  std::string data, out;
  bool json = false;

  void operator()() const {
    const ModelOptions::Opened opened = model.open();
    const LoadedModel& loaded = *opened.model;
    const FoundHeads found = find_heads(loaded, data, search);
    std::string path = out;
    if (out.empty()) {
      path = keep_heads(found, loaded, model.path());
    } else {
      write_evaluator_heads(out, found, loaded);
    }
    if (json) {
      print_json(found, path);
    } else {
      print(found, path);
    }
  }

  static void print_json(const FoundHeads& found, const std::string& path) {
    OrderedJson layers = OrderedJson::array();
    for (const LayerHeads& layer : found.layers) {
      OrderedJson object = {{"layer", layer.evaluator.layer},
                            {"heads", layer.evaluator.heads},
                            {"share", layer.share},
                            {"prefill_saved_at_half", layer.saved},
                            {"chosen", layer.evaluator.layer == found.best.layer}};
      if (layer.kept) {
        object["asked"] = layer.kept->asked;
        object["kept"] = layer.kept->whole;
        object["asked_by_prompt"] =
            layer.kept->before ? OrderedJson(layer.kept->before->asked) : OrderedJson();
        object["kept_by_prompt_at_half"] =
            layer.kept->before ? OrderedJson(layer.kept->before->kept) : OrderedJson();
      }
      layers.push_back(std::move(object));
    }
    OrderedJson result = {{"layer", found.best.layer},  {"heads", found.best.heads},
                          {"asked", found.asked},       {"answered", found.answered},
                          {"kept_of", kTriedShares},    {"layers", std::move(layers)},
                          {"warning", found.warning()}, {"file", path}};
    if (found.other) result["better"] = {{"policy", name(found.other->policy)}, {"kept", found.other->kept}};
    std::cout << result.dump() << "\n";
  }

  void print(const FoundHeads& found, const std::string& path) const {
    fmt::print(
        "share: of the attention of a prompt's last {} tokens that a layer's best heads pay the fact asked "
        "for\n"
        "answers: of {} facts in prompts of {} tokens that the whole cache gives, those that less of it "
        "gives;\n         5/12: of 12, fewer than all, of a layer that had lost too many, and of "
        "evaluator-prompt "
        "where it decides nothing\n\n",
        found.window, found.answered, found.tokens);
    fmt::print("{:32}{:^24}{:>18}\n", "", "evaluator", "evaluator-prompt");
    fmt::print("{:>6} {:<16} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9}\n", "layer", "heads", "share", "70 %",
               "50 %", "30 %", "50 %", "saves");
    for (const LayerHeads& layer : found.layers) {
      if (!layer.kept) continue;
      fmt::print("{:>6} {:<16} {:>5.1f} %", layer.evaluator.layer,
                 fmt::format("{}", fmt::join(layer.evaluator.heads, ",")), 100 * layer.share);
      const auto of = [&](uint32_t kept, uint32_t asked) {
        return asked == found.answered ? fmt::format("{}", kept) : fmt::format("{}/{}", kept, asked);
      };
      for (const uint32_t kept : layer.kept->whole) fmt::print(" {:>7}", of(kept, layer.kept->asked));
      const auto& before = layer.kept->before;
      fmt::print(" {:>7} {:>7.0f} % {}\n", before ? of(before->kept, before->asked) : "-", 100 * layer.saved,
                 layer.evaluator.layer == found.best.layer ? "chosen" : "");
    }
    fmt::print("\nlayer {} is the evaluator, with {}; written to {}\n", found.best.layer,
               counted(found.best.heads.size(), "head"), path);
    if (const std::string warning = found.warning(); !warning.empty()) fmt::print("{}\n", warning);
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
  heads->add_option("--prompts", command->search.prompts, "facts that the heads are searched with")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  heads->add_option("--cases", command->search.cases, "other facts, that the best layers are tried with")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  heads->add_option("--layers", command->search.layers, "how many of the best layers are tried")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  heads->add_option("--data", command->data, "the folder with the texts (default: beside the house model)");
  heads->add_option("-o,--output", command->out, "the file to write (default: beside the model)");
  heads->add_flag("--json", command->json, "print one JSON object");
  heads->callback([command] { (*command)(); });
}

}  // namespace quire::cli
