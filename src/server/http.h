#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "server/http_message.h"

namespace quire {

namespace asio = boost::asio;

// One request and its response: whole, or as a stream. Belongs to the thread of its io_context, as all here.
class Exchange {
 public:
  virtual ~Exchange() = default;
  const HttpRequest& request() const { return request_; }
  // The body is not needed any more: others may have its memory.
  virtual void drop_body() = 0;

  // Added to whatever response comes.
  void add_header(std::string name, std::string value) {
    extra_.emplace_back(std::move(name), std::move(value));
  }
  virtual asio::awaitable<void> respond(HttpResponse response) = 0;
  // False: the client has gone; nothing more needs to be written.
  virtual asio::awaitable<bool> begin_stream(HttpResponse head) = 0;
  virtual asio::awaitable<bool> write(std::string part) = 0;
  virtual asio::awaitable<void> end_stream() = 0;
  // `gone` is called at most once, if the client leaves before the response is complete.
  virtual void when_gone(std::function<void()> gone) = 0;
  bool responded() const { return responded_; }

 protected:
  HttpRequest request_;
  std::vector<std::pair<std::string, std::string>> extra_;
  bool responded_ = false;  // at least its head is on its way
};

// Accepts connections and has each request answered, one at a time per connection. All of it runs on the thread that
// runs the io_context. What throws in a connection ends that one, with 503 or 500 if it can still be told.
class HttpServer {
 public:
  using Handler = std::function<asio::awaitable<void>(Exchange&)>;
  // Who answers a request, or why nobody does.
  struct Admission {
    Handler handler;
    std::optional<HttpResponse> refusal;
  };
  // Called when the head of a request has come, with a body that is still empty: a request that is refused is answered
  // before a byte of its body is taken.
  using Admit = std::function<Admission(Exchange&)>;

  // Throws Error if the address cannot be bound. Port 0: any that is free.
  HttpServer(asio::io_context& io, const std::string& host, uint16_t port, const HttpLimits& limits,
             Admit admit);
  ~HttpServer();

  uint16_t port() const;
  uint32_t connections() const;
  uint32_t exchanges() const;  // requests that are being answered
  // Accepts no more, closes idle connections, and the others after their response.
  void stop_accepting();
  // Accepts again if a lack of memory has ended it. To be called now and then.
  void keep_accepting();

  struct State;  // shared with the connections

 private:
  std::shared_ptr<State> state_;
};

}  // namespace quire
