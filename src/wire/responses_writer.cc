#include "wire/responses_writer.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/random_bytes.h"
#include "wire/responses_turn.h"

namespace quire {
namespace {

using ItemKind = OutputEvent::Kind;

std::string new_item_id(std::string id) {
  for (const std::byte byte : random_bytes<16>()) id += fmt::format("{:02x}", unsigned(byte));
  return id;
}

OrderedJson text_part(ItemKind kind, const std::string& text) {
  if (kind == ItemKind::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
  OrderedJson part = {{"type", "output_text"}, {"text", text}};
  part["annotations"] = OrderedJson::array();
  part["logprobs"] = OrderedJson::array();
  return part;
}

// A call that begins, of a tool as its client knows it.
OrderedJson new_call_item(const ResponsesTool& tool) {
  OrderedJson item = {{"id", new_item_id(tool.custom ? "ctc_" : "fc_")},
                      {"type", tool.custom ? "custom_tool_call" : "function_call"},
                      {"status", "in_progress"},
                      {"call_id", new_call_id()},
                      {"name", tool.name}};
  if (!tool.space.empty()) item["namespace"] = tool.space;
  item[tool.custom ? "input" : "arguments"] = "";
  return item;
}

// Anything else that begins.
OrderedJson new_item(ItemKind kind) {
  OrderedJson item;
  if (kind == ItemKind::reasoning) {
    item = {{"id", new_item_id("rs_")}, {"type", "reasoning"}, {"status", "in_progress"}};
    item["summary"] = OrderedJson::array();
  } else {
    item = {
        {"id", new_item_id("msg_")}, {"type", "message"}, {"status", "in_progress"}, {"role", "assistant"}};
  }
  item["content"] = OrderedJson::array();
  return item;
}

const char* event_prefix(ItemKind kind) {
  return kind == ItemKind::reasoning ? "response.reasoning_text" : "response.output_text";
}

}  // namespace

ResponsesWriter::ResponsesWriter(ResponseHead head, const Ask& ask, const Tokenizer& tokenizer)
    : head_(std::move(head)), ask_(ask), tokenizer_(tokenizer) {}

OrderedJson ResponsesWriter::response(const char* status) const {
  OrderedJson json = {{"id", head_.id},   {"object", "response"}, {"created_at", head_.created},
                      {"status", status}, {"error", nullptr},     {"incomplete_details", nullptr}};
  json["model"] = head_.model;
  json["output"] = OrderedJson::array();
  json["usage"] = nullptr;
  json.update(ask_.turn->fields);
  return json;
}

// The reasoning's share is counted by its text: the markers around it belong to nobody.
OrderedJson ResponsesWriter::usage_of(const Usage& usage) const {
  uint64_t reasoning = 0;
  for (const OrderedJson& item : output_) {
    if (item["type"] != "reasoning") continue;
    for (const OrderedJson& part : item["content"])
      reasoning +=
          tokenizer_.encode(part["text"].get_ref<const std::string&>(), {.add_special = false}).size();
  }
  OrderedJson json = {{"input_tokens", usage.prompt_tokens}};
  json["input_tokens_details"] = OrderedJson{{"cached_tokens", usage.cached_tokens}};
  json["output_tokens"] = usage.answer_tokens;
  json["output_tokens_details"] = OrderedJson{{"reasoning_tokens", std::min(reasoning, usage.answer_tokens)}};
  json["total_tokens"] = usage.prompt_tokens + usage.answer_tokens;
  return json;
}

OrderedJson ResponsesWriter::complete(const Usage& usage) const {
  OrderedJson json = response(cut_off() ? "incomplete" : "completed");
  if (cut_off()) json["incomplete_details"] = OrderedJson{{"reason", "max_output_tokens"}};
  json["completed_at"] = seconds_since_1970();
  json["output"] = output_;
  json["usage"] = usage_of(usage);
  return json;
}

void ResponsesWriter::keep(const OrderedJson& response) const {
  ResponsesTurn& turn = *ask_.turn;
  if (!turn.keep) return;
  for (const OrderedJson& item : output_) turn.items.push_back(item);
  turn.keep(head_.id, dump(response), dump(turn.items));
}

void ResponsesWriter::say(const char* type, OrderedJson data, std::string& out) {
  OrderedJson event = {{"type", type}, {"sequence_number", next_++}};
  event.update(data);
  out += fmt::format("event: {}\ndata: {}\n\n", type, dump(event));
}

OrderedJson ResponsesWriter::place(const char* field, OrderedJson value) const {
  OrderedJson json = {{"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}};
  json[field] = std::move(value);
  return json;
}

OrderedJson ResponsesWriter::place_in_content(const char* field, OrderedJson value) const {
  OrderedJson json = place(field, std::move(value));
  json["content_index"] = 0;
  return json;
}

std::string& ResponsesWriter::open_text() {
  return output_.back()["content"][0]["text"].get_ref<std::string&>();
}

void ResponsesWriter::begin(uint32_t, std::string& out) {
  for (const char* type : {"response.created", "response.in_progress"}) {
    OrderedJson data = OrderedJson::object();
    data["response"] = response("in_progress");
    say(type, std::move(data), out);
  }
}

void ResponsesWriter::open_item(ItemKind kind, const std::string& name, std::string& out) {
  close_item(out);
  open_ = kind;
  answered_ = answered_ || kind != ItemKind::reasoning;
  if (kind == ItemKind::call_begin) {
    const auto known = ask_.turn->tools.find(name);
    output_.push_back(new_call_item(
        known != ask_.turn->tools.end() ? known->second : ResponsesTool{.name = name, .space = {}}));
    arguments_.clear();
  } else {
    output_.push_back(new_item(kind));
  }
  OrderedJson data = {{"output_index", output_.size() - 1}};
  data["item"] = output_.back();
  say("response.output_item.added", std::move(data), out);
  if (kind == ItemKind::call_begin) return;
  output_.back()["content"].push_back(text_part(kind, ""));
  say("response.content_part.added", place_in_content("part", text_part(kind, "")), out);
}

void ResponsesWriter::add_text(ItemKind kind, const std::string& text, std::string& out) {
  if (open_ != kind) open_item(kind, "", out);
  open_text() += text;
  OrderedJson data = place_in_content("delta", text);
  if (kind == ItemKind::text) data["logprobs"] = OrderedJson::array();
  say(kind == ItemKind::text ? "response.output_text.delta" : "response.reasoning_text.delta",
      std::move(data), out);
}

void ResponsesWriter::add_arguments(const std::string& text, std::string& out) {
  arguments_ += text;
  if (output_.back()["type"] == "custom_tool_call") return;  // what it says is known at its end
  output_.back()["arguments"].get_ref<std::string&>() += text;
  say("response.function_call_arguments.delta", place("delta", text), out);
}

void ResponsesWriter::close_item(std::string& out) {
  if (!open_) return;
  const ItemKind kind = *open_;
  open_.reset();
  // Only what was open when the answer ended can have been cut off.
  output_.back()["status"] = cut_off() ? "incomplete" : "completed";
  if (kind == ItemKind::call_begin && output_.back()["type"] == "custom_tool_call") {
    const std::string input = custom_input(arguments_);
    output_.back()["input"] = input;
    say("response.custom_tool_call_input.delta", place("delta", input), out);
    say("response.custom_tool_call_input.done", place("input", input), out);
  } else if (kind == ItemKind::call_begin) {
    OrderedJson data = place("arguments", output_.back()["arguments"]);
    data["name"] = output_.back()["name"];
    say("response.function_call_arguments.done", std::move(data), out);
  } else {
    OrderedJson data = place_in_content("text", open_text());
    if (kind == ItemKind::text) data["logprobs"] = OrderedJson::array();
    say(fmt::format("{}.done", event_prefix(kind)).c_str(), std::move(data), out);
    say("response.content_part.done", place_in_content("part", output_.back()["content"][0]), out);
  }
  OrderedJson data = {{"output_index", output_.size() - 1}};
  data["item"] = output_.back();
  say("response.output_item.done", std::move(data), out);
}

void ResponsesWriter::part(const AnswerPart& part, std::string& out) {
  for (const OutputEvent& event : part.events) {
    switch (event.kind) {
      case ItemKind::text:
      case ItemKind::reasoning:
        add_text(event.kind, event.text, out);
        break;
      case ItemKind::call_begin:
        open_item(event.kind, event.text, out);
        break;
      case ItemKind::call_arguments:
        add_arguments(event.text, out);
        break;
      case ItemKind::call_end:
        close_item(out);
        break;
    }
  }
}

void ResponsesWriter::end(uint32_t, const AnswerEnd& end, std::string& out) {
  end_ = end;
  close_item(out);
  if (answered_) return;
  open_item(ItemKind::text, "", out);  // an answer has a message, though it says nothing
  close_item(out);
}

void ResponsesWriter::done(const Usage& usage, const OrderedJson&, std::string& out) {
  OrderedJson data = OrderedJson::object();
  data["response"] = complete(usage);
  keep(data["response"]);
  say(cut_off() ? "response.incomplete" : "response.completed", std::move(data), out);
}

void ResponsesWriter::failed(const ApiError& error, std::string& out) {
  if (next_ == 0) begin(0, out);
  const OrderedJson said = error.json()["error"];
  OrderedJson data = OrderedJson::object();
  data["response"] = response("failed");
  data["response"]["output"] = output_;
  data["response"]["error"] = OrderedJson{{"code", "server_error"}, {"message", said["message"]}};
  say("response.failed", std::move(data), out);
}

OrderedJson ResponsesWriter::whole(std::vector<WholeAnswer> answers, const Usage& usage, const OrderedJson&) {
  const WholeAnswer& answer = answers.at(0);
  std::string unsent;
  part(answer.part, unsent);
  end(0, answer.end, unsent);
  OrderedJson json = complete(usage);
  keep(json);
  return json;
}

}  // namespace quire
