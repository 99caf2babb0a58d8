#include <charconv>

#include "openai/json_fields.h"
#include "server/live_report.h"
#include "server/responses.h"
#include "server/service.h"

// The KV cache and the requests, seen live.

namespace quire {
namespace {

uint64_t query_number(const HttpRequest& request, const char* name) {
  uint64_t number = 0;
  const auto found = request.query.find(name);
  if (found != request.query.end())
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), number);
  return number;
}

// The number that a text is; nothing if it is anything else.
std::optional<uint32_t> number_in(std::string_view text) {
  uint32_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// 0 if it is not given.
uint32_t query_index(const HttpRequest& request, const char* name) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return 0;
  const std::optional<uint32_t> number = number_in(found->second);
  if (!number) bad_field(name, "'{}' must be a whole number, counted from 0", name);
  return *number;
}

ApiError unknown_request(const std::string& id) {
  return ApiError(404, "", "not_found", fmt::format("the request '{}' is not known (any more)", id));
}

std::string snapshot_name(std::string_view request_body) {
  if (request_body.empty()) return SnapshotFolder::kUsualName;
  const OrderedJson body = parse_body(request_body);
  const std::string name = JsonFields(body).text("name").value_or(SnapshotFolder::kUsualName);
  if (!SnapshotFolder::is_name(name))
    bad_field("name", "'name' must be of letters, digits, '.', '_' and '-', at most 100 and no dot in front");
  return name;
}

// GCC 12 cannot compile lists of initializers inside coroutines: they are made here.
OrderedJson saved_json(const std::string& name, const SnapshotFigures& saved, double seconds) {
  return {{"name", name},
          {"tokens", saved.tokens},
          {"pages", saved.pages},
          {"bytes", saved.bytes},
          {"seconds", seconds}};
}

}  // namespace

// They are trees of everything that the server has, until they are written.
void Service::refuse_if_many_reports() const {
  constexpr uint32_t kMostReports = 16;
  if (reports_ >= kMostReports)
    throw ApiError(503, "", "busy", "too many ask what the server is doing; try again");
}

asio::awaitable<void> Service::kv(Exchange& exchange) {
  refuse_if_many_reports();
  const ReportFor report_for{viewer(exchange.request()), query_number(exchange.request(), "since"),
                             Clock::now()};
  const auto look = [&book = parts_.book, since = report_for.since](Engine& engine) {
    engine.end_overdue_pins();
    return look_at_kv(engine, book, since);
  };
  HttpResponse response;
  {
    const Counted counted(reports_);
    KvLook seen = co_await ask_engine(look);
    const auto tell = [&] {
      OrderedJson report = kv_report(std::exchange(seen, {}), report_for);
      report["format"] = options_.kv_format;
      return dump(report);
    };
    response.body = co_await workers_.write_reply(tell);
  }
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::requests(Exchange& exchange) {
  refuse_if_many_reports();
  const ReportFor report_for{viewer(exchange.request()), query_number(exchange.request(), "since"),
                             Clock::now()};
  const auto look = [&book = parts_.book, since = report_for.since](Engine& engine) {
    return look_at_requests(engine, book, since);
  };
  HttpResponse response;
  {
    const Counted counted(reports_);
    RequestsLook seen = co_await ask_engine(look);
    const auto tell = [&] {
      return dump(requests_report(std::exchange(seen, {}), parts_.meter, report_for));
    };
    response.body = co_await workers_.write_reply(tell);
  }
  co_await exchange.respond(std::move(response));
}

// GET /requests/ID/steps and GET /requests/ID/attention
asio::awaitable<void> Service::look_at_request(Exchange& exchange) {
  constexpr std::string_view kBefore = "/requests/", kSteps = "/steps", kAttention = "/attention";
  const std::string path = exchange.request().path.substr(kBefore.size());
  if (path.ends_with(kSteps)) {
    co_await steps(exchange, path.substr(0, path.size() - kSteps.size()));
  } else if (path.ends_with(kAttention)) {
    co_await attention(exchange, path.substr(0, path.size() - kAttention.size()));
  } else {
    throw ApiError(404, "", "not_found",
                   "the passes of a request are at GET /requests/ID/steps, what its heads look at is at GET "
                   "/requests/ID/attention");
  }
}

asio::awaitable<void> Service::steps(Exchange& exchange, std::string id) {
  const uint64_t choice = std::min<uint64_t>(query_number(exchange.request(), "choice"), UINT32_MAX);
  const auto look = [&book = parts_.book, id, choice, who = viewer(exchange.request())](Engine& engine) {
    return book.copy(engine, id, uint32_t(choice), who);
  };
  const std::optional<RequestCopy> request = co_await ask_engine(look);
  if (!request) throw unknown_request(id);
  const auto tell = [&] {
    return dump(steps_json(id, steps_of(request->record()), parts_.model.text->tokenizer));
  };
  HttpResponse response;
  response.body = co_await workers_.write_reply(tell);
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::attention(Exchange& exchange, std::string id) {
  refuse_if_closing();
  const uint32_t layer = query_index(exchange.request(), "layer");
  const uint32_t head = query_index(exchange.request(), "head");
  const uint32_t choice = query_index(exchange.request(), "choice");
  const auto read = [&book = parts_.book, id, choice, who = viewer(exchange.request())](Engine& engine) {
    return book.copy(engine, id, choice, who);
  };
  const std::optional<RequestCopy> request = co_await ask_engine(read);
  if (!request) throw unknown_request(id);
  const auto understand = [&] { return fed_text(request->record()); };
  FedText text = co_await workers_.run(Workers::Lane::replies, understand);
  text.check();
  const std::string client = client_name(exchange.request(), "");
  const HeadLooks::Result seen = co_await looks_.look(exchange, std::move(text), layer, head, client);
  const auto tell = [&] { return dump(seen.grid->json(id, seen.place, parts_.model.text->tokenizer)); };
  HttpResponse response;
  response.body = co_await workers_.write_reply(tell);
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::kv_lookup(Exchange& exchange) {
  const PromptBody body = co_await read_prompt(exchange);
  exchange.drop_body();
  const CacheSalt salt = salt_of(exchange.request(), body.cache_salt);
  const auto look = [body, salt](Engine& engine) {
    return view_lookup(engine, {body.prompt, salt}, body.pruning);
  };
  const LookupView seen = co_await ask_engine(look);
  const auto tell = [&] {
    return dump(lookup_report(seen, body.prompt, parts_.meter.limits(), parts_.model.text->tokenizer));
  };
  HttpResponse response;
  response.body = co_await workers_.write_reply(tell);
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> Service::kv_save(Exchange& exchange) {
  if (parts_.snapshots == nullptr)
    throw ApiError(409, "", "no_kv_dir",
                   "this server saves no snapshots: it was started without --kv-dir FOLDER");
  // Whose pages they are is in the snapshot, but the folder and its bytes are one for all.
  if (!options_.api_keys.empty() && key_number(exchange.request()) != 1)
    throw ApiError(403, "", "not_the_first_key",
                   "a snapshot has the pages of all keys: only the first of the server's keys may save one");
  const auto read = [&] { return snapshot_name(exchange.request().body); };
  const std::string name = co_await aside(exchange, read);
  if (saves_ > 0)
    throw ApiError(409, "", "saving", "a snapshot is being saved already: ask again when it is done");
  const Counted saving(saves_);
  const Clock::time_point begin = Clock::now();
  const auto save = [this, name] { return parts_.snapshots->save(parts_.loop, name); };
  const SnapshotFigures saved = co_await workers_.run(Workers::Lane::saves, save);
  const double seconds = milliseconds_between(begin, Clock::now()) / 1000;
  co_await exchange.respond(json_response(saved_json(name, saved, seconds)));
}

}  // namespace quire
