#include <charconv>

#include "openai/json_fields.h"
#include "server/responses.h"
#include "server/service.h"

// Prefixes that clients keep in the cache.

namespace quire {
namespace {

std::optional<SequenceId> pin_in(std::string_view text) {
  uint32_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = problem == std::errc() && end == text.data() + text.size();
  return is_number ? std::optional(SequenceId{number}) : std::nullopt;
}

// GCC 12 cannot compile lists of initializers inside coroutines: they are made here.
OrderedJson pin_json(const Engine::Pin& pin, std::optional<double> seconds) {
  OrderedJson json = {{"pin", pin.id.value}, {"tokens", pin.tokens}};
  if (seconds) json["ttl_seconds"] = *seconds;
  return json;
}

OrderedJson unpinned_json(SequenceId pin) {
  return {{"pin", pin.value}, {"unpinned", true}};
}

}  // namespace

asio::awaitable<Service::PromptBody> Service::read_prompt(const Exchange& exchange) {
  const auto work = [&] {
    const OrderedJson body = parse_body(exchange.request().body);
    PromptBody read;
    if (begins_with_document(body)) {
      Ask ask = parse_chat(body, parts_.model);
      read.prompt = std::move(ask.prompts.front());
      read.pruning = pruning_of(ask, read.prompt, parts_.model);
    } else {
      read.prompt = parse_prompt(body, parts_.model);
    }
    read.cache_salt = parse_cache_salt(body);
    read.ttl_seconds = JsonFields(body).number("ttl_seconds", 1, 1e9);
    return read;
  };
  co_return co_await aside(exchange, work);
}

asio::awaitable<void> Service::kv_pin(Exchange& exchange) {
  const PromptBody body = co_await read_prompt(exchange);
  if (body.pruning)
    throw ApiError(400, "quire.kv_document", "invalid_value",
                   "what is left of a pruned document cannot be pinned: 'quire.kv_document' is for requests");
  const size_t keys = options_.api_keys.size();
  const std::optional<double> seconds = options_.pins.seconds(body.ttl_seconds, keys);
  const CacheSalt salt = salt_of(exchange.request(), body.cache_salt);
  const std::string client = keys == 0 ? "" : client_name(exchange.request(), "");
  const auto pin = [limits = options_.pins, body, salt, client, seconds, keys](Engine& engine) {
    PinTerms terms{.client = client};
    if (seconds)
      terms.until =
          engine.now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*seconds));
    return pin_within(engine, {body.prompt, salt}, terms, limits.pins,
                      limits.tokens_of_each(engine.kv(), keys));
  };
  const PinOutcome outcome = co_await ask_engine(pin);
  if (!outcome.refused.empty()) throw ApiError(429, "", "pins_full", outcome.refused);
  if (outcome.pin.tokens == 0)
    throw ApiError(409, "prompt", "not_cached",
                   "no full page of this prompt is cached yet: ask with it once, then pin it");
  co_await exchange.respond(json_response(pin_json(outcome.pin, seconds)));
}

asio::awaitable<void> Service::kv_unpin(Exchange& exchange) {
  const std::string text = exchange.request().path.substr(std::string_view("/kv/pin/").size());
  const std::optional<SequenceId> id = pin_in(text);
  const auto unpin = [id, who = viewer(exchange.request())](Engine& engine) {
    if (!id) return false;
    engine.end_overdue_pins();
    const auto found = engine.pins().find(*id);
    return found != engine.pins().end() && who.sees(found->second.terms.client) && engine.unpin(*id);
  };
  const bool found = co_await ask_engine(unpin);
  if (!found) throw ApiError(404, "", "not_found", fmt::format("there is no pin {}", text));
  co_await exchange.respond(json_response(unpinned_json(*id)));
}

}  // namespace quire
