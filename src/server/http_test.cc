#include "server/http.h"

#include <optional>
#include <stdexcept>
#include <thread>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>

namespace quire {
namespace {

HttpResponse fine() {
  HttpResponse response;
  response.body = "fine";
  return response;
}

asio::awaitable<void> handle(Exchange& exchange) {
  if (exchange.request().path == "/bug") throw std::runtime_error("a bug");
  if (exchange.request().path == "/late") {
    co_await exchange.begin_stream(fine());
    co_await exchange.write("begun");
    throw std::runtime_error("a bug");
  }
  co_await exchange.respond(fine());
}

HttpServer::Admission admit(Exchange& exchange) {
  HttpServer::Admission admission;
  admission.handler = handle;
  if (exchange.request().path == "/forbidden") admission.refusal = HttpResponse{.status = 403};
  return admission;
}

// A server of that handler on a thread of its own.
struct Served {
  ~Served() {
    io.stop();
    thread.join();
  }
  std::string ask(const std::string& path) {
    asio::io_context own;
    asio::ip::tcp::socket socket(own);
    socket.connect({asio::ip::address_v4::loopback(), http.port()});
    asio::write(socket, asio::buffer("GET " + path + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
    std::string reply;
    boost::system::error_code end;
    asio::read(socket, asio::dynamic_buffer(reply), end);
    return reply;
  }

  asio::io_context io{1};
  HttpServer http{io, "127.0.0.1", 0, {}, admit};
  std::thread thread{[this] { io.run(); }};
};

TEST(HttpServer, AHandlerThatFailsIsAnErrorOfThatRequestAlone) {
  Served served;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(served.ask("/bug").starts_with("HTTP/1.1 500 "));
    EXPECT_TRUE(served.ask("/").ends_with("fine"));
  }
}

TEST(HttpServer, AStreamThatFailsEndsWithoutItsLastChunk) {
  Served served;
  const std::string reply = served.ask("/late");
  EXPECT_NE(reply.find("begun"), std::string::npos);
  EXPECT_FALSE(reply.ends_with("0\r\n\r\n"));  // so that the client knows
}

}  // namespace
}  // namespace quire
