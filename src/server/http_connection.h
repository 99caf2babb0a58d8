#pragma once

#include <memory>
#include <set>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "server/byte_budget.h"
#include "server/http.h"
#include "server/http_framing.h"

// Inside http.cc and its like only.

namespace quire {

// What the connections of a server share.
struct HttpServer::State {
  State(asio::io_context& io, const HttpLimits& limits, Admit admit)
      : io(io),
        acceptor(io),
        limits(limits),
        admit(std::move(admit)),
        requests(limits.request_bytes_in_flight),
        replies(limits.reply_bytes_in_flight) {}

  asio::io_context& io;
  asio::ip::tcp::acceptor acceptor;
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
  static constexpr size_t kMostEarlyBytes = 64 << 10;  // of a next request, taken while one is being answered

  using State = HttpServer::State;
  Connection(std::shared_ptr<State> state, asio::ip::tcp::socket socket)
      : state_(std::move(state)),
        stream_(std::move(socket)),
        buffer_(state_->limits.header_bytes + kMostEarlyBytes),
        body_share_(state_->requests) {
    boost::system::error_code ignored;
    const auto remote = stream_.socket().remote_endpoint(ignored);
    if (!ignored) peer_ = remote.address().to_string();
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
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
  asio::awaitable<void> write_whole(boost::beast::http::response<boost::beast::http::string_body>& message);
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
    boost::system::error_code ignored;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  std::shared_ptr<State> state_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;  // what has come and belongs to no request yet
  ByteBudget::Share body_share_;      // of the request's body
  std::string peer_;
  unsigned version_ = 11;
  bool keep_alive_ = true, head_only_ = false, chunked_ = false;
  bool answering_ = false, broken_ = false, watching_ = false;
  std::function<void()> gone_;
};

// An error in OpenAI's shape.
HttpResponse failure_response(int status, std::string_view why);

}  // namespace quire
