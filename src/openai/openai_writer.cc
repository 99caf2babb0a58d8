#include "openai/openai_writer.h"

#include <fmt/format.h>

#include "base/random_bytes.h"

namespace quire {
namespace {

std::string_view finish_name(const AnswerEnd& end) {
  return end.called && end.reason == FinishReason::stop ? "tool_calls" : name(end.reason);
}

// One event of a chat's stream as what it adds to the message.
OrderedJson delta_of(const OutputEvent& event) {
  using Kind = OutputEvent::Kind;
  if (event.kind == Kind::text) return {{"content", event.text}};
  // Readers know it by either name.
  if (event.kind == Kind::reasoning) return {{"reasoning_content", event.text}, {"reasoning", event.text}};
  OrderedJson call = {{"index", event.call}};
  if (event.kind == Kind::call_begin) {
    call["id"] = new_call_id();
    call["type"] = "function";
    call["function"] = {{"name", event.text}, {"arguments", ""}};
  } else {
    call["function"] = OrderedJson{{"arguments", event.text}};
  }
  OrderedJson delta = OrderedJson::object();
  delta["tool_calls"] = OrderedJson::array({std::move(call)});
  return delta;
}

// As the proxies know it that send a prompt to one server and what follows to another: they copy it into the request to the second.
OrderedJson transfer_json(const std::optional<HandOver>& over) {
  if (!over) return nullptr;
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"remote_tokens", over->tokens},
          {"ticket", over->text()}};
}

std::string text_of(const AnswerPart& part) {
  std::string text;
  for (const OutputEvent& event : part.events) {
    if (event.kind == OutputEvent::Kind::text) text += event.text;
  }
  return text;
}

OrderedJson ids_of(const AnswerPart& part) {
  OrderedJson ids = OrderedJson::array();
  for (const TokenEvent& token : part.tokens) ids.push_back(token.token);
  return ids;
}

}  // namespace

std::string new_call_id() {
  std::string id = "call_";
  for (const std::byte byte : random_bytes<12>()) id += fmt::format("{:02x}", unsigned(byte));
  return id;
}

OpenAiWriter::OpenAiWriter(ResponseHead head, const Ask& ask, const Tokenizer& tokenizer)
    : head_(std::move(head)), ask_(ask), tokenizer_(tokenizer) {}

void OpenAiWriter::add(OrderedJson event, std::string& out) const {
  if (ask_.include_usage) event["usage"] = nullptr;
  out += sse_event(event);
}

OrderedJson OpenAiWriter::chunk(uint32_t choice, OrderedJson content, OrderedJson logprobs,
                                std::string_view finish) const {
  OrderedJson entry = {{"index", choice}};
  entry[head_.kind == AskKind::chat ? "delta" : "text"] = std::move(content);
  entry["logprobs"] = std::move(logprobs);
  entry["finish_reason"] = finish.empty() ? OrderedJson() : OrderedJson(finish);
  return response_body(head_, true, OrderedJson::array({std::move(entry)}));
}

void OpenAiWriter::begin(uint32_t choice, std::string& out) {
  if (head_.kind == AskKind::chat) {
    OrderedJson first = chunk(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, "");
    if (ask_.return_token_ids) first["prompt_token_ids"] = ask_.prompts[choice / ask_.choices];
    add(std::move(first), out);
  } else if (ask_.return_token_ids) {
    OrderedJson first = chunk(choice, "", nullptr, "");
    first["choices"][0]["prompt_token_ids"] = ask_.prompts[choice / ask_.choices];
    add(std::move(first), out);
  }
}

void OpenAiWriter::part(const AnswerPart& part, std::string& out) {
  OrderedJson logprobs = logprobs_json(head_.kind, part, ask_.request, tokenizer_);
  const auto send = [&](OrderedJson content) {
    OrderedJson event = chunk(part.choice, std::move(content), std::exchange(logprobs, nullptr), "");
    if (ask_.return_token_ids) event["choices"][0]["token_ids"] = ids_of(part);
    add(std::move(event), out);
  };
  if (head_.kind == AskKind::completion) return send(text_of(part));
  bool sent = false;
  for (const OutputEvent& event : part.events) {
    if (event.kind == OutputEvent::Kind::call_end) continue;
    if (!std::exchange(sent, true)) {
      send(delta_of(event));
    } else {  // the tokens are told of once
      add(chunk(part.choice, delta_of(event), nullptr, ""), out);
    }
  }
  if (!sent && !part.tokens.empty()) send({{"content", ""}});
}

void OpenAiWriter::end(uint32_t choice, const AnswerEnd& end, std::string& out) {
  OrderedJson nothing = "";
  if (head_.kind == AskKind::chat) nothing = OrderedJson::object();
  add(chunk(choice, std::move(nothing), nullptr, finish_name(end)), out);
}

void OpenAiWriter::done(const Usage& usage, const OrderedJson& report, std::string& out) {
  if (ask_.include_usage || !report.is_null()) {
    OrderedJson last = response_body(head_, true, OrderedJson::array());
    last["usage"] = usage_json(usage);
    if (!report.is_null()) last["quire"] = report;
    out += sse_event(last);
  }
  out += kSseDone;
}

void OpenAiWriter::failed(const ApiError& error, std::string& out) {
  out += sse_event(error.json());
  out += kSseDone;
}

OrderedJson OpenAiWriter::message(const AnswerPart& part) {
  WholeOutput output;
  for (const OutputEvent& event : part.events) output.add(event);
  OrderedJson message = {{"role", "assistant"}, {"content", output.text}, {"refusal", nullptr}};
  if (output.text.empty() && !output.calls.empty()) message["content"] = nullptr;
  if (!output.reasoning.empty()) message["reasoning_content"] = message["reasoning"] = output.reasoning;
  if (output.calls.empty()) return message;
  message["tool_calls"] = OrderedJson::array();
  for (const ToolCall& call : output.calls) {
    OrderedJson json = {{"id", new_call_id()}, {"type", "function"}};
    json["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    message["tool_calls"].push_back(std::move(json));
  }
  return message;
}

OrderedJson OpenAiWriter::whole(std::vector<WholeAnswer> answers, const Usage& usage,
                                const OrderedJson& report) {
  OrderedJson choices = OrderedJson::array();
  for (const WholeAnswer& answer : answers) {
    OrderedJson entry = {{"index", answer.part.choice}};
    if (head_.kind == AskKind::chat) {
      entry["message"] = message(answer.part);
    } else {
      entry["text"] = text_of(answer.part);
    }
    entry["logprobs"] = logprobs_json(head_.kind, answer.part, ask_.request, tokenizer_);
    entry["finish_reason"] = finish_name(answer.end);
    if (ask_.return_token_ids) {
      if (head_.kind == AskKind::completion)
        entry["prompt_token_ids"] = ask_.prompts[answer.part.choice / ask_.choices];
      entry["token_ids"] = ids_of(answer.part);
    }
    choices.push_back(std::move(entry));
  }
  OrderedJson response = response_body(head_, false, std::move(choices));
  if (ask_.return_token_ids && head_.kind == AskKind::chat) response["prompt_token_ids"] = ask_.prompts[0];
  response["usage"] = usage_json(usage);
  if (ask_.request.hands_over) response["kv_transfer_params"] = transfer_json(answers.front().end.hand_over);
  if (!report.is_null()) response["quire"] = report;
  return response;
}

}  // namespace quire
