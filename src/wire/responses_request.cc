#include "wire/responses_request.h"

#include <algorithm>
#include <cmath>

#include "openai/answer_form.h"
#include "openai/api_error.h"
#include "openai/request_limits.h"
#include "wire/responses_items.h"
#include "wire/responses_turn.h"

namespace quire {
namespace {

constexpr size_t kMostMetadata = 16, kMostMetadataKey = 64, kMostMetadataValue = 512, kMostIncludes = 32;

bool says_nothing(const OrderedJson& value) {
  return value.is_null() || value == false || value == 0 ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

void refuse_what_responses_lack(const JsonFields& fields) {
  struct Field {
    const char* name;
    const char* what;
  };
  static constexpr Field kNotBuilt[] = {
      {"background", "answers that nobody waits for"},
      {"conversation", "conversations that the server keeps; previous_response_id goes on from a response"},
      {"prompt", "prompts that the server keeps"},
      {"context_management", "shortening a conversation"},
      {"max_tool_calls", "a bound on calls of tools that the server runs itself"},
      {"top_logprobs", "probabilities here; chat completions have them"},
  };
  for (const Field& field : kNotBuilt) {
    if (!says_nothing(fields.get(field.name))) not_built(field.name, field.what);
  }
  if (fields.text("truncation").value_or("disabled") != "disabled")
    not_built("truncation", "leaving out what does not fit");
  for (const std::string& wanted : fields.texts("include", kMostIncludes)) {
    // The others ask for more of what only tools of the server's own would say. Reasoning is not encrypted here: it is told.
    if (wanted == "message.output_text.logprobs")
      not_built("include", "probabilities here; chat completions have them");
  }
}

void add_known_tool(const std::string& name, const Conversation& conversation, ConstraintWish& wish) {
  const auto is_it = [&](const ToolSpec& tool) { return tool.name == name; };
  if (std::ranges::none_of(conversation.tools, is_it))
    bad_field("tool_choice", "'tool_choice' names '{}', which is none of the tools", name);
  wish.tools.push_back(name);
}

// As the model knows it.
std::string chosen_name(const JsonFields& choice) {
  const std::string name = choice.text("name").value_or(""), space = choice.text("namespace").value_or("");
  return space.empty() ? name : name_in_space(space, name);
}

// {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": ...}, ...]}
void read_allowed_tools(const JsonFields& choice, const Conversation& conversation, ConstraintWish& wish) {
  if (choice.text("mode").value_or("auto") != "required")
    not_built("tool_choice.mode", "letting a model choose among some of its tools; give it only those");
  const OrderedJson& tools = choice.get("tools");
  if (!tools.is_array() || tools.empty() || tools.size() > kMostTools)
    bad_field("tool_choice.tools", "'tool_choice.tools' must be a list of 1 to {} tools", kMostTools);
  for (const OrderedJson& tool : tools) {
    if (!tool.is_object()) bad_field("tool_choice.tools", "'tool_choice.tools' must hold objects");
    add_known_tool(chosen_name(JsonFields(tool, "tool_choice.tools.")), conversation, wish);
  }
}

ConstraintWish read_response_choice(const JsonFields& fields, const Conversation& conversation) {
  ConstraintWish wish{.kind = ConstraintWish::Kind::tool_call, .field = "tool_choice"};
  const OrderedJson& choice = fields.get("tool_choice");
  if (choice.is_null() || choice == "none" || choice == "auto") return {};
  if (choice == "required") {
    if (conversation.tools.empty())
      bad_field("tool_choice", "'tool_choice' is required, but there are no tools");
    for (const ToolSpec& tool : conversation.tools) wish.tools.push_back(tool.name);
    return wish;
  }
  if (!choice.is_object())
    bad_field("tool_choice", "'tool_choice' must be none, auto, required or name a function");
  const JsonFields named(choice, "tool_choice.");
  const std::string type = named.text("type").value_or("");
  if (type == "allowed_tools") {
    read_allowed_tools(named, conversation, wish);
  } else if (type == "function" || type == "custom") {
    add_known_tool(chosen_name(named), conversation, wish);
  } else {
    not_built("tool_choice.type", "choices other than functions, custom tools and allowed_tools");
  }
  return wish;
}

ConstraintWish read_text_format(const JsonFields& fields) {
  const auto text = fields.object("text");
  if (!text) return {};
  if (text->text("verbosity").value_or("medium") != "medium")
    not_built("text.verbosity", "answers of another length; say it in 'instructions'");
  const auto format = text->object("format");
  if (!format) return {};
  const std::string type = format->text("type").value_or("");
  if (type == "text") return {};
  ConstraintWish wish{.kind = ConstraintWish::Kind::any_json, .field = "text.format"};
  if (type == "json_object") return wish;
  if (type != "json_schema")
    bad_field("text.format.type", "'text.format.type' must be text, json_object or json_schema");
  wish.kind = ConstraintWish::Kind::json_schema;
  wish.schema = format->get("schema");
  return wish;
}

void read_response_reasoning(const JsonFields& fields, Conversation& conversation) {
  const auto reasoning = fields.object("reasoning");
  const auto effort = reasoning ? reasoning->text("effort") : std::nullopt;
  if (!effort) return;
  for (const char* known : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (*effort == known) return set_reasoning_effort(conversation, *effort);
  }
  bad_field("reasoning.effort",
            "'reasoning.effort' is '{}', but must be none, minimal, low, medium, high or xhigh", *effort);
}

// It is kept with the response.
OrderedJson read_metadata(const JsonFields& fields) {
  const OrderedJson& metadata = fields.get("metadata");
  if (metadata.is_null()) return OrderedJson::object();
  if (!metadata.is_object() || metadata.size() > kMostMetadata)
    bad_field("metadata", "'metadata' must be an object of at most {} texts", kMostMetadata);
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string() || key.size() > kMostMetadataKey ||
        value.get_ref<const std::string&>().size() > kMostMetadataValue)
      bad_field("metadata", "'metadata' must have texts of at most {} bytes under keys of at most {}",
                kMostMetadataValue, kMostMetadataKey);
  }
  return metadata;
}

OrderedJson or_else(const OrderedJson& value, OrderedJson usual) {
  return value.is_null() ? std::move(usual) : value;
}

// As a person would write it: 0.7, not 0.699999988.
double rounded(float value) {
  return std::round(double(value) * 1e6) / 1e6;
}

// What the response says of its request.
OrderedJson repeated_fields(const JsonFields& fields, const Ask& ask, bool store) {
  OrderedJson usual_text = OrderedJson::object();
  usual_text["format"] = OrderedJson{{"type", "text"}};
  OrderedJson reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  if (const auto given = fields.object("reasoning")) reasoning["effort"] = given->get("effort");
  OrderedJson json = {{"background", false},
                      {"instructions", fields.get("instructions")},
                      {"max_output_tokens", fields.get("max_output_tokens")},
                      {"max_tool_calls", nullptr},
                      {"metadata", read_metadata(fields)},
                      {"parallel_tool_calls", !ask.one_call},
                      {"previous_response_id", fields.get("previous_response_id")},
                      {"prompt_cache_key", fields.get("prompt_cache_key")},
                      {"safety_identifier", fields.get("safety_identifier")},
                      {"service_tier", "default"},
                      {"store", store},
                      {"temperature", rounded(ask.request.sampling.temperature)},
                      {"tool_choice", or_else(fields.get("tool_choice"), "auto")},
                      {"top_logprobs", 0},
                      {"top_p", rounded(ask.request.sampling.top_p)},
                      {"truncation", "disabled"},
                      {"user", fields.get("user")}};
  json["reasoning"] = std::move(reasoning);
  json["text"] = or_else(fields.get("text"), std::move(usual_text));
  json["tools"] = or_else(fields.get("tools"), OrderedJson::array());
  return json;
}

void read_response_limits(const JsonFields& fields, Ask& ask) {
  Request& request = ask.request;
  if (const auto most = fields.integer("max_output_tokens", 1, INT32_MAX))
    request.max_tokens = uint32_t(*most);
  if (const auto value = fields.number("temperature", 0, 2)) request.sampling.temperature = float(*value);
  if (const auto value = fields.number("top_p", 0, 1))
    request.sampling.top_p = std::max(float(*value), 1e-6f);
  if (const auto value = fields.integer("top_k", -1, INT32_MAX))
    request.sampling.top_k = uint32_t(std::max<int64_t>(*value, 0));
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) request.sampling.seed = uint64_t(*seed);
  ask.stream = fields.boolean("stream").value_or(false);
  ask.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  for (const char* field : {"prompt_cache_key", "safety_identifier", "user", "previous_response_id"}) {
    const auto text = fields.text(field);
    if (text && text->size() > kMostUserBytes)
      bad_field(field, "'{}' has {} bytes; at most {} are allowed", field, text->size(), kMostUserBytes);
  }
  request.client = fields.text("safety_identifier").value_or(fields.text("user").value_or(""));
}

OrderedJson all_items(const JsonFields& fields, const FindItems& find) {
  OrderedJson input = response_input_items(fields.get("input"));
  const auto previous = fields.text("previous_response_id");
  OrderedJson items = previous && !previous->empty() ? find(*previous) : OrderedJson::array();
  if (items.size() + input.size() > kMostMessages)
    bad_field("input", "the conversation has {} items; at most {} are allowed", items.size() + input.size(),
              kMostMessages);
  for (OrderedJson& item : input) items.push_back(std::move(item));
  return items;
}

// Some templates take a system message only at the beginning; what came later is then said by the user.
void set_response_conversation(Ask& ask, Conversation& conversation, bool calls, const ServedModel& model) {
  bool later = false;
  try {
    return set_conversation(ask, conversation, calls, model, "input");
  } catch (const ApiError&) {
    for (size_t i = 1; i < conversation.messages.size(); ++i) {
      if (conversation.messages[i].role != ChatMessage::Role::system) continue;
      conversation.messages[i].role = ChatMessage::Role::user;
      later = true;
    }
    if (!later) throw;
  }
  set_conversation(ask, conversation, calls, model, "input");
}

}  // namespace

Ask parse_responses(const OrderedJson& body, const ServedModel& model, const FindItems& find) {
  const JsonFields fields(body);
  check_model(fields, model);
  refuse_what_responses_lack(fields);
  Ask ask;
  ask.api = Api::responses;
  set_sampling_defaults(ask, model);
  read_response_limits(fields, ask);
  ask.cache_salt = parse_cache_salt(body);
  const auto turn = std::make_shared<ResponsesTurn>();
  turn->store = fields.boolean("store").value_or(true);
  turn->items = all_items(fields, find);

  Conversation conversation;
  if (const auto instructions = fields.text("instructions"); instructions && !instructions->empty())
    conversation.messages.push_back({.role = ChatMessage::Role::system, .text = *instructions});
  add_response_items(turn->items, "input", conversation);
  turn->tools = read_responses_tools(fields, conversation.tools);
  read_response_reasoning(fields, conversation);
  const ConstraintWish call = read_response_choice(fields, conversation), form = read_text_format(fields);
  if (call.kind != ConstraintWish::Kind::none && form.kind != ConstraintWish::Kind::none)
    bad_field("text.format", "'text.format' and 'tool_choice' cannot both say what the answer keeps to");
  const bool calls = !conversation.tools.empty() && fields.get("tool_choice") != "none";
  set_response_conversation(ask, conversation, calls, model);
  keep_to(call.kind != ConstraintWish::Kind::none ? call : form, conversation, model, ask);
  turn->fields = repeated_fields(fields, ask, turn->store);
  ask.turn = turn;
  return ask;
}

}  // namespace quire
