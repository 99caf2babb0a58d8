#include "openai/openai_request.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "base/error.h"
#include "engine/pruning/document.h"
#include "openai/answer_form.h"
#include "openai/api_error.h"
#include "openai/chat_request.h"
#include "openai/grammar_fields.h"
#include "openai/json_fields.h"
#include "openai/request_limits.h"

namespace quire {
namespace {

constexpr size_t kMostPrompts = 256, kMostStopTokens = 1024, kMostBiases = 1024, kMostSaltBytes = 256;
constexpr int64_t kMostChoices = 128, kMostTopLogprobs = 20;

bool is_empty(const OrderedJson& value) {
  return value.is_null() || value == false ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

// Known fields that would change the answer must not be ignored in silence.
void refuse_what_is_not_built(const JsonFields& fields) {
  struct Field {
    const char* name;
    const char* what;
  };
  static constexpr Field kNotBuilt[] = {
      {"functions", "calling functions as they were called before tools"},
      {"function_call", "calling functions as they were called before tools"},
      {"audio", "audio"},
      {"prediction", "predicted outputs"},
      {"web_search_options", "searching the web"},
      {"store", "storing answers"},
      {"suffix", "text after the answer"},
      {"prompt_logprobs", "the probabilities of a prompt"},
      {"use_beam_search", "beam search"},
      {"min_tokens", "a least number of tokens"},
      {"bad_words", "words that must not come"},
      {"allowed_token_ids", "a list of the only tokens"},
      {"truncate_prompt_tokens", "cutting a prompt"},
      {"include_stop_str_in_output", "the stop text in the answer"},
      {"chat_template", "a template of the request's own"},
      {"continue_final_message", "continuing a message"},
  };
  for (const Field& field : kNotBuilt) {
    if (!is_empty(fields.get(field.name)) && fields.get(field.name) != 0) not_built(field.name, field.what);
  }
  for (const std::string& modality : fields.texts("modalities", 8)) {
    if (modality != "text") not_built("modalities", "anything but text");
  }
}

void read_logit_bias(const JsonFields& fields, uint32_t vocab, SamplingOptions& sampling) {
  const OrderedJson& biases = fields.get("logit_bias");
  if (biases.is_null()) return;
  if (!biases.is_object())
    bad_field("logit_bias", "'logit_bias' must be an object from token ids to numbers");
  if (biases.size() > kMostBiases)
    bad_field("logit_bias", "'logit_bias' has {} tokens; at most {} are allowed", biases.size(), kMostBiases);
  for (const auto& [key, value] : biases.items()) {
    uint32_t token = 0;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (problem != std::errc() || end != key.data() + key.size() || token >= vocab)
      bad_field("logit_bias", "'logit_bias' has the key '{}', which is no token of this model", key);
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100))
      bad_field("logit_bias", "'logit_bias' of token {} must be a number from -100 to 100", token);
    sampling.logit_bias.emplace_back(token, value.get<float>());
  }
}

void read_sampling(const JsonFields& fields, const ServedModel& model, SamplingOptions& sampling) {
  const auto read = [&](const char* field, float& value, double least, double most) {
    if (const auto given = fields.number(field, least, most)) value = float(*given);
  };
  read("temperature", sampling.temperature, 0, 2);
  read("top_p", sampling.top_p, 0, 1);
  sampling.top_p = std::max(sampling.top_p, 1e-6f);  // 0 is the likeliest token alone
  read("min_p", sampling.min_p, 0, 1);
  read("typical_p", sampling.typical, 1e-6, 1);
  read("repetition_penalty", sampling.repetition_penalty, 1e-3, 100);
  read("presence_penalty", sampling.presence_penalty, -2, 2);
  read("frequency_penalty", sampling.frequency_penalty, -2, 2);
  if (const auto top_k = fields.integer("top_k", -1, INT32_MAX))
    sampling.top_k = uint32_t(std::max<int64_t>(*top_k, 0));
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) sampling.seed = uint64_t(*seed);
  read_logit_bias(fields, model.vocab, sampling);
}

std::string read_cache_salt(const JsonFields& fields) {
  const auto salt = fields.text("cache_salt");
  if (!salt) return "";
  if (salt->empty())
    bad_field("cache_salt", "'cache_salt' is empty: leave it out to share pages with all who bring none");
  if (salt->size() > kMostSaltBytes)
    bad_field("cache_salt", "'cache_salt' has {} bytes; at most {} are allowed", salt->size(),
              kMostSaltBytes);
  return *salt;
}

// What chats and completions have in common.
void read_pruning(const JsonFields& fields, const ServedModel& model, Ask& ask) {
  const OrderedJson& keep = fields.get("kv_keep");
  if (keep.is_null()) return;
  Request& request = ask.request;
  ask.chooses_kept = keep == "auto";
  if (ask.chooses_kept) {
    if (!model.choose_kept)
      bad_field("quire.kv_keep",
                "'quire.kv_keep' is 'auto', but this server was not started with --kv-keep auto");
    request.pruning.reset();
    request.budget.reset();
    return;
  }
  PruningOptions pruning = model.pruning.value_or(PruningOptions{});
  pruning.evaluator = model.evaluator;
  const char* field = "kv_keep";
  try {
    read_kept(keep.is_string() ? keep.get<std::string>() : keep.dump(), pruning);
    field = "kv_policy";
    if (const auto policy = fields.text(field)) pruning.policy = pruning_policy_from_name(*policy);
    pruning.window = uint32_t(fields.integer("kv_window", 1, 4096).value_or(usual_window(pruning.policy)));
    pruning.check();
    pruning.check_heads();
  } catch (const Error& error) {
    bad_field(fields.name(field), "'{}': {}", fields.name(field), error.what());
  }
  request.pruning = pruning;
  request.budget.reset();
}

// A text that many ask about: it stands before what the conversation says first.
void read_document(const JsonFields& fields, AskKind kind, Ask& ask) {
  const auto document = fields.text("kv_document");
  if (!document) return;
  if (kind != AskKind::chat)
    bad_field("quire.kv_document", "'quire.kv_document' stands before the first message of a chat");
  if (document->empty()) bad_field("quire.kv_document", "'quire.kv_document' is empty");
  if (!ask.request.pruning && !ask.chooses_kept)
    bad_field("quire.kv_document",
              "'quire.kv_document' is a text that is pruned: 'quire.kv_keep' says how much of it stays");
  ask.document = *document;
}

void read_budget(const JsonFields& fields, const ServedModel& model, Ask& ask) {
  const OrderedJson& rows = fields.get("kv_budget");
  if (rows.is_null()) return;
  if (!fields.get("kv_keep").is_null())
    bad_field("quire.kv_budget", "'quire.kv_budget' bounds the prompt too: leave 'quire.kv_keep' out");
  BudgetOptions budget = model.budget.value_or(BudgetOptions{});
  const char* field = "kv_budget";
  try {
    quire::read_budget(rows.is_string() ? rows.get<std::string>() : rows.dump(), budget);
    field = "kv_policy";
    if (const auto policy = fields.text(field)) budget.policy = pruning_policy_from_name(*policy);
    budget.window = uint32_t(fields.integer("kv_window", 1, 4096).value_or(budget.window));
    budget.check();
  } catch (const Error& error) {
    bad_field(fields.name(field), "'{}': {}", fields.name(field), error.what());
  }
  ask.request.budget = budget;
  ask.request.pruning.reset();
  ask.chooses_kept = false;
}

// Of the budget that it has or that all have.
void read_pinned(const JsonFields& fields, Ask& ask) {
  const auto pinned = fields.integer("kv_pin", 0, 1 << 20);
  if (!pinned) return;
  if (!ask.request.budget)
    bad_field("quire.kv_pin", "'quire.kv_pin' says what stays of a budget, and there is none");
  ask.request.budget->pinned = uint32_t(*pinned);
  ask.pins_system = false;
}

// Who computes the prompt, and who goes on: as vLLM has it. What a ticket says is looked into when it is used.
void read_transfer(const JsonFields& fields, Ask& ask) {
  const auto transfer = fields.object("kv_transfer_params");
  if (!transfer) return;
  ask.request.hands_over = transfer->boolean("do_remote_decode").value_or(false);
  const bool takes_over = transfer->boolean("do_remote_prefill").value_or(false);
  if (ask.request.hands_over && takes_over)
    bad_field("kv_transfer_params",
              "'kv_transfer_params': of 'do_remote_decode' and 'do_remote_prefill' one at most can be true");
  if (ask.request.hands_over && ask.stream)
    bad_field("kv_transfer_params.do_remote_decode",
              "'kv_transfer_params.do_remote_decode' is for answers that are no streams: what it is about "
              "comes at their end");
  if (ask.request.hands_over && ask.choices > 1)
    bad_field("kv_transfer_params.do_remote_decode",
              "'kv_transfer_params.do_remote_decode' is for one answer");
  const OrderedJson& ticket = transfer->get("ticket");
  if (takes_over && ticket.is_string())
    ask.request.handed_over = HandOver::parse(ticket.get_ref<const std::string&>());
}

Ask read_common(const JsonFields& fields, const ServedModel& model, AskKind kind) {
  Ask ask;
  ask.kind = kind;
  check_model(fields, model);
  refuse_what_is_not_built(fields);
  Request& request = ask.request;
  set_sampling_defaults(ask, model);
  read_sampling(fields, model, request.sampling);
  ask.echo = kind == AskKind::completion && fields.boolean("echo").value_or(false);
  const auto most = fields.integer("max_completion_tokens", 1, INT32_MAX);
  const auto old_most = fields.integer("max_tokens", ask.echo ? 0 : 1, INT32_MAX);
  request.max_tokens = uint32_t(most ? *most : old_most.value_or(kind == AskKind::chat ? 0 : 16));
  ask.prompt_only = ask.echo && !most && old_most == 0;
  ask.choices = uint32_t(fields.integer("n", 1, kMostChoices).value_or(1));
  if (const auto best_of = fields.integer("best_of", 1, kMostChoices); best_of && *best_of != ask.choices)
    not_built("best_of", "choosing the best of several answers");
  request.stop = fields.texts("stop", kMostStops);
  for (const std::string& stop : request.stop) {
    if (stop.empty()) bad_field("stop", "'stop' has an empty text");
    if (stop.size() > kMostStopBytes)  // every token is compared with it
      bad_field("stop", "'stop' has a text of {} bytes; at most {} are allowed", stop.size(), kMostStopBytes);
  }
  request.stop_tokens = fields.tokens("stop_token_ids", model.vocab, kMostStopTokens);
  request.grammar = read_grammar(fields, *model.text);
  request.ignore_end = fields.boolean("ignore_eos").value_or(false);
  ask.stream = fields.boolean("stream").value_or(false);
  if (const auto options = fields.object("stream_options")) {
    if (!ask.stream)
      bad_field("stream_options", "'stream_options' is for streams only: set 'stream' to true");
    ask.include_usage = options->boolean("include_usage").value_or(false);
  }
  read_transfer(fields, ask);
  ask.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  read_asker(fields, ask);
  const OrderedJson& own = fields.get("quire");
  if (own.is_boolean()) {
    ask.report = own.get<bool>();
  } else if (const auto more = fields.object("quire")) {
    ask.report = more->boolean("report").value_or(false);
    ask.resume = more->boolean("resume").value_or(false);
    if (ask.resume && !ask.stream)
      bad_field("quire.resume", "'quire.resume' is for streams only: set 'stream' to true");
    read_pruning(*more, model, ask);
    read_budget(*more, model, ask);
    read_pinned(*more, ask);
    read_document(*more, kind, ask);
  }
  return ask;
}

void read_completion_logprobs(const JsonFields& fields, Ask& ask) {
  const OrderedJson& logprobs = fields.get("logprobs");
  if (logprobs.is_null() || logprobs == false) return;
  ask.request.logprobs = true;
  ask.request.top_logprobs = uint32_t(fields.integer("logprobs", 0, kMostTopLogprobs).value_or(0));
  ask.score_prompt = ask.echo;
  if (!ask.prompt_only) return;
  // Its probabilities are computed along with a token that nobody is told of.
  ask.prompt_only = false;
  ask.leave_out_answer = true;
  ask.request.max_tokens = 1;
}

// And how its answer is to be read.
std::vector<TokenId> chat_prompt(Ask& ask, const Conversation& conversation, bool calls,
                                 const ServedModel& model, const std::string& field, size_t most_tokens) {
  if (!model.format) {
    throw ApiError(
        400, field, "no_chat_template",
        fmt::format("the model '{}' has no chat template; /v1/completions continues a text with it",
                    model.name));
  }
  try {
    const ChatInput input = to_chat_input(conversation);
    const MarkedText prompt = model.text->chat_template->render(model.format->adapted(input));
    ask.parse = ResponseOptions{.start = model.format->start_after(prompt), .types = {}, .calls = calls};
    if (calls) ask.parse->types = ArgumentTypes(input.tools);
    ask.request.shown_special = model.format_tokens;
    std::vector<TokenId> tokens = model.text->tokenizer.encode(prompt, most_tokens);
    if (ask.request.budget && ask.pins_system) {
      uint32_t& pinned = ask.request.budget->pinned;
      pinned = std::max(pinned, model.text->system_tokens(model.format->adapted(input), tokens));
    }
    return tokens;
  } catch (const TooManyTokens&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(400, field, "invalid_value", error.what());
  }
}

ChatMessage& first_of_user(Conversation& conversation) {
  const auto first = std::ranges::find(conversation.messages, ChatMessage::Role::user, &ChatMessage::role);
  if (first == conversation.messages.end())
    bad_field("quire.kv_document",
              "'quire.kv_document' stands before a user's first message, and there is none");
  return *first;
}

// Puts the document where it belongs, and says how many tokens it has, whatever is asked after it.
void set_document(Ask& ask, Conversation conversation, bool calls, const ServedModel& model) {
  ChatMessage& first = first_of_user(conversation);
  const std::string asked = first.text;
  first.text = ask.document + "\n\n" + asked;
  set_conversation(ask, conversation, calls, model, "messages");
  conversation.messages.erase(conversation.messages.begin() + (&first - conversation.messages.data()) + 1,
                              conversation.messages.end());
  ask.document_tokens = document_tokens(ask.prompts.front(), [&](const std::string& other) {
    Ask probe;
    first_of_user(conversation).text = ask.document + "\n\n" + other;
    return chat_prompt(probe, conversation, calls, model, "messages", SIZE_MAX);
  });
}

std::vector<TokenId> read_messages(const JsonFields& fields, const ServedModel& model,
                                   size_t most_tokens = SIZE_MAX) {
  Ask ask;
  const Conversation conversation = read_conversation(fields);
  return chat_prompt(ask, conversation, false, model, "messages", most_tokens);
}

std::vector<TokenId> read_one_prompt(const OrderedJson& prompt, const std::string& field,
                                     const ServedModel& model, const EncodeOptions& options) {
  if (prompt.is_string()) return model.text->tokenizer.encode(prompt.get_ref<const std::string&>(), options);
  if (is_token_list(prompt)) {
    if (prompt.size() > options.most_tokens)
      throw TooManyTokens("the prompt has more than {} tokens", options.most_tokens);
    return token_list(prompt, field, model.vocab);
  }
  bad_field(field, "'{}' must be a text, a list of texts, a list of token ids, or a list of such lists",
            field);
}

// What `read` makes of a prompt, of which no more is looked at than the context could hold; with a budget as many times more.
template <class Read>
std::vector<TokenId> fitting(const std::string& field, const Ask& ask, const ServedModel& model,
                             Read&& read) {
  constexpr size_t kMostContexts = 64;
  std::vector<TokenId> prompt;
  const bool is_bound = ask.request.budget.has_value();
  try {
    prompt = read(is_bound ? kMostContexts * model.context : size_t(model.context) - 1);
  } catch (const TooManyTokens&) {
    if (is_bound) {
      throw ApiError(400, field, "context_length_exceeded",
                     fmt::format("'{}' has more than {} tokens, {} times what the context holds", field,
                                 kMostContexts * model.context, kMostContexts));
    }
    throw ApiError(
        400, field, "context_length_exceeded",
        fmt::format("'{}' has {} tokens or more, but the context holds {} with at least one for the answer",
                    field, model.context, model.context));
  }
  if (prompt.empty()) bad_field(field, "'{}' is empty: there is nothing to continue", field);
  return prompt;
}

}  // namespace

bool is_token_list(const OrderedJson& text) {
  return text.is_array() && !text.empty() && text.front().is_number();
}

std::vector<TokenId> read_text(const OrderedJson& text, const std::string& field, const ServedModel& model) {
  std::vector<TokenId> tokens;
  try {
    tokens = read_one_prompt(text, field, model, {.most_tokens = model.context});
  } catch (const TooManyTokens&) {
    throw ApiError(
        400, field, "context_length_exceeded",
        fmt::format("'{}' has more than the {} tokens that the context holds", field, model.context));
  }
  if (tokens.empty()) bad_field(field, "'{}' is empty", field);
  return tokens;
}

void read_asker(const JsonFields& fields, Ask& ask) {
  Request& request = ask.request;
  request.client = fields.text("user").value_or("");
  if (request.client.size() > kMostUserBytes)  // it is remembered longer than the request
    bad_field("user", "'user' has {} bytes; at most {} are allowed", request.client.size(), kMostUserBytes);
  ask.cache_salt = read_cache_salt(fields);
  if (fields.get("quire").is_boolean()) return;
  const auto own = fields.object("quire");
  if (!own) return;
  request.priority = int32_t(own->integer("priority", -1000, 1000).value_or(0));
  ask.deadline_ms = own->number("deadline_ms", 1, 1e9);
}

void check_model(const JsonFields& fields, const ServedModel& model) {
  const auto wanted = fields.text("model");
  if (!wanted || wanted->empty() || *wanted == model.name) return;
  throw ApiError(404, "model", "model_not_found",
                 fmt::format("the model '{}' is not served here; '{}' is", *wanted, model.name));
}

ServedModel with_chat_format(ServedModel model) {
  if (model.text == nullptr || !model.text->chat_template) return model;
  model.format = std::make_shared<const ChatFormat>(*model.text->chat_template);
  const std::vector<std::string> literals = model.format->traits().response.literals();
  const Tokenizer& tokenizer = model.text->tokenizer;
  for (TokenId token = 0; token < tokenizer.size(); ++token) {
    if (!tokenizer.is_special(token)) continue;
    const std::string_view spelled = tokenizer.token(token);
    const auto has = [&](const std::string& literal) { return literal.find(spelled) != std::string::npos; };
    if (!spelled.empty() && std::ranges::any_of(literals, has)) model.format_tokens.push_back(token);
  }
  return model;
}

void set_sampling_defaults(Ask& ask, const ServedModel& model) {
  ask.request.sampling = model.text->sampling_defaults;
  ask.request.sampling.seed = uint64_t(std::random_device()()) << 32 | std::random_device()();
  ask.request.pruning = model.pruning;
  ask.chooses_kept = model.chooses_kept;
  ask.request.budget = model.budget;
  ask.pins_system = model.pins_system;
}

void set_conversation(Ask& ask, const Conversation& conversation, bool calls, const ServedModel& model,
                      const std::string& field) {
  const auto read = [&](size_t most) { return chat_prompt(ask, conversation, calls, model, field, most); };
  ask.prompts.push_back(fitting(field, ask, model, read));
}

OrderedJson parse_body(std::string_view body) {
  try {
    // Requests of any sense take a few times their own length.
    const JsonLimits limits{.tree_bytes = std::max<uint64_t>(16 << 20, 20 * uint64_t(body.size()))};
    OrderedJson json = parse_ordered_json(body, "the request's body", limits);
    if (json.is_object()) return json;
  } catch (const Error& error) {
    throw ApiError(400, "", "invalid_json", error.what());
  }
  throw ApiError(400, "", "invalid_json", "the request's body must be a JSON object");
}

Ask parse_chat(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  Ask ask = read_common(fields, model, AskKind::chat);
  ask.request.logprobs = fields.boolean("logprobs").value_or(false);
  if (const auto top = fields.integer("top_logprobs", 0, kMostTopLogprobs)) {
    if (!ask.request.logprobs && *top > 0)
      bad_field("top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
    ask.request.top_logprobs = uint32_t(*top);
  }
  const Conversation conversation = read_conversation(fields);
  ask.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  const bool calls = read_call_policy(fields, conversation) == CallPolicy::any;
  if (ask.document.empty()) {
    set_conversation(ask, conversation, calls, model, "messages");
  } else {
    set_document(ask, conversation, calls, model);
  }
  keep_to(read_constraint(fields, conversation), conversation, model, ask);
  return ask;
}

Ask parse_continuation(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  Ask ask = read_common(fields, model, AskKind::completion);
  read_completion_logprobs(fields, ask);
  return ask;
}

void set_prompt(Ask& ask, const OrderedJson& prompt, const ServedModel& model) {
  const auto add = [&](const OrderedJson& one, const std::string& field) {
    ask.prompts.push_back(fitting(field, ask, model, [&](size_t most) {
      return read_one_prompt(one, field, model, {.most_tokens = most});
    }));
  };
  if (prompt.is_array() && !is_token_list(prompt)) {
    if (prompt.empty() || prompt.size() > kMostPrompts)
      bad_field("prompt", "'prompt' has {} prompts; 1 to {} are allowed", prompt.size(), kMostPrompts);
    for (size_t i = 0; i < prompt.size(); ++i)
      add(prompt[i], prompt.size() == 1 ? "prompt" : fmt::format("prompt[{}]", i));
  } else {
    add(prompt, "prompt");
  }
}

Ask parse_completion(const OrderedJson& body, const ServedModel& model) {
  Ask ask = parse_continuation(body, model);
  const OrderedJson& prompt = JsonFields(body).get("prompt");
  if (prompt.is_null()) bad_field("prompt", "'prompt' is missing");
  set_prompt(ask, prompt, model);
  if (ask.request.hands_over && ask.answers() > 1)
    bad_field("kv_transfer_params.do_remote_decode",
              "'kv_transfer_params.do_remote_decode' is for one prompt");
  if (ask.answers() > kMostChoices * 2)
    bad_field("n", "{} prompts with {} answers each are too many for one request", ask.prompts.size(),
              ask.choices);
  return ask;
}

std::optional<PruningOptions> pruning_of(const Ask& ask, std::span<const TokenId> prompt,
                                         const ServedModel& model) {
  std::optional<PruningOptions> pruning = ask.request.pruning;
  const bool has_document = ask.document_tokens > 0;
  if (ask.chooses_kept)
    pruning = model.choose_kept(has_document ? prompt.first(ask.document_tokens) : prompt);
  if (pruning && has_document) {
    pruning->scored = ask.document_tokens;
    pruning->is_shared = true;
  }
  return pruning;
}

bool begins_with_document(const OrderedJson& body) {
  const OrderedJson& own = JsonFields(body).get("quire");
  return own.is_object() && own.contains("kv_document");
}

std::string parse_cache_salt(const OrderedJson& body) {
  return read_cache_salt(JsonFields(body));
}

std::vector<TokenId> parse_prompt(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  check_model(fields, model);
  if (fields.has("messages")) return read_messages(fields, model);
  EncodeOptions options;
  options.add_special =
      fields.boolean("add_special_tokens").value_or(fields.boolean("add_special").value_or(true));
  options.parse_special = fields.boolean("parse_special").value_or(false);
  for (const char* field : {"prompt", "content", "tokens"}) {
    if (fields.has(field)) {
      const OrderedJson& prompt = fields.get(field);
      if (prompt.is_array() && prompt.empty()) return {};
      return read_one_prompt(prompt, field, model, options);
    }
  }
  bad_field("prompt", "'prompt' or 'messages' is missing");
}

}  // namespace quire
