#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "cli/command_words.h"
#include "cli/commands.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

struct HelpCommand {
  const CLI::App* program = nullptr;
  std::string command, shell, folder;
  bool manual = false;

  void operator()() const {
    const std::vector<CommandWords> all = words_of(*program);
    if (!folder.empty()) {
      write_all(all);
    } else if (!shell.empty()) {
      std::cout << completion(all, shell == "zsh" ? Shell::zsh : shell == "fish" ? Shell::fish : Shell::bash);
    } else {
      const auto found = std::ranges::find(all, command, &CommandWords::name);
      if (found == all.end()) wrong_usage("there is no command '{}'; quire --help lists them", command);
      if (manual)
        std::cout << manual_page(all, *found, QUIRE_VERSION);
      else
        std::cout << (command.empty() ? program->help() : program->get_subcommand(command)->help("quire"));
    }
  }

  // As they are installed.
  void write_all(const std::vector<CommandWords>& all) const {
    for (const CommandWords& one : all)
      write(one.name.empty() ? "man1/quire.1" : "man1/quire-" + one.name + ".1",
            manual_page(all, one, QUIRE_VERSION));
    write("bash/quire", completion(all, Shell::bash));
    write("zsh/_quire", completion(all, Shell::zsh));
    write("fish/quire.fish", completion(all, Shell::fish));
  }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code problem;
    std::filesystem::create_directories(path.parent_path(), problem);
    std::ofstream file(path, std::ios::binary);
    file << text;
    if (!file.flush()) throw Error("cannot write {}", path.string());
  }
};

}  // namespace

void add_help(CLI::App& app) {
  auto command = std::make_shared<HelpCommand>();
  command->program = &app;
  CLI::App* help =
      app.add_subcommand("help", "what a command does; manual pages and completions, made of the same words");
  help->group("");  // for those who pack the program
  help->add_option("command", command->command, "of which");
  help->add_flag("--man", command->manual, "as a manual page");
  help->add_option("--completion", command->shell, "for this shell")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  help->add_option("--write", command->folder, "all manual pages and completions, into a folder");
  help->callback([command] { (*command)(); });
}

}  // namespace quire::cli
