#include "wire/ollama_request.h"

#include <algorithm>
#include <ctime>

#include "openai/answer_form.h"
#include "openai/api_error.h"
#include "openai/chat_request.h"
#include "openai/request_limits.h"
#include "wire/ollama_writer.h"

namespace quire {
namespace {

void read_options(const JsonFields& fields, Ask& ask) {
  const auto options = fields.object("options");
  if (!options) return;
  SamplingOptions& sampling = ask.request.sampling;
  const auto read = [&](const char* field, float& value, double least, double most) {
    if (const auto given = options->number(field, least, most)) value = float(*given);
  };
  read("temperature", sampling.temperature, 0, 2);
  read("top_p", sampling.top_p, 0, 1);
  sampling.top_p = std::max(sampling.top_p, 1e-6f);
  read("min_p", sampling.min_p, 0, 1);
  read("typical_p", sampling.typical, 1e-6, 1);
  read("repeat_penalty", sampling.repetition_penalty, 1e-3, 100);
  read("presence_penalty", sampling.presence_penalty, -2, 2);
  read("frequency_penalty", sampling.frequency_penalty, -2, 2);
  if (const auto top_k = options->integer("top_k", -1, INT32_MAX))
    sampling.top_k = uint32_t(std::max<int64_t>(*top_k, 0));
  if (const auto seed = options->integer("seed", INT64_MIN, INT64_MAX)) sampling.seed = uint64_t(*seed);
  // Below 0: as long as it takes.
  if (const auto most = options->integer("num_predict", INT32_MIN, INT32_MAX))
    ask.request.max_tokens = uint32_t(std::max<int64_t>(*most, 0));
  ask.request.stop = options->texts("stop", kMostStops);
  for (const std::string& stop : ask.request.stop) {
    if (stop.empty() || stop.size() > kMostStopBytes)
      bad_field("options.stop", "'options.stop' must have texts of 1 to {} bytes", kMostStopBytes);
  }
}

void read_think(const JsonFields& fields, Conversation& conversation) {
  const OrderedJson& think = fields.get("think");
  if (think.is_null()) return;
  if (think.is_boolean()) {
    for (const char* variable : {"enable_thinking", "thinking"}) conversation.variables[variable] = think;
    return;
  }
  const std::string effort = *fields.text("think");
  if (effort != "low" && effort != "medium" && effort != "high" && effort != "max")
    bad_field("think", "'think' must be true, false, low, medium, high or max");
  set_reasoning_effort(conversation, effort);
}

ConstraintWish read_ollama_format(const JsonFields& fields) {
  const OrderedJson& format = fields.get("format");
  if (format.is_null() || format == "") return {};
  ConstraintWish wish{.kind = ConstraintWish::Kind::any_json, .field = "format"};
  if (format.is_object()) {
    wish.kind = ConstraintWish::Kind::json_schema;
    wish.schema = format;
  } else if (format != "json") {
    bad_field("format", "'format' must be json or a JSON schema");
  }
  return wish;
}

Ask common(const JsonFields& fields, const ServedModel& model) {
  Ask ask;
  ask.api = Api::ollama;
  set_sampling_defaults(ask, model);
  read_options(fields, ask);
  ask.stream = fields.boolean("stream").value_or(true);
  return ask;
}

std::vector<ToolCall> read_ollama_calls(const JsonFields& message, const std::string& place) {
  std::vector<ToolCall> calls;
  const OrderedJson& list = message.get("tool_calls");
  if (list.is_null()) return calls;
  if (!list.is_array() || list.size() > kMostCalls)
    bad_field(place + ".tool_calls", "'{}.tool_calls' must be a list of at most {} calls", place, kMostCalls);
  for (const OrderedJson& entry : list) {
    if (!entry.is_object()) bad_field(place + ".tool_calls", "'{}.tool_calls' must hold objects", place);
    const JsonFields call(entry, place + ".tool_calls.");
    const auto function = call.object("function");
    const auto name = function ? function->text("name") : std::nullopt;
    if (!name || name->empty())
      bad_field(place + ".tool_calls", "'{}.tool_calls' has a call without a name", place);
    const OrderedJson& arguments = function->get("arguments");
    calls.push_back({.id = call.text("id").value_or(""), .name = *name, .arguments = "{}"});
    if (arguments.is_object())
      calls.back().arguments = arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
  return calls;
}

ChatMessage read_ollama_message(const OrderedJson& json, size_t index) {
  using Role = ChatMessage::Role;
  const std::string place = fmt::format("messages[{}]", index);
  if (!json.is_object()) bad_field(place, "'{}' must be an object", place);
  const JsonFields fields(json, place + ".");
  const std::string role = fields.text("role").value_or("");
  ChatMessage message;
  if (role == "system") {
    message.role = Role::system;
  } else if (role == "user") {
    message.role = Role::user;
  } else if (role == "assistant") {
    message.role = Role::assistant;
  } else if (role == "tool") {
    message.role = Role::tool;
  } else {
    bad_field(place + ".role", "'{}.role' must be system, user, assistant or tool", place);
  }
  const OrderedJson& images = fields.get("images");
  if (!images.is_null() && !(images.is_array() && images.empty())) not_built(place + ".images", "images");
  message.text = fields.text("content").value_or("");
  message.calls = read_ollama_calls(fields, place);
  if (message.role == Role::assistant) message.reasoning = fields.text("thinking").value_or("");
  if (message.role == Role::tool) {
    message.name = fields.text("tool_name").value_or(fields.text("name").value_or(""));
    message.call_id = fields.text("tool_call_id").value_or("");
  }
  return message;
}

std::vector<ToolSpec> read_ollama_tools(const JsonFields& fields, const OrderedJson& body) {
  if (!fields.has("tools")) return {};
  // They are written as in OpenAI's API.
  OrderedJson alone = OrderedJson::object();
  alone["tools"] = body["tools"];
  alone["messages"] = OrderedJson::array({{{"role", "user"}, {"content", ""}}});
  return read_conversation(JsonFields(alone)).tools;
}

}  // namespace

void check_ollama_model(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  std::string wanted = fields.text("model").value_or(fields.text("name").value_or(""));
  constexpr std::string_view kLatest = ":latest";
  if (wanted.ends_with(kLatest) && wanted != model.name) wanted.resize(wanted.size() - kLatest.size());
  if (wanted.empty()) bad_field("model", "'model' is missing");
  if (wanted == model.name) return;
  throw ApiError(404, "model", "model_not_found",
                 fmt::format("the model '{}' is not served here; '{}' is", wanted, model.name));
}

Ask parse_ollama_chat(const OrderedJson& body, const ServedModel& model) {
  check_ollama_model(body, model);
  const JsonFields fields(body);
  Ask ask = common(fields, model);
  const OrderedJson& messages = fields.get("messages");
  if (!messages.is_array() || messages.empty() || messages.size() > kMostMessages)
    bad_field("messages", "'messages' must be a list of 1 to {} messages", kMostMessages);
  Conversation conversation;
  for (size_t i = 0; i < messages.size(); ++i)
    conversation.messages.push_back(read_ollama_message(messages[i], i));
  conversation.tools = read_ollama_tools(fields, body);
  read_think(fields, conversation);
  set_conversation(ask, conversation, !conversation.tools.empty(), model, "messages");
  keep_to(read_ollama_format(fields), conversation, model, ask);
  return ask;
}

Ask parse_ollama_generate(const OrderedJson& body, const ServedModel& model) {
  check_ollama_model(body, model);
  const JsonFields fields(body);
  Ask ask = common(fields, model);
  ask.kind = AskKind::completion;
  for (const char* field : {"suffix", "template", "context"}) {
    const OrderedJson& value = fields.get(field);
    if (!value.is_null() && value != "" && !(value.is_array() && value.empty()))
      not_built(field, "prompts of this form");
  }
  const OrderedJson& images = fields.get("images");
  if (!images.is_null() && !(images.is_array() && images.empty())) not_built("images", "images");
  const std::string prompt = fields.text("prompt").value_or("");
  if (fields.boolean("raw").value_or(false) || !model.format) {
    OrderedJson alone = OrderedJson::object();
    alone["prompt"] = prompt;
    set_prompt(ask, alone["prompt"], model);
    keep_to(read_ollama_format(fields), {}, model, ask);
    return ask;
  }
  Conversation conversation;
  if (const auto system = fields.text("system"); system && !system->empty())
    conversation.messages.push_back({.role = ChatMessage::Role::system, .text = *system});
  conversation.messages.push_back({.role = ChatMessage::Role::user, .text = prompt});
  read_think(fields, conversation);
  set_conversation(ask, conversation, false, model, "prompt");
  keep_to(read_ollama_format(fields), conversation, model, ask);
  return ask;
}

OrderedJson ollama_model_json(const ServedModel& model) {
  OrderedJson json = {{"name", model.name},
                      {"model", model.name},
                      {"modified_at", ollama_time(model.created)},
                      {"size", 0},
                      {"digest", ""}};
  json["details"] = {{"parent_model", ""},
                     {"format", "gguf"},
                     {"family", ""},
                     {"parameter_size", ""},
                     {"quantization_level", ""}};
  return json;
}

OrderedJson ollama_show_json(const ServedModel& model) {
  OrderedJson capabilities = OrderedJson::array({"completion"});
  if (model.pooling && *model.pooling != Pooling::rank) capabilities.push_back("embedding");
  if (model.format) {
    capabilities.push_back("tools");
    if (!model.format->traits().response.reasoning.empty() || model.format->traits().response.channels)
      capabilities.push_back("thinking");
  }
  OrderedJson json = {{"modelfile", ""},
                      {"parameters", ""},
                      {"template", model.text->template_sources.usual},
                      {"modified_at", ollama_time(model.created)}};
  json["details"] = ollama_model_json(model)["details"];
  OrderedJson figures = {{"general.architecture", "quire"},
                         {"quire.context_length", model.context},
                         {"quire.embedding_length", model.width}};
  json["model_info"] = std::move(figures);
  json["capabilities"] = std::move(capabilities);
  return json;
}

}  // namespace quire
