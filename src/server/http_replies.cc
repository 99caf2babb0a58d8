#include <algorithm>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "server/http_connection.h"

// What a connection writes.

namespace quire {
namespace {

namespace http = boost::beast::http;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

constexpr size_t kSmallReply = 4 << 10;  // errors and the like, for which there is always room

}  // namespace

HttpResponse failure_response(int status, std::string_view why) {
  HttpResponse response;
  response.status = status;
  response.body = fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":null}}}})", why,
                              status >= 500 ? "server_error" : "invalid_request_error");
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

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
  if (broken_ || head_only_) co_return false;  // whoever asked for the head alone has it
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
  if (broken_ || !chunked_ || head_only_) co_return;
  error_code problem;
  stream_.expires_after(state_->limits.write_time);
  co_await asio::async_write(stream_, http::make_chunk_last(), redirect_error(use_awaitable, problem));
  if (problem) broken_ = true;
}

}  // namespace quire
