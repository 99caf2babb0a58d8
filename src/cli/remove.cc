#include <iostream>

#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_name.h"
#include "cli/model_options.h"
#include "hub/stored_models.h"

namespace quire::cli {
namespace {

struct RemoveCommand {
  std::string name;
  bool yes = false;

  void operator()() const {
    if (name == "house" || name == "house-draft") wrong_usage("the house model belongs to the program");
    if (name.starts_with("ollama:"))
      wrong_usage("Ollama's store is Ollama's: `ollama rm {}` removes it", name.substr(7));
    const HubName parsed = hub_name(name);
    const bool whole = parsed.which.empty() && name.find('@') == std::string::npos;
    const Removal removal = plan_removal(parsed, whole, HubCache(HubPlaces::of_this_process().cache));
    if (!yes && !agreed(removal)) {
      std::cerr << "nothing was removed\n";
      return;
    }
    removal.carry_out();
    std::cerr << "removed " << removal.what << ": " << human_bytes(removal.bytes) << " are free\n";
  }

  static bool agreed(const Removal& removal) {
    if (!::isatty(STDIN_FILENO))
      wrong_usage("remove asks before it removes; where nobody can answer it wants -y");
    std::cerr << "remove " << removal.what << ", " << human_bytes(removal.bytes)
              << ", which other programs may use too? [y/N] ";
    std::string answer;
    std::getline(std::cin, answer);
    return answer == "y" || answer == "Y" || answer == "yes";
  }
};

}  // namespace

void add_remove(CLI::App& app) {
  auto command = std::make_shared<RemoveCommand>();
  CLI::App* remove = app.add_subcommand("remove",
                                        "removes a model from the Hugging Face cache: all that is here of "
                                        "it, with @REVISION that one, with :TYPE "
                                        "that one; what another revision holds too stays");
  remove->add_option("name", command->name, "hf:ORG/NAME, as `quire list` shows it")->required();
  remove->add_flag("-y,--yes", command->yes, "do not ask");
  remove->callback([command] { (*command)(); });
}

}  // namespace quire::cli
