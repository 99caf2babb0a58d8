#include "wire/anthropic_writer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/random_bytes.h"

namespace quire {
namespace {

using Kind = OutputEvent::Kind;

std::string named_event(const char* name, OrderedJson data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, dump(data));
}

std::string tool_use_id() {
  std::string id = "toolu_";
  for (const std::byte byte : random_bytes<12>()) id += fmt::format("{:02x}", unsigned(byte));
  return id;
}

OrderedJson usage_of(const Usage& usage) {
  const uint64_t cached = std::min(usage.cached_tokens, usage.prompt_tokens);
  return {{"input_tokens", usage.prompt_tokens - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", usage.answer_tokens}};
}

const char* stop_reason(const AnswerEnd& end) {
  if (end.reason == FinishReason::length) return "max_tokens";
  if (!end.stop.empty()) return "stop_sequence";
  return end.called ? "tool_use" : "end_turn";
}

}  // namespace

OrderedJson anthropic_error(const ApiError& error) {
  const OrderedJson said = error.json()["error"];
  std::string type = said["type"].get<std::string>();
  if (error.status() == 413) type = "request_too_large";
  if (error.status() >= 500) type = error.status() == 503 ? "overloaded_error" : "api_error";
  OrderedJson inner = {{"type", type}, {"message", said["message"]}};
  OrderedJson json = {{"type", "error"}};
  json["error"] = std::move(inner);
  return json;
}

AnthropicWriter::AnthropicWriter(ResponseHead head, const Ask& ask) : head_(std::move(head)), ask_(ask) {}

OrderedJson AnthropicWriter::message(OrderedJson content, const Usage& usage, const AnswerEnd* end) const {
  OrderedJson json = {{"id", head_.id}, {"type", "message"}, {"role", "assistant"}, {"model", head_.model}};
  json["content"] = std::move(content);
  json["stop_reason"] = end == nullptr ? OrderedJson() : OrderedJson(stop_reason(*end));
  json["stop_sequence"] = end == nullptr || end->stop.empty() ? OrderedJson() : OrderedJson(end->stop);
  json["usage"] = usage_of(usage);
  return json;
}

void AnthropicWriter::begin(uint32_t, std::string& out) {
  Usage usage;
  usage.prompt_tokens = ask_.prompts[0].size();
  OrderedJson start = {{"type", "message_start"}};
  start["message"] = message(OrderedJson::array(), usage, nullptr);
  out += named_event("message_start", std::move(start));
}

void AnthropicWriter::open_block(Kind kind, const std::string& name, std::string& out) {
  close_block(out);
  block_ = kind;
  OrderedJson block;
  if (kind == Kind::text) {
    block = {{"type", "text"}, {"text", ""}};
  } else if (kind == Kind::reasoning) {
    block = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  } else {
    block = {{"type", "tool_use"}, {"id", tool_use_id()}, {"name", name}};
    block["input"] = OrderedJson::object();
  }
  OrderedJson start = {{"type", "content_block_start"}, {"index", blocks_}};
  start["content_block"] = std::move(block);
  out += named_event("content_block_start", std::move(start));
}

void AnthropicWriter::add_delta(OrderedJson delta, std::string& out) const {
  OrderedJson event = {{"type", "content_block_delta"}, {"index", blocks_}};
  event["delta"] = std::move(delta);
  out += named_event("content_block_delta", std::move(event));
}

void AnthropicWriter::close_block(std::string& out) {
  if (!block_) return;
  if (*block_ == Kind::reasoning) add_delta({{"type", "signature_delta"}, {"signature", ""}}, out);
  block_.reset();
  out += named_event("content_block_stop", {{"type", "content_block_stop"}, {"index", blocks_++}});
}

void AnthropicWriter::part(const AnswerPart& part, std::string& out) {
  for (const OutputEvent& event : part.events) {
    switch (event.kind) {
      case Kind::text:
        if (block_ != Kind::text) open_block(Kind::text, "", out);
        add_delta({{"type", "text_delta"}, {"text", event.text}}, out);
        break;
      case Kind::reasoning:
        if (block_ != Kind::reasoning) open_block(Kind::reasoning, "", out);
        add_delta({{"type", "thinking_delta"}, {"thinking", event.text}}, out);
        break;
      case Kind::call_begin:
        open_block(Kind::call_begin, event.text, out);
        break;
      case Kind::call_arguments:
        add_delta({{"type", "input_json_delta"}, {"partial_json", event.text}}, out);
        break;
      case Kind::call_end:
        close_block(out);
        break;
    }
  }
}

void AnthropicWriter::end(uint32_t, const AnswerEnd& end, std::string& out) {
  close_block(out);
  end_ = end;
}

void AnthropicWriter::done(const Usage& usage, const OrderedJson&, std::string& out) {
  OrderedJson delta = {{"stop_reason", stop_reason(end_)}};
  delta["stop_sequence"] = end_.stop.empty() ? OrderedJson() : OrderedJson(end_.stop);
  OrderedJson event = {{"type", "message_delta"}};
  event["delta"] = std::move(delta);
  event["usage"] = usage_of(usage);
  out += named_event("message_delta", std::move(event));
  OrderedJson stop = OrderedJson::object();
  stop["type"] = "message_stop";
  out += named_event("message_stop", std::move(stop));
}

void AnthropicWriter::failed(const ApiError& error, std::string& out) {
  out += named_event("error", anthropic_error(error));
}

OrderedJson AnthropicWriter::whole(std::vector<WholeAnswer> answers, const Usage& usage, const OrderedJson&) {
  const WholeAnswer& answer = answers.at(0);
  WholeOutput output;
  for (const OutputEvent& event : answer.part.events) output.add(event);
  OrderedJson content = OrderedJson::array();
  if (!output.reasoning.empty())
    content.push_back({{"type", "thinking"}, {"thinking", output.reasoning}, {"signature", ""}});
  if (!output.text.empty() || output.calls.empty())
    content.push_back({{"type", "text"}, {"text", output.text}});
  for (const ToolCall& call : output.calls) {
    OrderedJson block = {{"type", "tool_use"}, {"id", tool_use_id()}, {"name", call.name}};
    block["input"] = parse_ordered_json(call.arguments, "a call's arguments");
    content.push_back(std::move(block));
  }
  return message(std::move(content), usage, &answer.end);
}

}  // namespace quire
