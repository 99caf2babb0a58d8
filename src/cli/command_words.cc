#include "cli/command_words.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace quire::cli {
namespace {

std::string replace_all(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

enum class Place { named, positional };

// Some can be said in either way.
OptionWords option_words(const CLI::Option& option, Place place) {
  OptionWords words;
  words.positional = place == Place::positional;
  words.needed = option.get_required();
  for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  if (words.positional) words.names = {option.get_name(true)};
  words.description = option.get_description();
  if (option.get_items_expected_max() > 0) {
    // "TEXT:{auto,exact}": a type, and the check it has to pass.
    const std::string type = option.get_type_name();
    words.value = type.substr(0, type.find(':'));
    const size_t open = type.find('{'), close = type.find('}');
    if (open != std::string::npos && close != std::string::npos && open < close) {
      std::string rest = type.substr(open + 1, close - open - 1);
      for (size_t comma = 0; comma != std::string::npos; rest.erase(0, comma + 1)) {
        comma = rest.find(',');
        words.choices.push_back(rest.substr(0, comma));
        if (comma == std::string::npos) break;
      }
    }
    const std::string usual = option.get_default_str();
    if (!usual.empty()) words.description += fmt::format(" (default: {})", usual);
  }
  return words;
}

CommandWords words_of_command(const CLI::App& command) {
  CommandWords words{.name = command.get_name(), .description = command.get_description(), .options = {}};
  for (const CLI::Option* option : command.get_options([](const CLI::Option*) { return true; })) {
    if (option->get_group().empty()) continue;
    if (option->get_positional()) words.options.push_back(option_words(*option, Place::positional));
    if (!option->get_lnames().empty() || !option->get_snames().empty())
      words.options.push_back(option_words(*option, Place::named));
  }
  std::ranges::stable_partition(words.options, [](const OptionWords& o) { return o.positional; });
  return words;
}

// What roff would take for itself.
std::string roff(std::string text) {
  text = replace_all(replace_all(std::move(text), "\\", "\\e"), "-", "\\-");
  text = replace_all(std::move(text), "\n", " ");
  return text.starts_with('.') || text.starts_with('\'') ? "\\&" + text : text;
}

std::string roff_option(const OptionWords& option) {
  std::string head;
  for (const std::string& name : option.names)
    head += fmt::format("{}\\fB{}\\fR", head.empty() ? "" : ", ", roff(name));
  if (!option.value.empty() && !option.positional) head += fmt::format(" \\fI{}\\fR", roff(option.value));
  return fmt::format(".TP\n{}\n{}\n", head, roff(option.description));
}

std::string quoted(const std::string& text) {
  return "'" + replace_all(text, "'", "'\\''") + "'";
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  return fmt::format("{}", fmt::join(words, between));
}

// Words that end with what is being typed, and files where they are wanted.
std::string bash_completion(const std::vector<CommandWords>& all) {
  std::vector<std::string> commands;
  std::string cases, values;
  for (const CommandWords& command : all) {
    std::vector<std::string> names;
    for (const OptionWords& option : command.options) {
      if (option.positional) continue;
      names.insert(names.end(), option.names.begin(), option.names.end());
      if (option.value.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back(command.name + ":" + name);
      // Nothing to choose from: a file, perhaps.
      values += fmt::format("    {}) COMPREPLY=({}); return ;;\n", joined(patterns, "|"),
                            option.choices.empty() ? std::string("$(compgen -f -- \"$word\")")
                                                   : fmt::format("$(compgen -W '{}' -- \"$word\")",
                                                                 joined(option.choices, " ")));
    }
    if (!command.name.empty()) commands.push_back(command.name);
    cases += fmt::format("    {}) options='{}' ;;\n", command.name.empty() ? "''" : command.name,
                         joined(names, " "));
  }
  return fmt::format(R"(# bash completion of quire, written by the program: quire help --completion bash
_quire() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= options=
  COMPREPLY=()
  if (( COMP_CWORD > 1 )); then command=${{COMP_WORDS[1]}}; fi
  case "$command:$before" in
{}  esac
  case "$command" in
{}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [[ -z $command ]]; then
    COMPREPLY=($(compgen -W '{}' -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _quire quire
)",
                     values, cases, joined(commands, " "));
}

std::string zsh_completion(const std::vector<CommandWords>& all) {
  const auto plain = [](std::string text) {  // of what _arguments reads for itself
    for (const char* mark : {"\\", "[", "]", ":"}) text = replace_all(text, mark, std::string("\\") + mark);
    return text;
  };
  std::string commands, cases;
  for (const CommandWords& command : all) {
    if (command.name.empty()) continue;
    commands += fmt::format("    {}\n", quoted(command.name + ":" + plain(command.description)));
    cases += fmt::format("    {})\n      _arguments", command.name);
    for (const OptionWords& option : command.options) {
      if (option.positional) continue;
      const std::string value = option.value.empty()     ? ""
                                : option.choices.empty() ? fmt::format(":{}:_files", plain(option.value))
                                                         : fmt::format(":{}:({})", plain(option.value),
                                                                       joined(option.choices, " "));
      for (const std::string& name : option.names)
        cases += " \\\n        " + quoted(fmt::format("*{}[{}]{}", name, plain(option.description), value));
    }
    cases += " \\\n        '*:file:_files' ;;\n";
  }
  return fmt::format(R"(#compdef quire
# zsh completion of quire, written by the program: quire help --completion zsh
_quire() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
_quire "$@"
)",
                     commands, cases);
}

std::string fish_completion(const std::vector<CommandWords>& all) {
  const auto plain = [](const std::string& text) {
    return "'" + replace_all(replace_all(text, "\\", "\\\\"), "'", "\\'") + "'";
  };
  std::string text = "# fish completion of quire, written by the program: quire help --completion fish\n";
  for (const CommandWords& command : all) {
    const std::string when =
        command.name.empty() ? "__fish_use_subcommand" : "__fish_seen_subcommand_from " + command.name;
    if (!command.name.empty())
      text += fmt::format("complete -c quire -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                          plain(command.description));
    for (const OptionWords& option : command.options) {
      if (option.positional) continue;
      text += fmt::format("complete -c quire -n {}", plain(when));
      for (const std::string& name : option.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (!option.value.empty()) text += " -r";
      if (!option.choices.empty()) text += fmt::format(" -f -a {}", plain(joined(option.choices, " ")));
      text += fmt::format(" -d {}\n", plain(option.description));
    }
  }
  return text;
}

}  // namespace

std::vector<CommandWords> words_of(const CLI::App& program) {
  std::vector<CommandWords> all = {words_of_command(program)};
  all.front().name.clear();
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) all.push_back(words_of_command(*command));
  }
  return all;
}

std::string manual_page(const std::vector<CommandWords>& all, const CommandWords& command,
                        const std::string& version) {
  const bool is_program = command.name.empty();
  const std::string name = is_program ? "quire" : "quire-" + command.name;
  std::string title = name;
  for (char& c : title) c = char(std::toupper(static_cast<unsigned char>(c)));
  std::string synopsis = is_program ? "\\fBquire\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]"
                                    : fmt::format("\\fBquire {}\\fR [\\fIOPTIONS\\fR]", roff(command.name));
  std::string page, positionals, options;
  for (const OptionWords& option : command.options) {
    if (option.positional)
      synopsis += fmt::format(" {}\\fI{}\\fR{}", option.needed ? "" : "[", roff(option.names.front()),
                              option.needed ? "" : "]");
    (option.positional ? positionals : options) += roff_option(option);
  }
  page += fmt::format(".TH {} 1 \"\" \"quire {}\" \"quire\"\n.nh\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n",
                      roff(title), version, roff(name), roff(command.description), synopsis);
  if (!positionals.empty()) page += ".SH ARGUMENTS\n" + positionals;
  if (is_program) {
    page += ".SH COMMANDS\n";
    for (const CommandWords& one : all) {
      if (!one.name.empty())
        page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(one.name), roff(one.description));
    }
  }
  page += ".SH OPTIONS\n" + options;
  page +=
      ".SH EXIT STATUS\n0: done; 1: something went wrong, which stderr says; 2: wrong usage.\n.SH SEE ALSO\n";
  std::vector<std::string> others;
  for (const CommandWords& one : all) {
    if (one.name != command.name)
      others.push_back(fmt::format("\\fB{}\\fR(1)", one.name.empty() ? "quire" : roff("quire-" + one.name)));
  }
  return page + joined(others, ",\n") + "\n";
}

std::string completion(const std::vector<CommandWords>& all, Shell shell) {
  switch (shell) {
    case Shell::zsh:
      return zsh_completion(all);
    case Shell::fish:
      return fish_completion(all);
    default:
      return bash_completion(all);
  }
}

}  // namespace quire::cli
