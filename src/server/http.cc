#include "server/http.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/error.h"
#include "server/counted.h"
#include "server/http_connection.h"

namespace quire {
namespace {

using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;

constexpr uint32_t kMostTurnedAway = 64;  // connections beyond the limit that are told so at a time

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
