#include "wire/ollama_writer.h"

#include <chrono>
#include <ctime>

#include <fmt/format.h>

#include "base/error.h"

namespace quire {

std::string ollama_time(int64_t seconds_since_1970) {
  const std::time_t seconds = seconds_since_1970;
  std::tm time{};
  ::gmtime_r(&seconds, &time);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", time.tm_year + 1900, time.tm_mon + 1,
                     time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec);
}

OllamaWriter::OllamaWriter(ResponseHead head, const Ask& ask) : head_(std::move(head)), ask_(ask) {}

OrderedJson OllamaWriter::line(const WholeOutput& said) const {
  OrderedJson json = {{"model", head_.model}, {"created_at", ollama_time(head_.created)}};
  if (head_.kind == AskKind::completion) {
    json["response"] = said.text;
    if (!said.reasoning.empty()) json["thinking"] = said.reasoning;
    json["done"] = false;
    return json;
  }
  OrderedJson message = {{"role", "assistant"}, {"content", said.text}};
  if (!said.reasoning.empty()) message["thinking"] = said.reasoning;
  if (!said.calls.empty()) {
    message["tool_calls"] = OrderedJson::array();
    for (const ToolCall& call : said.calls) {
      OrderedJson function = {{"name", call.name}};
      function["arguments"] = parse_ordered_json(call.arguments, "a call's arguments");
      OrderedJson entry = OrderedJson::object();
      entry["id"] = new_call_id();
      entry["function"] = std::move(function);
      message["tool_calls"].push_back(std::move(entry));
    }
  }
  json["message"] = std::move(message);
  json["done"] = false;
  return json;
}

void OllamaWriter::add_end(OrderedJson& line, const Usage& usage) const {
  const auto nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count();
  line["done"] = true;
  line["done_reason"] = name(end_.reason);
  line["total_duration"] = nanoseconds;
  line["load_duration"] = 0;
  line["prompt_eval_count"] = usage.prompt_tokens;
  line["prompt_eval_duration"] = 0;
  line["eval_count"] = usage.answer_tokens;
  line["eval_duration"] = nanoseconds;
}

void OllamaWriter::begin(uint32_t, std::string&) {}

void OllamaWriter::part(const AnswerPart& part, std::string& out) {
  for (const OutputEvent& event : part.events) {
    WholeOutput said;
    switch (event.kind) {
      case OutputEvent::Kind::call_begin:
        call_ = {.id = {}, .name = event.text, .arguments = {}};
        continue;
      case OutputEvent::Kind::call_arguments:
        call_.arguments += event.text;
        continue;
      case OutputEvent::Kind::call_end:
        said.calls.push_back(call_);
        break;
      default:
        said.add(event);
    }
    out += dump(line(said)) + "\n";
  }
}

void OllamaWriter::end(uint32_t, const AnswerEnd& end, std::string&) {
  end_ = end;
}

void OllamaWriter::done(const Usage& usage, const OrderedJson&, std::string& out) {
  OrderedJson last = line({});
  add_end(last, usage);
  out += dump(last) + "\n";
}

void OllamaWriter::failed(const ApiError& error, std::string& out) {
  out += dump(OrderedJson{{"error", error.what()}}) + "\n";
}

OrderedJson OllamaWriter::whole(std::vector<WholeAnswer> answers, const Usage& usage, const OrderedJson&) {
  end_ = answers.at(0).end;
  WholeOutput said;
  for (const OutputEvent& event : answers[0].part.events) said.add(event);
  OrderedJson json = line(said);
  add_end(json, usage);
  return json;
}

}  // namespace quire
