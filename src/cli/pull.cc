#include "hub/pull.h"

#include <cstdio>

#include <fmt/format.h>

#include "base/memory.h"
#include "cli/commands.h"
#include "cli/model_name.h"
#include "cli/model_options.h"
#include "cli/pull_line.h"

namespace quire::cli {
namespace {

struct PullCommand {
  std::string name;

  void operator()() const {
    if (name.starts_with("ollama:"))
      wrong_usage("Ollama's models are Ollama's to fetch: `ollama pull {}`; quire reads them as {}",
                  name.substr(7), name);
    PullLine line;
    const PulledModel pulled = pull_model(hub_name(name), HubPlaces::of_this_process(), total_memory(), line);
    line.say(fmt::format("{} is here: {}", name, human_bytes(pulled.bytes)));
    fmt::print("{}\n", pulled.path);
  }
};

}  // namespace

void add_pull(CLI::App& app) {
  auto command = std::make_shared<PullCommand>();
  CLI::App* pull = app.add_subcommand(
      "pull",
      "fetches a model from the hub into the cache that Hugging Face's programs share, and prints where it "
      "is. "
      "What was begun goes on, every byte is checked, of several types the usual one that fits is taken. "
      "HF_TOKEN says who asks, HF_ENDPOINT whom, HF_HUB_CACHE or HF_HOME where to keep it");
  pull->add_option(
          "name", command->name,
          "hf:ORG/NAME, with @REVISION and with :Q4_K_M, :safetensors or :FILE if it is to be that one")
      ->required();
  pull->callback([command] { (*command)(); });
}

}  // namespace quire::cli
