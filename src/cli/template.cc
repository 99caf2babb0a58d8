#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "chat/chat_format.h"
#include "cli/commands.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

constexpr const char* kOwnFields[] = {"messages", "tools", "add_generation_prompt", "chat_template_kwargs",
                                      "output"};

struct TemplateCommand {
  ModelChoice model;
  std::string file = "-";
  bool parse = false, form = false;

  void operator()() const {
    const auto chat_template = load_chat_template(model.path());
    if (!chat_template) throw Error("{} has no chat template", model.path());
    if (form) return print_form(*chat_template);
    const OrderedJson object = parse_ordered_json(read_text(file), file == "-" ? "stdin" : file);
    const ChatInput chat = conversation(object);
    if (parse) {
      print_parsed(*chat_template, chat, object);
    } else {
      std::cout << chat_template->render(chat).text;
    }
  }

  // How answers are read, and by whom that is known.
  static void print_form(const ChatTemplate& chat_template) {
    const TemplateTraits traits = find_traits(chat_template);
    const ResponseTemplate& response = traits.response;
    static constexpr const char* kBodies[] = {"json", "name and json", "tags", "loose", "python"};
    OrderedJson calls = OrderedJson::array(), reasoning = OrderedJson::array();
    for (const CallForm& call : response.calls)
      calls.push_back({{"body", kBodies[size_t(call.body)]},
                       {"begins", call.section_open + call.open},
                       {"ends", call.close + call.section_close}});
    for (const ReasoningForm& one : response.reasoning) reasoning.push_back({one.open, one.close});
    const OrderedJson json = {
        {"source", name(response.source)},         {"calls", std::move(calls)},
        {"reasoning", std::move(reasoning)},       {"channels", response.channels},
        {"lists_tools", traits.lists_tools},       {"writes_calls", traits.writes_calls},
        {"writes_results", traits.writes_results}, {"problem", traits.declared_problem}};
    std::cout << json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  }

  static ChatInput conversation(const OrderedJson& object) {
    if (!object.is_object() || !object.contains("messages") || !object["messages"].is_array()) {
      throw Error("the conversation must be a JSON object with a list of messages");
    }
    ChatInput chat;
    chat.messages = object["messages"];
    if (object.contains("tools")) chat.tools = object["tools"];
    if (object.contains("add_generation_prompt")) {
      if (!object["add_generation_prompt"].is_boolean())
        throw Error("add_generation_prompt must be true or false");
      chat.add_generation_prompt = object["add_generation_prompt"].get<bool>();
    }
    const auto add = [&](const std::string& key, const OrderedJson& value) {
      for (const char* own : kOwnFields) {
        if (key == own) return;
      }
      chat.extra[key] = value;
    };
    for (const auto& [key, value] : object.items()) add(key, value);
    const OrderedJson more = object.value("chat_template_kwargs", OrderedJson());
    if (!more.is_null() && !more.is_object()) throw Error("chat_template_kwargs must be an object");
    for (const auto& [key, value] : more.items()) add(key, value);
    return chat;
  }

  static void print_parsed(const ChatTemplate& chat_template, const ChatInput& chat,
                           const OrderedJson& object) {
    if (!object.contains("output") || !object["output"].is_string())
      throw Error("--parse needs \"output\": the text that the model wrote");
    const ChatFormat format(chat_template);
    if (!format.traits().declared_problem.empty())
      std::cerr << "quire: note: the model's response_template is not used: "
                << format.traits().declared_problem << "\n";
    ResponseOptions options;
    options.start = format.start_after(chat_template.render(format.adapted(chat)));
    options.types = ArgumentTypes(chat.tools);
    const WholeOutput output =
        parse_response(format.traits().response, std::move(options), object["output"].get<std::string>());
    OrderedJson calls = OrderedJson::array();
    for (const ToolCall& call : output.calls)
      calls.push_back({{"name", call.name}, {"arguments", parse_ordered_json(call.arguments, "a call")}});
    const OrderedJson message = {
        {"content", output.text}, {"reasoning_content", output.reasoning}, {"tool_calls", std::move(calls)}};
    std::cout << message.dump() << "\n";
  }
};

}  // namespace

void add_template(CLI::App& app) {
  auto command = std::make_shared<TemplateCommand>();
  CLI::App* render = app.add_subcommand("template", "a conversation as the text the model will see");
  command->model.add_to(*render);
  render
      ->add_option("file", command->file,
                   "{messages, tools, chat_template_kwargs, add_generation_prompt} as JSON, or - for stdin")
      ->capture_default_str();
  render->add_flag(
      "--parse", command->parse,
      "the other way: what \"output\", which the model wrote after the conversation, says, as JSON");
  render->add_flag(
      "--form", command->form,
      "how answers are read: by the model's own response_template, by a form derived from its chat "
      "template, or by one that is built in");
  render->callback([command] { (*command)(); });
}

}  // namespace quire::cli
