#include "remote/redis_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <new>
#include <string_view>

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/late_library.h"

namespace quire {
namespace {

#define QUIRE_TEXT_OF(x) #x
#define QUIRE_TEXT(x) QUIRE_TEXT_OF(x)

constexpr size_t kLargestWord = 4096;  // of what is no value: numbers, words, complaints
constexpr size_t kReadAtOnce = size_t(256) << 10;
constexpr size_t kWrittenAtOnce = 64;  // pieces

struct HiredisLibrary {
  LateLibrary file{
      "libhiredis.so." QUIRE_TEXT(HIREDIS_SONAME),
      "it speaks with the store of --kv-remote; install hiredis (apt-get install libhiredis" QUIRE_TEXT(
          HIREDIS_SONAME) ")"};
  decltype(::redisConnectNonBlock)* connect =
      file.function<decltype(::redisConnectNonBlock)>("redisConnectNonBlock");
  decltype(::redisConnectUnixNonBlock)* connect_socket =
      file.function<decltype(::redisConnectUnixNonBlock)>("redisConnectUnixNonBlock");
  decltype(::redisFree)* free = file.function<decltype(::redisFree)>("redisFree");
  decltype(::redisReaderCreateWithFunctions)* make_reader =
      file.function<decltype(::redisReaderCreateWithFunctions)>("redisReaderCreateWithFunctions");
  decltype(::redisReaderFree)* free_reader = file.function<decltype(::redisReaderFree)>("redisReaderFree");
  decltype(::redisReaderFeed)* feed = file.function<decltype(::redisReaderFeed)>("redisReaderFeed");
  decltype(::redisReaderGetReply)* next =
      file.function<decltype(::redisReaderGetReply)>("redisReaderGetReply");
};

// ---- what hiredis makes of what comes ------------------------------------------------------------------------------

struct Reply {
  int type = REDIS_REPLY_NIL;
  long long number = 0;
  StoreValue value;  // of a text of any kind
};

// Called by C: nothing may be thrown through it. Null: there is no memory, or it is nothing that was asked for; then the reader gives up.
void* make_text(const redisReadTask* task, char* text, size_t size) {
  if (task->parent != nullptr) return nullptr;
  auto reply = std::unique_ptr<Reply>(new (std::nothrow) Reply);
  if (!reply) return nullptr;
  reply->type = task->type;
  std::unique_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[std::max<size_t>(size, 1)]);
  if (!bytes) return nullptr;
  std::memcpy(bytes.get(), text, size);
  try {
    reply->value = {.bytes = std::move(bytes), .size = size};
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return reply.release();
}

void* make_number(const redisReadTask* task, long long number) {
  if (task->parent != nullptr) return nullptr;
  Reply* reply = new (std::nothrow) Reply;
  if (reply != nullptr) {
    reply->type = task->type;
    reply->number = number;
  }
  return reply;
}

void* make_nothing(const redisReadTask* task) {
  return task->parent != nullptr ? nullptr : new (std::nothrow) Reply;
}

// Lists and whatever later versions know: nothing of it is ever asked for. What it is given differs between versions.
template <class... Given>
void* refuse(const redisReadTask*, Given...) {
  return nullptr;
}

void free_reply(void* reply) {
  delete static_cast<Reply*>(reply);
}

template <class Functions>
Functions reply_functions() {
  Functions functions{};
  functions.createString = make_text;
  functions.createArray = refuse;
  functions.createInteger = make_number;
  functions.createNil = make_nothing;
  functions.freeObject = free_reply;
  if constexpr (requires { functions.createDouble; }) functions.createDouble = refuse;
  if constexpr (requires { functions.createBool; }) functions.createBool = refuse;
  return functions;
}

std::string_view text_of(const Reply& reply) {
  return {reinterpret_cast<const char*>(reply.value.bytes.get()), reply.value.size};
}

// What a store says, for a terminal: it may be anything.
std::string told(const Reply& reply) {
  constexpr size_t kLongest = 160;
  std::string text(text_of(reply).substr(0, kLongest));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

// ---- a connection --------------------------------------------------------------------------------------------------

class RedisConnection : public StoreConnection {
 public:
  RedisConnection(const HiredisLibrary& library, const StoreAddress& address, const StorePatience& patience)
      : library_(library), place_(address.text()), patience_(patience) {
    functions_ = reply_functions<redisReplyObjectFunctions>();
    reader_.reset(library_.make_reader(&functions_));
    context_.reset(address.socket.empty() ? library_.connect(address.host.c_str(), address.port)
                                          : library_.connect_socket(address.socket.c_str()));
    if (!reader_ || !context_) throw std::bad_alloc();
    if (context_->err != 0) fail("{}", context_->errstr);
    wait(POLLOUT, Clock::now() + patience_.connect, patience_.connect, "cannot be reached");
    int problem = 0;
    socklen_t size = sizeof(problem);
    if (::getsockopt(context_->fd, SOL_SOCKET, SO_ERROR, &problem, &size) != 0) problem = errno;
    if (problem != 0) fail("cannot be reached: {}", std::strerror(problem));
    if (const int on = 1; address.socket.empty())
      ::setsockopt(context_->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    begin_session(address);
  }

  std::vector<bool> has(std::span<const std::string> names) override {
    if (names.empty()) {
      command({"PING"});
      flush();
      expect_word("PONG");
      return {};
    }
    for (const std::string& name : names) command({"EXISTS", name});
    flush();
    std::vector<bool> there;
    for (size_t i = 0; i < names.size(); ++i) {
      const auto reply = take_reply(kLargestWord);
      if (reply->type != REDIS_REPLY_INTEGER || reply->number < 0 || reply->number > 1) unexpected(*reply);
      there.push_back(reply->number == 1);
    }
    return there;
  }

  void ask(std::span<const std::string> names) override {
    for (const std::string& name : names) command({"GET", name});
    flush();
  }

  std::optional<StoreValue> take(size_t most) override {
    const auto reply = take_reply(most);
    if (reply->type == REDIS_REPLY_NIL) return std::nullopt;
    if (reply->type != REDIS_REPLY_STRING) unexpected(*reply);
    return std::move(reply->value);
  }

  std::vector<bool> put(std::span<const Put> values, std::string& refusal) override {
    for (const Put& value : values) {
      size_t size = 0;
      for (const auto& part : value.parts) size += part.size();
      own(fmt::format("*3\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n", value.name.size(), value.name, size));
      for (const auto& part : value.parts) add(part);
      own("\r\n");
    }
    flush();
    std::vector<bool> took;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto reply = take_reply(kLargestWord);
      const bool good = reply->type == REDIS_REPLY_STATUS && text_of(*reply) == "OK";
      if (!good && reply->type != REDIS_REPLY_ERROR) unexpected(*reply);
      if (!good) refusal = fmt::format("{} takes no pages: {}", place_, told(*reply));
      took.push_back(good);
    }
    return took;
  }

 private:
  struct FreeContext {
    const HiredisLibrary* library;
    void operator()(redisContext* context) const { library->free(context); }
  };
  struct FreeReader {
    const HiredisLibrary* library;
    void operator()(redisReader* reader) const { library->free_reader(reader); }
  };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error("{}: {}", place_, fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void unexpected(const Reply& reply) const {
    if (reply.type == REDIS_REPLY_ERROR) fail("{}", told(reply));
    fail("it does not speak as Redis does");
  }

  void begin_session(const StoreAddress& address) {
    if (!address.password.empty()) {
      if (address.user.empty()) {
        command({"AUTH", address.password});
      } else {
        command({"AUTH", address.user, address.password});
      }
      flush();
      expect_word("OK");
    }
    if (address.database != 0) {
      command({"SELECT", std::to_string(address.database)});
      flush();
      expect_word("OK");
    }
  }

  void expect_word(std::string_view word) {
    const auto reply = take_reply(kLargestWord);
    if (reply->type != REDIS_REPLY_STATUS || text_of(*reply) != word) unexpected(*reply);
  }

  // ---- writing
  void own(std::string text) {
    own_.push_back(std::move(text));  // where it stays
    add(std::as_bytes(std::span(own_.back())));
  }
  void add(std::span<const std::byte> bytes) {
    if (!bytes.empty()) pieces_.push_back(bytes);
  }
  void command(std::initializer_list<std::string_view> words) {
    std::string text = fmt::format("*{}\r\n", words.size());
    for (const std::string_view word : words) text += fmt::format("${}\r\n{}\r\n", word.size(), word);
    own(std::move(text));
  }

  void flush() {
    size_t bytes = 0;
    for (const auto& piece : pieces_) bytes += piece.size();
    const Clock::time_point latest = deadline_for(bytes);
    while (!pieces_.empty()) {
      iovec parts[kWrittenAtOnce];
      const size_t count = std::min(pieces_.size(), kWrittenAtOnce);
      for (size_t i = 0; i < count; ++i)
        parts[i] = {const_cast<std::byte*>(pieces_[i].data()), pieces_[i].size()};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      const ssize_t sent = ::sendmsg(context_->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        wait(POLLOUT, latest, patience_.silence, "does not take what it is sent");
        continue;
      }
      if (sent < 0) fail("the connection is gone: {}", std::strerror(errno));
      for (size_t left = size_t(sent); left > 0;) {
        auto& first = pieces_.front();
        const size_t done = std::min(left, first.size());
        first = first.subspan(done);
        left -= done;
        if (first.empty()) pieces_.pop_front();
      }
    }
    own_.clear();
  }

  // ---- reading
  std::unique_ptr<Reply> take_reply(size_t most) {
    const Clock::time_point latest = deadline_for(most);
    while (true) {
      void* reply = nullptr;
      if (library_.next(reader_.get(), &reply) != REDIS_OK) fail("it does not speak as Redis does");
      if (reply != nullptr) {
        unread_ = 0;
        return std::unique_ptr<Reply>(static_cast<Reply*>(reply));
      }
      // Of one that says more than was asked for, or says it byte by byte, nothing more is read.
      if (unread_ > most + kReadAtOnce) fail("it sends more than it was asked for");
      feed(latest);
    }
  }

  void feed(Clock::time_point latest) {
    if (room_.empty()) room_.resize(kReadAtOnce);
    const ssize_t got = ::recv(context_->fd, room_.data(), room_.size(), MSG_DONTWAIT);
    if (got == 0) fail("it has closed the connection");
    if (got < 0 && errno == EINTR) return;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return wait(POLLIN, latest, patience_.silence, "does not answer");
    if (got < 0) fail("the connection is gone: {}", std::strerror(errno));
    if (Clock::now() > latest) fail("does not answer in time");
    unread_ += size_t(got);
    if (library_.feed(reader_.get(), room_.data(), size_t(got)) != REDIS_OK)
      fail("it does not speak as Redis does");
  }

  Clock::time_point deadline_for(size_t bytes) const {
    return Clock::now() + patience_.answer +
           std::chrono::duration_cast<Clock::duration>(
               std::chrono::duration<double>(double(bytes) / patience_.least_bytes_per_s));
  }

  void wait(short what, Clock::time_point latest, std::chrono::milliseconds silence,
            const char* problem) const {
    const Clock::time_point until = std::min(latest, Clock::now() + silence);
    while (true) {
      const double left = milliseconds_between(Clock::now(), until);
      if (left <= 0) fail("it {} in time", problem);
      pollfd look{.fd = context_->fd, .events = what, .revents = 0};
      const int ready = ::poll(&look, 1, int(left) + 1);
      if (ready > 0) return;
      if (ready < 0 && errno != EINTR) fail("it {}: {}", problem, std::strerror(errno));
    }
  }

  const HiredisLibrary& library_;
  std::string place_;
  StorePatience patience_;
  redisReplyObjectFunctions functions_;
  std::unique_ptr<redisReader, FreeReader> reader_{nullptr, FreeReader{&library_}};
  std::unique_ptr<redisContext, FreeContext> context_{nullptr, FreeContext{&library_}};
  std::deque<std::string> own_;  // texts that pieces are of
  std::deque<std::span<const std::byte>> pieces_;
  std::vector<char> room_;
  size_t unread_ = 0;  // bytes that came since the last reply
};

class RedisStore : public PageStore {
 public:
  RedisStore(const StoreAddress& address, const StorePatience& patience)
      : address_(address), patience_(patience), place_(address.text()) {}

  std::unique_ptr<StoreConnection> connect() override {
    return std::make_unique<RedisConnection>(library_, address_, patience_);
  }
  const std::string& place() const override { return place_; }

 private:
  HiredisLibrary library_;
  StoreAddress address_;
  StorePatience patience_;
  std::string place_;
};

}  // namespace

std::shared_ptr<PageStore> open_redis(const StoreAddress& address, const StorePatience& patience) {
  return std::make_shared<RedisStore>(address, patience);
}

}  // namespace quire
