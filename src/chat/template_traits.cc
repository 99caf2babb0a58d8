#include <algorithm>
#include <optional>

#include "base/error.h"
#include "chat/chat_format.h"
#include "chat/declared_form.h"
#include "chat/derive_calls.h"
#include "chat/written_call.h"

namespace quire {
namespace {

using View = std::string_view;
using S = Sentinels;

// What a template makes of a conversation, behind its first message; nothing if it refuses it.
class Probe {
 public:
  explicit Probe(const ChatTemplate& chat_template) : chat_template_(chat_template) {}

  std::optional<std::string> render(OrderedJson messages, bool tools, bool prompt = false) const {
    ChatInput input;
    input.messages = OrderedJson::array();
    input.messages.push_back({{"role", "user"}, {"content", S::kUser}});
    for (OrderedJson& message : messages) input.messages.push_back(std::move(message));
    if (tools) input.tools = S::tools();
    input.add_generation_prompt = prompt;
    try {
      return chat_template_.render(input).text;
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  bool takes_system() const {
    ChatInput input;
    input.messages = OrderedJson::array();
    input.messages.push_back({{"role", "system"}, {"content", S::kText}});
    input.messages.push_back({{"role", "user"}, {"content", S::kUser}});
    try {
      return chat_template_.render(input).text.find(S::kText) != std::string::npos;
    } catch (const Error&) {
      return false;
    }
  }
  std::optional<std::string> behind_user(OrderedJson messages, bool tools, bool prompt = false) const {
    auto text = render(std::move(messages), tools, prompt);
    if (!text) return std::nullopt;
    const size_t user = text->find(S::kUser);
    if (user == std::string::npos) return std::nullopt;
    return text->substr(user + S::kUser.size());
  }

 private:
  const ChatTemplate& chat_template_;
};

OrderedJson assistant(View text, View reasoning = {}) {
  OrderedJson message = {{"role", "assistant"}, {"content", text}};
  if (!reasoning.empty()) message["reasoning_content"] = message["reasoning"] = reasoning;
  return message;
}

OrderedJson calling(uint32_t calls, TemplateTraits::Arguments form, bool names_in_ids) {
  OrderedJson message = assistant("");
  message["tool_calls"] = OrderedJson::array();
  for (uint32_t i = 0; i < calls; ++i) {
    OrderedJson function = {{"name", S::kName}};
    function["arguments"] =
        form == TemplateTraits::Arguments::object ? S::arguments() : OrderedJson(S::arguments().dump());
    OrderedJson call = {
        {"id", names_in_ids ? "functions." + std::string(S::kName) + ":" + std::to_string(i) : S::id(i)},
        {"type", "function"}};
    call["function"] = std::move(function);
    message["tool_calls"].push_back(std::move(call));
  }
  return message;
}

bool holds(const std::optional<std::string>& text, View word) {
  return text && text->find(word) != std::string::npos;
}

size_t shared_prefix(View a, View b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

// Where the assistant's own words begin in `text`: behind what the template writes to open its turn, and behind reasoning.
size_t turn_begin(View text, View prompt, const ResponseTemplate& known) {
  size_t begin = shared_prefix(text, prompt);
  if (begin < prompt.size()) {  // the turn was opened in another way: back to where a marker ended
    while (begin > 0 && text[begin - 1] != '\n' && text[begin - 1] != '>' && text[begin - 1] != ']' &&
           text[begin - 1] != ':')
      --begin;
  }
  const size_t name = text.find(S::kName, begin);
  const auto skip = [&](View literal) {
    const size_t at =
        literal.empty() ? View::npos : text.rfind(literal, name == View::npos ? View::npos : name);
    if (at != View::npos && at >= begin && at + literal.size() <= name) begin = at + literal.size();
  };
  for (const ReasoningForm& form : known.reasoning) skip(form.close);
  for (const std::string& literal : known.silent) {
    if (literal != "<|tool_calls|>" && literal != "<|python_tag|>") skip(literal);
  }
  skip("<|CHATBOT_TOKEN|>");
  if (known.channels) {  // behind the header, which names the tool too
    constexpr View kHeaderEnd = "<|message|>";
    const size_t at = text.find(kHeaderEnd, begin);
    if (at != View::npos) begin = at + kHeaderEnd.size();
  }
  return begin;
}

struct Found {
  CallForm form;
  TemplateTraits::Arguments arguments = TemplateTraits::Arguments::object;
};

// The form of calls, by the rendering that tells most.
std::optional<Found> find_calls(const Probe& probe, const ResponseTemplate& known) {
  using Arguments = TemplateTraits::Arguments;
  const std::string prompt = probe.behind_user(OrderedJson::array(), true, true).value_or("");
  std::string end;
  if (const auto text = probe.behind_user(OrderedJson::array({assistant(S::kText)}), false)) {
    const size_t at = text->find(S::kText);
    if (at != std::string::npos) end = text->substr(at + S::kText.size());
  }
  for (const Arguments arguments : {Arguments::object, Arguments::text}) {
    for (const bool names_in_ids : {false, true}) {
      for (const uint32_t calls : {2u, 1u}) {
        if (known.channels && calls == 2) continue;  // each is a message of its own
        const auto text =
            probe.behind_user(OrderedJson::array({calling(calls, arguments, names_in_ids)}), true);
        if (!text) continue;
        const size_t begin = turn_begin(*text, prompt, known);
        if (auto form = derive_call_form(View(*text).substr(begin), end, known.silent))
          return Found{std::move(*form), arguments};
      }
    }
  }
  return std::nullopt;
}

// Which form of arguments a template writes as JSON, where no rule of reading them was found.
TemplateTraits::Arguments arguments_by_look(const Probe& probe) {
  using Arguments = TemplateTraits::Arguments;
  for (const Arguments arguments : {Arguments::object, Arguments::text}) {
    const auto text = probe.behind_user(OrderedJson::array({calling(1, arguments, false)}), true);
    if (holds(text, S::kValueA) && !holds(text, "\\\"" + std::string(S::kKeyA)) &&
        !holds(text, "'" + std::string(S::kKeyA)))
      return arguments;
  }
  return Arguments::object;
}

// How reasoning is marked, if a template writes it in a way of its own.
std::optional<ReasoningForm> find_reasoning(const Probe& probe, const ResponseTemplate& known) {
  if (!known.reasoning.empty() || known.channels) return std::nullopt;
  const auto text = probe.behind_user(OrderedJson::array({assistant(S::kText, S::kReasoning)}), false);
  const auto prompt = probe.behind_user(OrderedJson::array(), false, true);
  if (!holds(text, S::kReasoning) || !prompt) return std::nullopt;
  const size_t thought = text->find(S::kReasoning), after = thought + S::kReasoning.size();
  const size_t said = text->find(S::kText, after);
  if (said == std::string::npos) return std::nullopt;
  const auto bare = [](View literal) {
    const size_t begin = literal.find_first_not_of(" \n\t\r");
    return begin == View::npos ? View()
                               : literal.substr(begin, literal.find_last_not_of(" \n\t\r") + 1 - begin);
  };
  size_t begin = shared_prefix(*text, *prompt);
  if (begin >= thought) begin = prompt->rfind('\n', thought) + 1;
  ReasoningForm form{std::string(bare(View(*text).substr(begin, thought - begin))),
                     std::string(bare(View(*text).substr(after, said - after)))};
  constexpr size_t kMost = 64;
  if (form.open.empty() || form.close.empty() || form.open.size() > kMost || form.close.size() > kMost)
    return std::nullopt;
  return form;
}

}  // namespace

TemplateTraits find_traits(const ChatTemplate& chat_template) {
  const Probe probe(chat_template);
  TemplateTraits traits;
  // Some templates put their markers together from pieces: what they write spells them whole.
  std::string spelled = chat_template.source();
  for (const bool prompt : {false, true}) {
    OrderedJson said = OrderedJson::array();
    if (!prompt) said.push_back(assistant(S::kText, S::kReasoning));
    spelled += "\n" + probe.behind_user(std::move(said), false, prompt).value_or("");
  }
  ResponseTemplate known = known_markers(spelled);
  traits.lists_tools = holds(probe.render(OrderedJson::array(), true, true), S::kName);
  const OrderedJson result = {
      {"role", "tool"}, {"tool_call_id", S::id(0)}, {"name", S::kName}, {"content", S::kResult}};
  const auto found = find_calls(probe, known);
  traits.arguments = found ? found->arguments : arguments_by_look(probe);
  traits.writes_calls =
      holds(probe.behind_user(OrderedJson::array({calling(1, traits.arguments, false)}), true), S::kValueA);
  traits.writes_results =
      holds(probe.behind_user(OrderedJson::array({calling(1, traits.arguments, false), result}), true, true),
            S::kResult);

  traits.takes_system = probe.takes_system();

  ResponseTemplate& response = traits.response = known;
  if (found) {
    response.source = ResponseTemplate::Source::derived;
    response.calls = {found->form};
    // What other models of the family write behind the same marker.
    for (CallForm& other : known.calls) {
      const bool alike = call_trigger(other, false) == call_trigger(found->form, false);
      if (alike && other != found->form) response.calls.push_back(std::move(other));
    }
  } else if (response.calls.empty() && !response.channels) {
    response.source = ResponseTemplate::Source::generic;
  }
  // What the generic prompt asks for.
  const bool asks =
      !traits.lists_tools && std::ranges::find(response.calls, hermes_form()) == response.calls.end();
  if (asks || response.source == ResponseTemplate::Source::generic) response.calls.push_back(hermes_form());
  if (const auto reasoning = find_reasoning(probe, known)) response.reasoning.push_back(*reasoning);
  // A marker of calls is no mere sign.
  std::erase_if(response.silent, [&](const std::string& literal) {
    return std::ranges::any_of(response.calls, [&](const CallForm& form) {
      return form.section_open == literal || form.section_close == literal ||
             form.open.starts_with(literal) || form.close.find(literal) != std::string::npos;
    });
  });
  if (!chat_template.response_source().empty()) {
    try {
      response.declared =
          std::make_shared<const DeclaredForm>(read_declared_form(chat_template.response_source()));
      response.source = ResponseTemplate::Source::declared;
      // Calls can be forced in a form that it reads.
      std::erase_if(response.calls, [&](const CallForm& form) {
        ResponseOptions options{.types = ArgumentTypes(S::tools())};
        const auto calls = parse_response(response, std::move(options), written_call(form)).calls;
        return calls.size() != 1 || calls[0].name != S::kName ||
               parse_ordered_json(calls[0].arguments, "a call") != S::arguments();
      });
    } catch (const Error& error) {
      traits.declared_problem = error.what();
    }
  }
  return traits;
}

}  // namespace quire
