#include "server/http.h"

#include <algorithm>
#include <set>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <sys/socket.h>

#include "base/error.h"
#include "server/byte_budget.h"
#include "server/counted.h"
#include "server/http_framing.h"

namespace quire {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

constexpr size_t kMostEarlyBytes = 64 << 10;  // of a next request, taken while one is being answered
constexpr size_t kBodyRead = 64 << 10, kRead = 4 << 10;
constexpr uint32_t kMostTurnedAway = 64;  // connections beyond the limit that are told so at a time
constexpr const char* kNoMemory = "there is not enough memory for this request";
constexpr size_t kSmallReply = 4 << 10;  // errors and the like, for which there is always room

HttpResponse failure_response(int status, std::string_view why) {
  HttpResponse response;
  response.status = status;
  response.body = fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":null}}}})", why,
                              status >= 500 ? "server_error" : "invalid_request_error");
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace

struct HttpServer::State {
  State(asio::io_context& io, const HttpLimits& limits, Admit admit)
      : io(io),
        acceptor(io),
        limits(limits),
        admit(std::move(admit)),
        requests(limits.request_bytes_in_flight),
        replies(limits.reply_bytes_in_flight) {}

  asio::io_context& io;
  tcp::acceptor acceptor;
  HttpLimits limits;
  Admit admit;
  ByteBudget requests, replies;
  bool closing = false;
  uint32_t acceptors = 0;  // coroutines that accept: one, unless it was lost
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
        buffer_(state_->limits.header_bytes + kMostEarlyBytes),
        body_share_(state_->requests) {
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

  void drop_body() override {
    request_.body = std::string();  // gives its memory back: clear() would not
    body_share_.release();
  }
  asio::awaitable<void> respond(HttpResponse response) override;
  asio::awaitable<bool> begin_stream(HttpResponse head) override;
  asio::awaitable<bool> write(std::string part) override;
  asio::awaitable<void> end_stream() override;
  void when_gone(std::function<void()> gone) override;

 private:
  // Closes at the end of what a connection does, also if there was no memory to go on: Asio then destroys its coroutines.
  class Closing {
   public:
    explicit Closing(Connection& connection) : connection_(connection) {}
    ~Closing() {
      if (connection_.answering_) connection_.see_client();  // nobody will go on with it
      connection_.forget_request();
      connection_.close();
    }
    Closing(const Closing&) = delete;
    Closing& operator=(const Closing&) = delete;

   private:
    Connection& connection_;
  };

  // False: the connection ends.
  asio::awaitable<bool> serve_request();
  asio::awaitable<bool> wait_for_bytes();
  asio::awaitable<bool> read_head(RequestReader& reader);
  asio::awaitable<bool> read_body(RequestReader& reader);
  asio::awaitable<bool> say_continue();
  asio::awaitable<bool> read_more(size_t most);
  asio::awaitable<void> refuse(HttpResponse response);
  asio::awaitable<void> respond_and_drain(HttpResponse response);
  asio::awaitable<void> answer(HttpServer::Handler handler);
  asio::awaitable<void> write_whole(http::response<http::string_body>& message);
  void take_head(const RequestReader& reader);
  void take_buffered(RequestReader& reader);
  void forget_request();
  void watch();
  void stop_watching();
  void see_client();
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
  beast::flat_buffer buffer_;     // what has come and belongs to no request yet
  ByteBudget::Share body_share_;  // of the request's body
  std::string peer_;
  unsigned version_ = 11;
  bool keep_alive_ = true, head_only_ = false, chunked_ = false;
  bool answering_ = false, broken_ = false, watching_ = false;
  std::function<void()> gone_;
};

// ---- reading -----------------------------------------------------------------------------------------------------

// False: the client has left, or its time is over.
asio::awaitable<bool> Connection::read_more(size_t most) {
  error_code problem;
  const size_t count =
      co_await stream_.async_read_some(buffer_.prepare(most), redirect_error(use_awaitable, problem));
  buffer_.commit(count);
  co_return !problem;
}

asio::awaitable<bool> Connection::wait_for_bytes() {
  if (buffer_.size() > 0) co_return true;
  stream_.expires_after(state_->limits.idle_time);
  const bool more = co_await read_more(kRead);
  co_return more;
}

void Connection::take_buffered(RequestReader& reader) {
  const auto bytes = buffer_.cdata();
  buffer_.consume(reader.take({static_cast<const char*>(bytes.data()), bytes.size()}));
}

asio::awaitable<bool> Connection::read_head(RequestReader& reader) {
  stream_.expires_after(state_->limits.header_time);
  take_buffered(reader);
  while (reader.state() == RequestReader::State::head) {
    const bool more = co_await read_more(kRead);
    if (!more) co_return false;
    take_buffered(reader);
  }
  if (reader.state() == RequestReader::State::wrong) {
    HttpResponse response = failure_response(reader.problem().status, reader.problem().why);
    co_await refuse(std::move(response));
    co_return false;
  }
  take_head(reader);
  co_return true;
}

void Connection::take_head(const RequestReader& reader) {
  request_ = request_of(reader.head());
  request_.peer = peer_;
  version_ = reader.head().http_1_1 ? 11 : 10;
  keep_alive_ = reader.judgement().keep_alive;
  head_only_ = request_.method == "HEAD";
  if (head_only_) request_.method = "GET";
  responded_ = false;
  broken_ = false;
  extra_.clear();
}

asio::awaitable<bool> Connection::say_continue() {
  static const std::string kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  error_code problem;
  co_await asio::async_write(stream_, asio::buffer(kContinue), redirect_error(use_awaitable, problem));
  co_return !problem;
}

asio::awaitable<bool> Connection::read_body(RequestReader& reader) {
  reader.take_body(state_->limits.body_bytes);
  if (reader.state() == RequestReader::State::done) co_return true;
  bool there = true;
  bool room = state_->requests.has_room(size_t(reader.judgement().length));
  stream_.expires_after(state_->limits.body_time);
  if (room && reader.wants_more() && reader.judgement().waits_for_continue) there = co_await say_continue();
  while (there && room && reader.wants_more()) {
    take_buffered(reader);
    room = body_share_.grow_to(reader.body().size());
    if (room && reader.wants_more()) there = co_await read_more(kBodyRead);
  }
  buffer_.shrink_to_fit();
  if (!there) co_return false;
  if (reader.state() == RequestReader::State::done && room) {
    request_.body = std::move(reader.body());
    co_return true;
  }
  reader.body() = std::string();
  HttpResponse response = failure_response(503, "too many requests are being received; try again");
  if (room) response = failure_response(reader.problem().status, reader.problem().why);
  co_await refuse(std::move(response));
  co_return false;
}

// For what is answered without having been read.
asio::awaitable<void> Connection::refuse(HttpResponse response) {
  if (request_.method.empty()) {  // not even its head was understood
    head_only_ = false;
    version_ = 11;
    extra_.clear();
  }
  body_share_.release();
  co_await respond_and_drain(std::move(response));
}

// The rest of a request would make the system reset the connection before the client has read the answer.
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

// ---- one request after the other ---------------------------------------------------------------------------------

asio::awaitable<void> Connection::serve() {
  const auto self = shared_from_this();
  const Closing closing(*this);
  bool failed = false;
  try {
    bool goes_on = true;
    while (goes_on && !state_->closing) {
      goes_on = co_await serve_request();
      forget_request();
    }
  } catch (const std::exception&) {
    failed = true;
  }
  if (failed && !responded_ && !broken_) {
    try {
      HttpResponse sorry = failure_response(503, kNoMemory);
      co_await respond_and_drain(std::move(sorry));
    } catch (const std::exception&) {  // then it ends without a word
    }
  }
}

asio::awaitable<bool> Connection::serve_request() {
  const bool any = co_await wait_for_bytes();
  if (!any) co_return false;
  responded_ = false;  // from here on it can be told what goes wrong
  RequestReader reader(state_->limits.header_bytes);
  const bool has_head = co_await read_head(reader);
  if (!has_head) co_return false;
  HttpServer::Admission admission = state_->admit(*this);
  if (admission.refusal && reader.judgement().has_body()) {
    co_await refuse(std::move(*admission.refusal));
    co_return false;
  }
  if (admission.refusal) {
    co_await respond(std::move(*admission.refusal));
    co_return keep_alive_ && !broken_;
  }
  const bool has_body = co_await read_body(reader);
  if (!has_body) co_return false;
  co_await answer(std::move(admission.handler));
  co_return keep_alive_ && !broken_;
}

asio::awaitable<void> Connection::answer(HttpServer::Handler handler) {
  const Counted counted(state_->exchanges);
  answering_ = true;
  int failure = 0;
  try {
    co_await handler(*this);
  } catch (const std::bad_alloc&) {
    failure = 503;
  } catch (const std::exception&) {
    failure = 500;
  }
  if (failure != 0) keep_alive_ = false;
  if (failure != 0 && !responded_ && !broken_) {
    HttpResponse sorry =
        failure_response(failure, failure == 503 ? kNoMemory : "the server failed at this request");
    co_await respond(std::move(sorry));
  }
  stop_watching();
}

// The connection may wait for long, and what it had may be large.
void Connection::forget_request() {
  answering_ = false;
  gone_ = nullptr;
  std::exchange(request_, {});
  body_share_.release();
}

asio::awaitable<void> Connection::turn_away() {
  const auto self = shared_from_this();
  const Closing closing(*this);
  const Counted counted(state_->turned_away);
  try {
    HttpResponse response = failure_response(503, "too many connections");
    co_await respond_and_drain(std::move(response));
  } catch (const std::exception&) {  // then it ends without a word
  }
}

// ---- writing -----------------------------------------------------------------------------------------------------

template <class Message>
void Connection::fill_head(Message& message, const HttpResponse& response) const {
  message.version(version_);
  message.result(unsigned(response.status));
  message.set(http::field::server, "quire");
  if (!response.type.empty()) message.set(http::field::content_type, response.type);
  message.set("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : response.headers) message.set(name, value);
  for (const auto& [name, value] : extra_) message.set(name, value);
}

asio::awaitable<void> Connection::respond(HttpResponse response) {
  if (state_->closing) keep_alive_ = false;
  ByteBudget::Share share(state_->replies);
  const size_t held = head_only_ || response.body.size() <= kSmallReply ? 0 : response.body.size();
  if (!share.grow_to(held))
    response = failure_response(503, "too many replies wait for their readers; try again");
  http::response<http::string_body> message;
  fill_head(message, response);
  message.keep_alive(keep_alive_);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head_only_) message.body() = std::string();
  responded_ = true;
  co_await write_whole(message);
}

asio::awaitable<void> Connection::write_whole(http::response<http::string_body>& message) {
  const HttpLimits& limits = state_->limits;
  const auto for_bytes = std::chrono::milliseconds(1000 * message.body().size() /
                                                   std::max<size_t>(limits.least_bytes_per_second, 1));
  const auto latest = SteadyClock::now() + limits.write_time + for_bytes;
  error_code problem;
  http::response_serializer<http::string_body> serializer(message);
  if (head_only_) serializer.split(true);
  while (!problem && !(head_only_ ? serializer.is_header_done() : serializer.is_done())) {
    stream_.expires_at(std::min(latest, SteadyClock::now() + limits.write_time));
    co_await http::async_write_some(stream_, serializer, redirect_error(use_awaitable, problem));
  }
  if (problem) broken_ = true;
}

asio::awaitable<bool> Connection::begin_stream(HttpResponse head) {
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
  responded_ = true;
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

// ---- clients that leave ------------------------------------------------------------------------------------------

void Connection::when_gone(std::function<void()> gone) {
  gone_ = std::move(gone);
  if (!watching_) watch();
}

// Readable while a response is on its way: the client has left, or has sent its next request early.
void Connection::watch() {
  stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code problem) {
    self->watching_ = false;
    if (problem == asio::error::operation_aborted || !self->answering_) return;
    try {
      if (!problem && self->take_early_bytes()) {
        if (self->buffer_.size() < kMostEarlyBytes) self->watch();
        return;
      }
    } catch (const std::exception&) {  // whoever cannot be watched has to go
    }
    self->see_client();
  });
  watching_ = true;
}

// It has left, or cannot be looked after.
void Connection::see_client() {
  broken_ = true;
  const auto gone = std::exchange(gone_, nullptr);
  if (!gone) return;
  try {
    gone();
  } catch (const std::exception&) {  // the next write fails: what is done for the client ends then
  }
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

void take_connection(const std::shared_ptr<HttpServer::State>& state, tcp::socket socket) {
  const bool full = state->full();
  if (full && state->turned_away >= kMostTurnedAway) return;  // closed without a word
  const auto connection = std::make_shared<Connection>(state, std::move(socket));
  // A connection catches what it throws; what is thrown before it begins or after its end harms nobody else.
  asio::co_spawn(state->io, full ? connection->turn_away() : connection->serve(), [](std::exception_ptr) {});
}

asio::awaitable<void> accept_all(std::shared_ptr<HttpServer::State> state) {
  const Counted counted(state->acceptors);  // also if it ends because an operation could not begin
  while (!state->closing) {
    error_code problem;
    try {
      tcp::socket socket = co_await state->acceptor.async_accept(redirect_error(use_awaitable, problem));
      if (state->closing) break;
      if (!problem) take_connection(state, std::move(socket));
    } catch (const std::bad_alloc&) {
      problem = asio::error::no_memory;
    }
    if (!problem) continue;
    // No memory or file descriptor is left, or the client has gone already: a moment later it may work.
    asio::steady_timer pause(state->io, std::chrono::milliseconds(50));
    co_await pause.async_wait(redirect_error(use_awaitable, problem));
  }
}

}  // namespace

HttpServer::HttpServer(asio::io_context& io, const std::string& host, uint16_t port, const HttpLimits& limits,
                       Admit admit)
    : state_(std::make_shared<State>(io, limits, std::move(admit))) {
  error_code problem;
  const asio::ip::address address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, problem);
  if (problem) throw Error("'{}' is not an IP address to listen on; write e.g. 127.0.0.1 or 0.0.0.0", host);
  const tcp::endpoint endpoint(address, port);
  state_->acceptor.open(endpoint.protocol(), problem);
  if (!problem) state_->acceptor.set_option(asio::socket_base::reuse_address(true), problem);
  if (!problem) state_->acceptor.bind(endpoint, problem);
  if (!problem) state_->acceptor.listen(asio::socket_base::max_listen_connections, problem);
  if (problem) throw Error("cannot listen on {} port {}: {}", host, port, problem.message());
  keep_accepting();
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

void HttpServer::keep_accepting() {
  if (state_->closing || state_->acceptors > 0) return;
  asio::co_spawn(state_->io, accept_all(state_), [](std::exception_ptr) {});
}

}  // namespace quire
