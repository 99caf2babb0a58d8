#include "base/error.h"
#include "server/responses.h"
#include "server/service.h"
#include "wire/responses_request.h"
#include "wire/responses_turn.h"

// OpenAI's Responses: answers that may be asked for again, and gone on from.

namespace quire {
namespace {

constexpr std::string_view kResponsesPath = "/v1/responses/";

std::string response_id(const HttpRequest& request) {
  return request.path.substr(kResponsesPath.size());
}

ApiError no_response(const std::string& id) {
  return ApiError(404, "response_id", "not_found",
                  fmt::format("the response '{}' is not known (any more): the server keeps them for a while, "
                              "unless 'store' is false",
                              id));
}

OrderedJson deleted_json(const std::string& id) {
  return {{"id", id}, {"object", "response"}, {"deleted", true}};
}

}  // namespace

asio::awaitable<void> Service::respond_to_input(Exchange& exchange) {
  const Viewer who = viewer(exchange.request());
  const auto understand = [this, &exchange, &who] {
    const auto find = [this, &who](const std::string& id) {
      const auto kept = responses_.find(id, who);
      if (kept == nullptr)
        throw ApiError(400, "previous_response_id", "previous_response_not_found",
                       fmt::format("the response '{}' is not known (any more)", id));
      return parse_ordered_json(kept->items, "what was said before");
    };
    return parse_responses(parse_body(exchange.request().body), parts_.model, find);
  };
  Ask ask = co_await aside(exchange, understand);
  exchange.drop_body();
  refuse_if_closing();
  if (ask.turn->store) {
    ask.turn->keep = [this, owner = who.client.value_or("")](const std::string& id, std::string response,
                                                             std::string items) {
      responses_.keep(id, owner, {.response = std::move(response), .items = std::move(items)});
    };
  }
  admit_ask(exchange.request(), ask);
  co_await completions_.answer(exchange, std::move(ask));
}

asio::awaitable<void> Service::stored_response(Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::string id = response_id(request);
  const auto stream = request.query.find("stream");
  if (stream != request.query.end() && stream->second == "true")
    not_built("stream", "a response that is told again as a stream");
  const auto kept = responses_.find(id, viewer(request));
  if (kept == nullptr) throw no_response(id);
  HttpResponse response;
  response.body = kept->response;
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::delete_response(Exchange& exchange) {
  const std::string id = response_id(exchange.request());
  if (!responses_.remove(id, viewer(exchange.request()))) throw no_response(id);
  co_await exchange.respond(json_response(deleted_json(id)));
}

}  // namespace quire
