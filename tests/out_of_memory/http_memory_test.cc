// Every allocation of a connection fails once: that connection is told or closed, and the next is served as ever.
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <gtest/gtest.h>

#include "failing_allocator.h"
#include "raw_http_client.h"
#include "server/http.h"
#include "server/workers.h"

namespace quire {
namespace {

constexpr uint64_t kMostAllocations = 5000;  // of one exchange; it is far from that

// Answers whole, as a stream, or with what a worker has made.
class Handlers {
 public:
  explicit Handlers(asio::io_context& io) : workers_(io) {}

  HttpServer::Admission admit(Exchange& exchange) {
    HttpServer::Admission admission;
    const std::string& path = exchange.request().path;
    if (path == "/whole") admission.handler = [](Exchange& e) { return whole(e); };
    if (path == "/stream") admission.handler = [](Exchange& e) { return stream(e); };
    if (path == "/aside") admission.handler = [this](Exchange& e) { return aside(e); };
    if (!admission.handler) {
      admission.refusal.emplace();
      admission.refusal->status = 404;
      admission.refusal->body = "a refusal that is too long to be kept without memory of its own";
    }
    return admission;
  }

 private:
  static HttpResponse reply(std::string body) {
    HttpResponse response;
    response.body = std::move(body);
    return response;
  }
  static asio::awaitable<void> whole(Exchange& exchange) {
    HttpResponse response = reply("whole: " + exchange.request().body);
    exchange.add_header("X-Request-Id", "an id that is too long to be kept without memory of its own");
    exchange.when_gone([] {});
    co_await exchange.respond(std::move(response));
  }
  static asio::awaitable<void> stream(Exchange& exchange) {
    HttpResponse head = reply("");
    co_await exchange.begin_stream(std::move(head));
    for (int i = 0; i < 3; ++i) {
      std::string part = "part: " + exchange.request().body;
      co_await exchange.write(std::move(part));
    }
    co_await exchange.end_stream();
  }
  asio::awaitable<void> aside(Exchange& exchange) {
    const auto work = [&] { return "aside: " + exchange.request().body; };
    HttpResponse response = reply(co_await workers_.run(Workers::Lane::small, work));
    co_await exchange.respond(std::move(response));
  }

  Workers workers_;
};

class HttpMemory : public testing::TestWithParam<const char*> {
 protected:
  HttpMemory() {
    thread_ = std::thread([this] {
      failing_allocator::take_part();
      while (!io_.stopped()) {
        try {
          io_.run_for(std::chrono::milliseconds(5));
          http_.keep_accepting();
        } catch (const std::exception&) {
        }
      }
      failing_allocator::stand_aside();
    });
  }
  ~HttpMemory() override {
    failing_allocator::fail_at(0);
    io_.stop();
    thread_.join();
  }
  static std::string request() {
    const std::string body(500, 'b');
    const std::string path = GetParam();
    if (path == "/chunks")
      return "POST /whole HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: "
             "close\r\n\r\n1f4\r\n" +
             body + "\r\n0\r\n\r\n";
    if (path == "/wrong") return "nonsense\r\n\r\n";
    return RawClient::request("POST", path, body,
                              "Connection: close\r\nX-Long: " + std::string(100, 'h') + "\r\n");
  }
  // What the server says to it, until it closes.
  std::string answer() const {
    RawClient client(http_.port());
    EXPECT_TRUE(client.connected());
    client.send(request());
    return client.read_all();
  }

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  Handlers handlers_{io_};
  HttpServer http_{io_, "127.0.0.1", 0, {}, [this](Exchange& exchange) { return handlers_.admit(exchange); }};
  std::thread thread_;
};

TEST_P(HttpMemory, EveryAllocationOfAnExchangeMayFail) {
  const std::string good = answer();
  ASSERT_TRUE(good.starts_with("HTTP/1.1 "));
  uint64_t whole = 0, refused = 0, cut = 0;
  for (uint64_t nth = 1; nth < kMostAllocations; ++nth) {
    failing_allocator::fail_at(nth);
    const std::string got = answer();
    const bool failed = failing_allocator::has_failed();
    failing_allocator::fail_at(0);
    whole += got == good;
    refused += got != good && (got.starts_with("HTTP/1.1 503") || got.starts_with("HTTP/1.1 500"));
    cut += got != good && good.starts_with(got);
    EXPECT_EQ(whole + refused + cut, nth) << got;
    ASSERT_EQ(answer(), good) << "after allocation " << nth << " had failed";
    if (!failed) break;  // there are no more
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(whole, 0u);
  RecordProperty("whole", std::to_string(whole));
  RecordProperty("refused", std::to_string(refused));
  RecordProperty("cut", std::to_string(cut));
}

INSTANTIATE_TEST_SUITE_P(Of, HttpMemory,
                         testing::Values("/whole", "/stream", "/aside", "/nothing", "/chunks", "/wrong"),
                         [](const auto& info) { return std::string(info.param).substr(1); });

}  // namespace
}  // namespace quire
