#include "server/kept_streams.h"

#include <stdexcept>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "openai/api_error.h"
#include "server/responses.h"

namespace quire {

using boost::system::error_code;

void KeptStreams::Stream::ring() {
  for (Reader* reader : readers_) reader->bell_.cancel();
}

KeptStreams::Reader::Reader(KeptStreams& all, std::shared_ptr<Stream> stream)
    : all_(all), stream_(std::move(stream)), bell_(all.executor_) {
  stream_->readers_.insert(this);
  if (!stream_->ended_) stream_->timer_.cancel();
}

asio::awaitable<void> KeptStreams::Reader::wait() {
  constexpr std::chrono::seconds kLook{1};  // for whoever leaves without a word
  error_code rung;
  bell_.expires_after(kLook);
  co_await bell_.async_wait(asio::redirect_error(asio::use_awaitable, rung));
}

void KeptStreams::Reader::leave() noexcept {
  if (std::exchange(left_, true)) return;
  stream_->readers_.erase(this);
  try {
    bell_.cancel();
    if (stream_->readers_.empty() && !stream_->ended_) all_.begin_waiting(stream_);
  } catch (const std::exception&) {  // then it goes on to its end for nobody
  }
}

void KeptStreams::begin_waiting(const std::shared_ptr<Stream>& stream) {
  stream->timer_.expires_after(limits_.unread);
  stream->timer_.async_wait([weak = std::weak_ptr(stream)](error_code problem) {
    const auto left = weak.lock();
    if (!problem && left && left->readers_.empty() && !left->ended_) left->abandon_();
  });
}

std::shared_ptr<KeptStreams::Stream> KeptStreams::begin(const std::string& id, std::string client,
                                                        std::string type, std::function<void()> abandon) {
  if (!make_room(0, 1)) return nullptr;
  auto stream = std::make_shared<Stream>(executor_, std::move(client), std::move(type));
  stream->abandon_ = std::move(abandon);
  streams_.emplace(id, stream);
  return stream;
}

// For so many more bytes and streams; those that ended first go. False: all of them run.
bool KeptStreams::make_room(size_t bytes, size_t streams) {
  while (bytes_ + bytes > limits_.all_bytes || streams_.size() + streams > limits_.streams) {
    auto oldest = streams_.end();
    for (auto it = streams_.begin(); it != streams_.end(); ++it) {
      if (!it->second->ended_) continue;
      if (oldest == streams_.end() || it->second->timer_.expiry() < oldest->second->timer_.expiry())
        oldest = it;
    }
    if (oldest == streams_.end()) return false;
    drop(*oldest->second);
    oldest->second->timer_.cancel();
    streams_.erase(oldest);
  }
  return true;
}

// Its text is gone: whoever reads it is told, and whoever asks for it.
void KeptStreams::drop(Stream& stream) {
  bytes_ -= stream.text_.size();
  stream.text_ = std::string();
  stream.lost_ = true;
  stream.ring();
}

void KeptStreams::add(Stream& stream, std::string_view text) {
  if (stream.lost_) return;
  const bool fits = stream.text_.size() + text.size() <= limits_.bytes && make_room(text.size(), 0);
  if (!fits) {
    drop(stream);
    return;
  }
  stream.text_ += text;
  bytes_ += text.size();
  stream.ring();
}

void KeptStreams::end(const std::string& id) noexcept try {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = *found->second;
  stream.ended_ = true;
  stream.abandon_ = nullptr;
  stream.ring();
  stream.timer_.expires_after(limits_.ended);
  stream.timer_.async_wait([this, id](error_code problem) {
    const auto old = streams_.find(id);
    if (problem || old == streams_.end()) return;
    drop(*old->second);
    streams_.erase(old);
  });
} catch (const std::exception&) {  // then it stays until others need its room
}

std::shared_ptr<KeptStreams::Stream> KeptStreams::find(const std::string& id, const Viewer& viewer) const {
  const auto found = streams_.find(id);
  return found != streams_.end() && viewer.sees(found->second->client_) ? found->second : nullptr;
}

asio::awaitable<void> KeptStreams::follow(Exchange& exchange, std::string id, Viewer viewer) {
  constexpr size_t kPiece = 64 << 10;
  const auto stream = find(id, viewer);
  if (!stream)
    throw ApiError(404, "", "not_found", fmt::format("the stream '{}' is not known (any more)", id));
  if (stream->lost())
    throw ApiError(410, "", "stream_too_long", "the stream became longer than what can be read again");
  const auto reader = std::make_shared<Reader>(*this, stream);
  exchange.add_header("X-Request-Id", id);
  exchange.when_gone([reader] { reader->leave(); });
  bool heard = co_await exchange.begin_stream(stream_head(stream->type()));
  for (size_t at = 0; heard && !reader->has_left();) {
    // Only a stream that breaks off says that something is missing, in the words of every API.
    if (stream->lost()) throw std::runtime_error("the stream became longer than what is kept");
    if (stream->has_more(at)) {
      std::string piece = stream->said(at, kPiece);
      at += piece.size();
      heard = co_await exchange.write(std::move(piece));
    } else if (stream->ended()) {
      co_await exchange.end_stream();
      co_return;
    } else {
      co_await reader->wait();
    }
  }
}

}  // namespace quire
