#include "server/http_connection.h"

#include <algorithm>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <sys/socket.h>

#include "server/counted.h"

namespace quire {
namespace {

using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kBodyRead = 64 << 10, kRead = 4 << 10;
constexpr const char* kNoMemory = "there is not enough memory for this request";

}  // namespace

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

}  // namespace quire
