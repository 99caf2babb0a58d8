#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/http.h"
#include "server/viewer.h"

namespace quire {

struct StreamLimits {
  size_t bytes = size_t(4) << 20;       // of one stream; what is longer cannot be read again
  size_t all_bytes = size_t(64) << 20;  // of all of them; those that ended first make room
  uint32_t streams = 256;
  std::chrono::milliseconds unread{120'000};  // that an answer goes on with nobody who reads it
  std::chrono::milliseconds ended{600'000};   // that one can be read after its end
};

// What streams have said so far, for readers who come back. Belongs to the thread of its executor.
class KeptStreams {
 public:
  class Reader;
  // One stream. It is written by whoever answers, and read by any number, each from its beginning.
  class Stream {
   public:
    Stream(const asio::any_io_executor& executor, std::string client, std::string type)
        : client_(std::move(client)), type_(std::move(type)), timer_(executor) {}

    const std::string& type() const { return type_; }
    // What has been said from `at` on, at most `most` bytes.
    std::string said(size_t at, size_t most) const { return text_.substr(at, most); }
    bool has_more(size_t at) const { return at < text_.size(); }
    bool ended() const { return ended_; }
    bool lost() const { return lost_; }  // it became longer than what is kept

   private:
    friend class KeptStreams;
    void ring();

    const std::string client_, type_;
    std::string text_;
    bool ended_ = false, lost_ = false;
    std::set<Reader*> readers_;  // the one who asked among them
    std::function<void()> abandon_;
    asio::steady_timer timer_;  // until nobody has read for too long, or the end is too long ago
  };
  // Reads a stream: while there is one who does, the answer goes on.
  class Reader {
   public:
    Reader(KeptStreams& all, std::shared_ptr<Stream> stream);
    ~Reader() { leave(); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    const Stream& stream() const { return *stream_; }
    // Returns when there may be more.
    asio::awaitable<void> wait();
    // It reads no more.
    void leave() noexcept;
    bool has_left() const { return left_; }

   private:
    friend class Stream;
    KeptStreams& all_;
    std::shared_ptr<Stream> stream_;
    asio::steady_timer bell_;  // cancelling it wakes who waits
    bool left_ = false;
  };

  KeptStreams(const asio::any_io_executor& executor, const StreamLimits& limits)
      : executor_(executor), limits_(limits) {}

  // `abandon` ends the answer; it is called when nobody has read it for too long. Null: no more can be kept.
  std::shared_ptr<Stream> begin(const std::string& id, std::string client, std::string type,
                                std::function<void()> abandon);
  void add(Stream& stream, std::string_view text);
  // Nothing more comes.
  void end(const std::string& id) noexcept;
  // Null if there is none of that id that the viewer may see.
  std::shared_ptr<Stream> find(const std::string& id, const Viewer& viewer) const;
  // Sends what a stream has said so far, and follows it. Throws ApiError if there is none that the viewer may see.
  asio::awaitable<void> follow(Exchange& exchange, std::string id, Viewer viewer);

 private:
  void begin_waiting(const std::shared_ptr<Stream>& stream);
  bool make_room(size_t bytes, size_t streams);
  void drop(Stream& stream);

  asio::any_io_executor executor_;
  const StreamLimits limits_;
  size_t bytes_ = 0;                                        // of all texts
  std::map<std::string, std::shared_ptr<Stream>> streams_;  // by request id
};

}  // namespace quire
