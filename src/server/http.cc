#include "server/http.h"

#include <algorithm>
#include <optional>
#include <set>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <sys/socket.h>

#include "base/error.h"

namespace quire {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kMostEarlyBytes = 64 << 10;  // of a next request, taken while one is being answered
constexpr uint32_t kMostTurnedAway = 64;      // connections beyond the limit that are told so at a time

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = char(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

enum class Plus { is_itself, is_space };

std::string decode_percent(std::string_view text, Plus plus) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    const bool space = text[i] == '+' && plus == Plus::is_space;
    decoded += escape ? char(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])) : space ? ' ' : text[i];
    if (escape) i += 2;
  }
  return decoded;
}

void read_target(std::string_view target, HttpRequest& request) {
  const size_t mark = target.find('?');
  request.path = decode_percent(target.substr(0, mark), Plus::is_itself);
  if (mark == std::string_view::npos) return;
  std::string_view rest = target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    const std::string_view value = equals == std::string_view::npos ? "" : pair.substr(equals + 1);
    request.query[decode_percent(pair.substr(0, equals), Plus::is_space)] =
        decode_percent(value, Plus::is_space);
  }
}

HttpResponse failure_response(int status, const char* why) {
  HttpResponse response;
  response.status = status;
  response.body = fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":null}}}})", why,
                              status >= 500 ? "server_error" : "invalid_request_error");
  return response;
}

}  // namespace

struct HttpServer::State {
  State(asio::io_context& io, const HttpLimits& limits, Handler handler)
      : io(io), acceptor(io), limits(limits), handler(std::move(handler)) {}

  asio::io_context& io;
  tcp::acceptor acceptor;
  HttpLimits limits;
  Handler handler;
  bool closing = false;
  std::set<class Connection*> connections;
  uint32_t exchanges = 0;
  uint32_t turned_away = 0;  // of the connections: those beyond the limit, on their way out

  bool full() const { return connections.size() - turned_away >= limits.connections; }
};

// One client: reads a request, has it answered, and so on until one of them has had enough.
class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  using State = HttpServer::State;
  Connection(std::shared_ptr<State> state, tcp::socket socket)
      : state_(std::move(state)),
        stream_(std::move(socket)),
        buffer_(state_->limits.header_bytes + kMostEarlyBytes) {
    error_code ignored;
    const auto remote = stream_.socket().remote_endpoint(ignored);
    if (!ignored) peer_ = remote.address().to_string();
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    stream_.socket().set_option(asio::socket_base::keep_alive(true), ignored);
    state_->connections.insert(this);
  }
  ~Connection() override { state_->connections.erase(this); }

  asio::awaitable<void> serve();
  asio::awaitable<void> turn_away();
  void close_if_idle() {
    if (!answering_) close();
  }

  asio::awaitable<void> respond(HttpResponse response) override;
  asio::awaitable<bool> begin_stream(HttpResponse head) override;
  asio::awaitable<bool> write(std::string part) override;
  asio::awaitable<void> end_stream() override;
  void when_gone(std::function<void()> gone) override;

 private:
  // False: the connection ends.
  asio::awaitable<bool> read_request();
  asio::awaitable<bool> wait_for_bytes();
  asio::awaitable<void> refuse(error_code problem);
  asio::awaitable<void> respond_and_drain(HttpResponse response);
  asio::awaitable<void> answer();
  void take_request(http::request<http::string_body>&& message);
  void watch();
  void stop_watching();
  bool take_early_bytes();
  template <class Message>
  void fill_head(Message& message, const HttpResponse& response) const;
  void close() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  std::shared_ptr<State> state_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;  // never holds more than headers and what a client sends early
  std::string peer_;
  unsigned version_ = 11;
  bool keep_alive_ = true, head_only_ = false, chunked_ = false;
  bool answering_ = false, broken_ = false, watching_ = false;
  std::function<void()> gone_;
};

asio::awaitable<bool> Connection::wait_for_bytes() {
  if (buffer_.size() > 0) co_return true;
  error_code problem;
  stream_.expires_after(state_->limits.idle_time);
  const size_t count =
      co_await stream_.async_read_some(buffer_.prepare(4096), redirect_error(use_awaitable, problem));
  buffer_.commit(count);
  co_return !problem;
}

asio::awaitable<bool> Connection::read_request() {
  const bool any = co_await wait_for_bytes();
  if (!any) co_return false;
  error_code problem;
  http::request_parser<http::string_body> parser;
  parser.header_limit(state_->limits.header_bytes);
  parser.body_limit(state_->limits.body_bytes);
  stream_.expires_after(state_->limits.header_time);
  co_await http::async_read_header(stream_, buffer_, parser, redirect_error(use_awaitable, problem));
  version_ = parser.get().version();
  if (!problem && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    static const std::string kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await asio::async_write(stream_, asio::buffer(kContinue), redirect_error(use_awaitable, problem));
  }
  if (!problem && !parser.is_done()) {
    stream_.expires_after(state_->limits.body_time);
    co_await http::async_read(stream_, buffer_, parser, redirect_error(use_awaitable, problem));
  }
  if (problem) {
    co_await refuse(problem);
    co_return false;
  }
  take_request(parser.release());
  co_return true;
}

asio::awaitable<void> Connection::refuse(error_code problem) {
  int status = 400;
  const char* why = "the request is not valid HTTP";
  if (problem == http::error::body_limit) {
    status = 413;
    why = "the request's body is too large";
  } else if (problem == http::error::header_limit || problem == http::error::buffer_overflow) {
    status = 431;
    why = "the request's headers are too large";
  } else if (problem == beast::error::timeout) {
    status = 408;
    why = "the request took too long to arrive";
  } else if (problem == http::error::end_of_stream || problem == asio::error::eof ||
             problem == asio::error::connection_reset || problem == asio::error::operation_aborted ||
             problem == http::error::partial_message) {
    co_return;  // the client has left
  }
  if (problem == beast::error::timeout) co_return close();  // the stream is closed by then
  head_only_ = false;                                       // of the request before it, as are the headers
  extra_.clear();
  co_await respond_and_drain(failure_response(status, why));
}

// For what is answered without having been read: the rest would make the system reset the connection before the client
// has read the answer.
asio::awaitable<void> Connection::respond_and_drain(HttpResponse response) {
  keep_alive_ = false;
  co_await respond(std::move(response));
  error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(std::chrono::seconds(2));
  char rest[4096];
  for (int reads = 0; reads < 4096 && !ignored; ++reads)
    co_await stream_.async_read_some(asio::buffer(rest), redirect_error(use_awaitable, ignored));
}

void Connection::take_request(http::request<http::string_body>&& message) {
  request_ = {};
  request_.peer = peer_;
  request_.method = std::string(message.method_string());
  read_target({message.target().data(), message.target().size()}, request_);
  for (const auto& field : message) {
    const auto name = field.name_string(), value = field.value();
    request_.headers[lower({name.data(), name.size()})] = std::string(value);
  }
  request_.body = std::move(message.body());
  keep_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  if (head_only_) request_.method = "GET";
  responded_ = false;
  broken_ = false;
  extra_.clear();
}

asio::awaitable<void> Connection::serve() {
  const auto self = shared_from_this();
  while (!state_->closing) {
    const bool read = co_await read_request();
    if (!read) break;
    co_await answer();
    if (!keep_alive_ || broken_) break;
  }
  close();
}

asio::awaitable<void> Connection::answer() {
  answering_ = true;
  ++state_->exchanges;
  std::string failure;
  try {
    co_await state_->handler(*this);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  // A list of initializers here would be destroyed twice: GCC 12 in coroutines.
  if (!failure.empty() && !responded_ && !broken_)
    co_await respond(failure_response(500, "the server failed at this request"));
  if (!failure.empty()) keep_alive_ = false;
  stop_watching();
  gone_ = nullptr;
  std::exchange(request_,
                {});  // gives its memory back: it may be large, and the connection may wait for long
  --state_->exchanges;
  answering_ = false;
}

asio::awaitable<void> Connection::turn_away() {
  const auto self = shared_from_this();
  add_header("Retry-After", "1");
  ++state_->turned_away;
  co_await respond_and_drain(failure_response(503, "too many connections"));
  --state_->turned_away;
  close();
}

template <class Message>
void Connection::fill_head(Message& message, const HttpResponse& response) const {
  message.version(version_);
  message.result(unsigned(response.status));
  message.set(http::field::server, "quire");
  if (!response.type.empty()) message.set(http::field::content_type, response.type);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  for (const auto& [name, value] : extra_) message.set(name, value);
}

asio::awaitable<void> Connection::respond(HttpResponse response) {
  responded_ = true;
  if (state_->closing) keep_alive_ = false;
  http::response<http::string_body> message;
  fill_head(message, response);
  message.keep_alive(keep_alive_);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head_only_) message.body().clear();
  error_code problem;
  http::response_serializer<http::string_body> serializer(message);
  if (head_only_) serializer.split(true);
  while (!problem && !(head_only_ ? serializer.is_header_done() : serializer.is_done())) {
    stream_.expires_after(state_->limits.write_time);
    co_await http::async_write_some(stream_, serializer, redirect_error(use_awaitable, problem));
  }
  if (problem) broken_ = true;
}

asio::awaitable<bool> Connection::begin_stream(HttpResponse head) {
  responded_ = true;
  if (state_->closing) keep_alive_ = false;
  chunked_ = version_ >= 11;
  if (!chunked_) keep_alive_ = false;  // the end of the connection is the end of the stream
  http::response<http::empty_body> message;
  fill_head(message, head);
  message.keep_alive(keep_alive_);
  message.chunked(chunked_);
  error_code problem;
  stream_.expires_after(state_->limits.write_time);
  http::response_serializer<http::empty_body> serializer(message);
  co_await http::async_write_header(stream_, serializer, redirect_error(use_awaitable, problem));
  if (problem) broken_ = true;
  co_return !broken_;
}

asio::awaitable<bool> Connection::write(std::string part) {
  if (broken_) co_return false;
  if (part.empty()) co_return true;
  if (chunked_) part = fmt::format("{:x}\r\n{}\r\n", part.size(), part);
  error_code problem;
  for (size_t written = 0; !problem && written < part.size();) {
    stream_.expires_after(state_->limits.write_time);
    written += co_await stream_.async_write_some(asio::buffer(part) + written,
                                                 redirect_error(use_awaitable, problem));
  }
  if (problem) broken_ = true;
  co_return !broken_;
}

asio::awaitable<void> Connection::end_stream() {
  if (broken_ || !chunked_) co_return;
  error_code problem;
  stream_.expires_after(state_->limits.write_time);
  co_await asio::async_write(stream_, http::make_chunk_last(), redirect_error(use_awaitable, problem));
  if (problem) broken_ = true;
}

void Connection::when_gone(std::function<void()> gone) {
  gone_ = std::move(gone);
  if (!watching_) watch();
}

// Readable while a response is on its way: the client has left, or has sent its next request early.
void Connection::watch() {
  watching_ = true;
  stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code problem) {
    self->watching_ = false;
    if (problem == asio::error::operation_aborted || !self->answering_) return;
    if (!problem && self->take_early_bytes()) {
      if (self->buffer_.size() < kMostEarlyBytes) self->watch();
      return;
    }
    self->broken_ = true;
    if (const auto gone = std::exchange(self->gone_, nullptr)) gone();
  });
}

void Connection::stop_watching() {
  if (!watching_) return;
  error_code ignored;
  stream_.socket().cancel(ignored);
}

// Takes the beginning of the next request, behind which the end of the connection can be seen. False: it has come.
bool Connection::take_early_bytes() {
  const auto room = buffer_.prepare(std::min<size_t>(4096, buffer_.max_size() - buffer_.size()));
  const ssize_t count = ::recv(stream_.socket().native_handle(), room.data(), room.size(), MSG_DONTWAIT);
  if (count > 0) buffer_.commit(size_t(count));
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

namespace {

asio::awaitable<void> accept_all(std::shared_ptr<HttpServer::State> state) {
  while (!state->closing) {
    error_code problem;
    tcp::socket socket = co_await state->acceptor.async_accept(redirect_error(use_awaitable, problem));
    if (state->closing) break;
    if (problem) {
      // No file descriptor is left, or the client has gone already: a moment later it may work.
      asio::steady_timer pause(state->io, std::chrono::milliseconds(50));
      co_await pause.async_wait(redirect_error(use_awaitable, problem));
      continue;
    }
    const bool full = state->full();
    if (full && state->turned_away >= kMostTurnedAway) continue;  // closed without a word
    const auto connection = std::make_shared<Connection>(state, std::move(socket));
    asio::co_spawn(state->io, full ? connection->turn_away() : connection->serve(), asio::detached);
  }
}

}  // namespace

HttpServer::HttpServer(asio::io_context& io, const std::string& host, uint16_t port, const HttpLimits& limits,
                       Handler handler)
    : state_(std::make_shared<State>(io, limits, std::move(handler))) {
  error_code problem;
  const asio::ip::address address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, problem);
  if (problem) throw Error("'{}' is not an IP address to listen on; write e.g. 127.0.0.1 or 0.0.0.0", host);
  const tcp::endpoint endpoint(address, port);
  state_->acceptor.open(endpoint.protocol(), problem);
  if (!problem) state_->acceptor.set_option(asio::socket_base::reuse_address(true), problem);
  if (!problem) state_->acceptor.bind(endpoint, problem);
  if (!problem) state_->acceptor.listen(asio::socket_base::max_listen_connections, problem);
  if (problem) throw Error("cannot listen on {} port {}: {}", host, port, problem.message());
  asio::co_spawn(io, accept_all(state_), asio::detached);
}

HttpServer::~HttpServer() {
  stop_accepting();
}

uint16_t HttpServer::port() const {
  return state_->acceptor.local_endpoint().port();
}

uint32_t HttpServer::connections() const {
  return uint32_t(state_->connections.size());
}

uint32_t HttpServer::exchanges() const {
  return state_->exchanges;
}

void HttpServer::stop_accepting() {
  if (std::exchange(state_->closing, true)) return;
  error_code ignored;
  state_->acceptor.close(ignored);
  for (Connection* connection : std::set(state_->connections)) connection->close_if_idle();
}

}  // namespace quire
