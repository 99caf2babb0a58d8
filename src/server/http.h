#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

namespace quire {

namespace asio = boost::asio;

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string peer;  // the client's address

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// One request and its response: whole, or as a stream. Belongs to the thread of its io_context, as all here.
class Exchange {
 public:
  virtual ~Exchange() = default;
  const HttpRequest& request() const { return request_; }

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

struct HttpLimits {
  size_t body_bytes = size_t(16) << 20;
  uint32_t header_bytes = 16 << 10;
  uint32_t connections = 4096;
  std::chrono::milliseconds header_time{10'000}, body_time{60'000}, idle_time{120'000};
  std::chrono::milliseconds write_time{60'000};  // without progress: a reader that has stopped
};

// Accepts connections and gives each request to the handler, one at a time per connection. All of it runs on the
// thread that runs the io_context.
class HttpServer {
 public:
  using Handler = std::function<asio::awaitable<void>(Exchange&)>;
  // Throws Error if the address cannot be bound. Port 0: any that is free.
  HttpServer(asio::io_context& io, const std::string& host, uint16_t port, const HttpLimits& limits,
             Handler handler);
  ~HttpServer();

  uint16_t port() const;
  uint32_t connections() const;
  uint32_t exchanges() const;  // requests that are being answered
  // Accepts no more, closes idle connections, and the others after their response.
  void stop_accepting();

  struct State;  // shared with the connections

 private:
  std::shared_ptr<State> state_;
};

}  // namespace quire
