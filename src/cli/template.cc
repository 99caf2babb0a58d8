#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

struct TemplateCommand {
  ModelChoice model;
  std::string file = "-";

  void operator()() const {
    const auto chat_template = load_chat_template(model.path());
    if (!chat_template) throw Error("{} has no chat template", model.path());
    OrderedJson object = parse_ordered_json(read_text(file), file == "-" ? "stdin" : file);
    if (!object.is_object() || !object.contains("messages") || !object["messages"].is_array()) {
      throw Error("the conversation must be a JSON object with a list of messages");
    }
    ChatInput chat;
    chat.messages = std::move(object["messages"]);
    if (object.contains("tools")) chat.tools = std::move(object["tools"]);
    if (object.contains("add_generation_prompt")) {
      if (!object["add_generation_prompt"].is_boolean())
        throw Error("add_generation_prompt must be true or false");
      chat.add_generation_prompt = object["add_generation_prompt"].get<bool>();
    }
    for (auto& [key, value] : object.items()) {
      if (key != "messages" && key != "tools" && key != "add_generation_prompt") chat.extra[key] = value;
    }
    std::cout << chat_template->render(chat).text;
  }
};

}  // namespace

void add_template(CLI::App& app) {
  auto command = std::make_shared<TemplateCommand>();
  CLI::App* render = app.add_subcommand("template", "a conversation as the text the model will see");
  command->model.add_to(*render);
  render
      ->add_option("file", command->file, "{messages, tools, add_generation_prompt} as JSON, or - for stdin")
      ->capture_default_str();
  render->callback([command] { (*command)(); });
}

}  // namespace quire::cli
