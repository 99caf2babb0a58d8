#include <atomic>
#include <csignal>
#include <iostream>

#include <unistd.h>

#include "base/error.h"
#include "cli/answer_line.h"
#include "cli/budget_flags.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/turns.h"

namespace quire::cli {
namespace {

std::atomic<bool> interrupted{false};

struct ChatCommand {
  ModelOptions model;
  SamplingFlags sampling;
  BudgetFlags budget;
  std::string system;
  bool stats = false;

  void operator()() const {
    const std::optional<BudgetOptions> bound = budget.options();
    ModelOptions::Opened opened = model.open();
    const LoadedModel* loaded = opened.model.get();
    if (!loaded->text().chat_template) {
      throw Error("{} has no chat template; `quire run --raw` continues a text with it", model.path());
    }
    const std::unique_ptr<Engine> owned = opened.make_engine();
    Engine& engine = *owned;
    std::cerr << loaded->spec().name << ", a context of " << engine.context()
              << " tokens. /new starts again, /quit or Ctrl-D ends, Ctrl-C stops an answer.\n";
    std::signal(SIGINT, [](int) { interrupted = true; });
    OrderedJson messages = first_messages();
    Turns turns(loaded->text().tokenizer);
    for (std::string line; read_line(line);) {
      if (line == "/quit" || line == "/exit") break;
      if (line == "/new") {
        messages = first_messages();
        turns.start_again();
        continue;
      }
      if (line.empty()) continue;
      messages.push_back({{"role", "user"}, {"content", line}});
      try {
        const std::string said = reply(*loaded, engine, messages, bound, turns);
        if (said.empty()) {
          messages.erase(messages.size() - 1);  // stopped before its first word: as if it had not been asked
        } else {
          messages.push_back({{"role", "assistant"}, {"content", said}});
        }
      } catch (const Error& error) {
        std::cerr << "quire: " << error.what() << "\n";
        messages.erase(messages.size() - 1);
      }
    }
    std::signal(SIGINT, SIG_DFL);
  }

  OrderedJson first_messages() const {
    OrderedJson messages = OrderedJson::array();
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
    return messages;
  }

  static bool read_line(std::string& line) {
    if (::isatty(STDIN_FILENO) != 0) std::cerr << "> ";
    interrupted = false;
    return bool(std::getline(std::cin, line));
  }

  std::string reply(const LoadedModel& loaded, Engine& engine, const OrderedJson& messages,
                    const std::optional<BudgetOptions>& bound, Turns& turns) const {
    Request request = sampling.request(loaded);
    ChatInput chat;
    chat.messages = messages;
    request.prompt = loaded.text().encode_chat(chat);
    request.budget = bound;
    if (bound && budget.pins_system())
      request.budget->pinned = std::max(bound->pinned, loaded.text().system_tokens(chat, request.prompt));
    std::vector<TokenId> timeline = request.prompt;
    std::string shown;
    request.on_token = [&](const TokenEvent& event) {
      shown += event.text;
      timeline.push_back(event.token);
      std::cout << event.text << std::flush;
    };
    const SequenceId id = engine.submit(std::move(request));
    std::optional<Answer> answer;
    while (!answer && !interrupted) {
      engine.step();
      answer = engine.take_answer(id);
    }
    std::cout << std::endl;
    if (answer) {
      std::cerr << (stats ? turns.describe(*answer, timeline) : answer_line(*answer, engine));
    } else {
      engine.cancel(id);
      std::cerr << "[stopped]\n";
    }
    turns.add(std::move(timeline));
    return shown;
  }
};

}  // namespace

void add_chat(CLI::App& app) {
  auto command = std::make_shared<ChatCommand>();
  CLI::App* chat = app.add_subcommand("chat", "a conversation in the terminal");
  command->model.add_to(*chat);
  command->model.add_draft_to(*chat);
  command->sampling.add_to(*chat);
  command->budget.add_to(*chat);
  command->budget.add_choice_to(*chat);
  chat->add_option("--system", command->system, "a system message before the conversation");
  chat->add_flag("--stats", command->stats,
                 "after each answer: what was cached and what was new, and why if it is less than could be");
  chat->callback([command] { (*command)(); });
}

}  // namespace quire::cli
