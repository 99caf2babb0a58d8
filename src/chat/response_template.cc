#include "chat/response_template.h"

#include <array>

#include "chat/declared_form.h"

namespace quire {
namespace {

// How models mark their reasoning. Where several fit, all are understood.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kReasoning = {{
    {"<think>", "</think>"},
    {"<seed:think>", "</seed:think>"},
    {"<mm:think>", "</mm:think>"},
    {"<think:opensource>", "</think:opensource>"},
    {"<thinking>", "</thinking>"},
    {"[THINK]", "[/THINK]"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|channel>thought", "<channel|>"},
    {"<|open|>think<|sep|>", "<|close|>think<|sep|>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
    {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
    {"Here is my thought process:", "Here is my response:"},
}};

// What says that the answer proper begins or ends.
constexpr std::string_view kSilent[] = {"<|START_RESPONSE|>",
                                        "<|END_RESPONSE|>",
                                        "<|START_TEXT|>",
                                        "<|END_TEXT|>",
                                        "<|open|>response<|sep|>",
                                        "<|close|>response<|sep|>",
                                        "<|close|>message<|sep|>",
                                        "<|end_of_msg|>",
                                        "[END FINAL RESPONSE]",
                                        "<|begin|>assistant",
                                        "<|content|>",
                                        "<|tool_calls|>",
                                        "<|calls|>",
                                        "<|python_tag|>",
                                        "<|eom_id|>"};

CallForm json_form(std::string open, std::string close) {
  return {.open = std::move(open), .close = std::move(close)};
}

}  // namespace

CallForm hermes_form() {
  return json_form("<tool_call>", "</tool_call>");
}

std::string_view name(ResponseTemplate::Source source) {
  switch (source) {
    case ResponseTemplate::Source::declared:
      return "the model's own";
    case ResponseTemplate::Source::derived:
      return "derived";
    case ResponseTemplate::Source::built_in:
      return "built in";
    case ResponseTemplate::Source::generic:
      return "generic";
  }
  return "";
}

std::vector<std::string> ResponseTemplate::literals() const {
  std::vector<std::string> all = silent;
  if (declared) all.insert(all.end(), declared->spelled.begin(), declared->spelled.end());
  for (const ReasoningForm& one : reasoning) {
    all.push_back(one.open);
    all.push_back(one.close);
  }
  for (const CallForm& call : calls) {
    for (const std::string& literal :
         {call.section_open, call.section_close, call.open, call.close, call.name_end, call.key_open,
          call.key_end, call.value_end, call.quote})
      all.push_back(literal);
  }
  if (channels) {
    for (const char* word : {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>",
                             "<|call|>", "<|return|>", "<|eom|>", "<|eot|>"})
      all.emplace_back(word);
  }
  return all;
}

ResponseTemplate known_markers(std::string_view source) {
  ResponseTemplate known;
  const auto spells = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  for (const auto& [open, close] : kReasoning) {
    // Some templates write only what closes it; a sentence alone says nothing.
    const bool sentence = open.find(' ') != std::string_view::npos;
    if (sentence ? spells(open) && spells(close) : spells(open) || spells(close))
      known.reasoning.push_back({std::string(open), std::string(close)});
  }
  if (spells("<|begin|>assistant") && spells("<|think|>")) {
    known.reasoning.push_back({"<|think|>", "<|end|>"});
    known.silent.emplace_back("<|end|>");
  }
  for (const std::string_view literal : kSilent) {
    if (spells(literal)) known.silent.emplace_back(literal);
  }
  known.channels = spells("<|start|>assistant") && spells("<|message|>");

  // Calls, for templates whose own cannot be found by rendering.
  if (spells("<tool_call>") && spells("<function=")) {
    known.calls.push_back({.body = CallForm::Body::tags,
                           .open = "<tool_call>\n<function=",
                           .close = ">\n</function>\n</tool_call>",
                           .name_end = "",
                           .key_open = ">\n<parameter=",
                           .key_end = ">",
                           .value_end = "</parameter",
                           .value_on_lines = true});
  } else if (spells("<tool_call>") && spells("<arg_key>")) {
    known.calls.push_back({.body = CallForm::Body::tags,
                           .open = "<tool_call>",
                           .close = "\n</tool_call>",
                           .key_open = "\n<arg_key>",
                           .key_end = "</arg_key>\n<arg_value>",
                           .value_end = "</arg_value>"});
  } else if (spells("<tool_call>")) {
    known.calls.push_back(hermes_form());
  }
  if (spells("<｜tool▁calls▁begin｜>")) {
    CallForm form{.body = CallForm::Body::named_json,
                  .section_open = "<｜tool▁calls▁begin｜>",
                  .section_close = "<｜tool▁calls▁end｜>",
                  .open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                  .close = "\n```<｜tool▁call▁end｜>",
                  .name_end = "\n```json\n"};
    known.calls.push_back(form);
    form.open = "<｜tool▁call▁begin｜>";
    form.name_end = "<｜tool▁sep｜>";
    form.close = "<｜tool▁call▁end｜>";
    known.calls.push_back(form);
  }
  if (spells("<|tool_calls_section_begin|>")) {
    CallForm form{.body = CallForm::Body::named_json,
                  .section_open = "<|tool_calls_section_begin|>",
                  .section_close = "<|tool_calls_section_end|>",
                  .open = "<|tool_call_begin|>functions.",
                  .close = "<|tool_call_end|>",
                  .name_end = ":\x02<|tool_call_argument_begin|>"};
    known.calls.push_back(form);
    form.open = "<|tool_call_begin|>";
    known.calls.push_back(form);
  }
  if (spells("[TOOL_CALLS]")) {
    known.calls.push_back(json_form("[TOOL_CALLS]", ""));
    known.calls.push_back({.body = CallForm::Body::named_json, .open = "[TOOL_CALLS]", .name_end = "[ARGS]"});
    known.calls.push_back(
        {.body = CallForm::Body::named_json, .open = "[TOOL_CALLS]", .name_end = "[CALL_ID]\x02[ARGS]"});
  }
  if (spells("<|tool_call_start|>"))
    known.calls.push_back(
        {.body = CallForm::Body::python, .open = "<|tool_call_start|>", .close = "<|tool_call_end|>"});
  if (spells("<|tool_list_start|>") && !spells("<|tool_call_start|>"))
    known.calls.push_back(
        {.body = CallForm::Body::python, .open = "<|tool_call_start|>", .close = "<|tool_call_end|>"});
  if (spells("<|tool_call|>")) known.calls.push_back(json_form("<|tool_call|>", ""));
  if (spells("functools")) known.calls.push_back(json_form("functools", ""));
  if (spells("<|python_tag|>") || (spells("<|start_header_id|>") && spells("\"parameters\"")))
    known.calls.push_back({.name_key = "name", .arguments_key = "parameters"});
  if (spells("<|function_call|>")) known.calls.push_back(json_form("<|function_call|>", ""));
  return known;
}

}  // namespace quire
