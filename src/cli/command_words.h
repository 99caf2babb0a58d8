#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace quire::cli {

// What the program says of its commands, for those who write it down elsewhere: read from the commands themselves, so that they
// cannot disagree.
struct OptionWords {
  std::vector<std::string> names;    // "-m", "--model"; of a positional its name alone
  std::string value;                 // what it takes: "TEXT"; empty: nothing
  std::string description;           // with its default
  std::vector<std::string> choices;  // if it takes only these
  bool positional = false, needed = false;
};
struct CommandWords {
  std::string name, description;
  std::vector<OptionWords> options;
};
// The program's own options under the name of none, then its commands. Those that are hidden are left out.
std::vector<CommandWords> words_of(const CLI::App& program);

// The page of manual section 1 of the program (the first of all words), or of one of its commands.
std::string manual_page(const std::vector<CommandWords>& all, const CommandWords& command,
                        const std::string& version);
enum class Shell { bash, zsh, fish };
std::string completion(const std::vector<CommandWords>& all, Shell shell);

}  // namespace quire::cli
