// What is said to a store, and what may be said back: a thread with a socket stands in for it.
#include "remote/redis_store.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "remote/store_key.h"

namespace quire {
namespace {

using testing::HasSubstr;

// Answers everything with the same bytes, as often as it is spoken to.
class Parrot {
 public:
  explicit Parrot(std::string words) : words_(std::move(words)) {
    ::unlink(path_.c_str());
    listener_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~Parrot() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    ::unlink(path_.c_str());
  }
  StoreAddress address() const { return StoreAddress::parse("redis+unix://" + path_); }
  std::string heard;  // once it has ended

 private:
  void serve() {
    while (true) {
      const int one = ::accept(listener_, nullptr, nullptr);
      if (one < 0) return;
      char text[65536];
      for (ssize_t got = 0; (got = ::recv(one, text, sizeof(text), 0)) > 0;) {
        heard.append(text, size_t(got));
        for (size_t sent = 0; sent < words_.size();) {
          const ssize_t now = ::send(one, words_.data() + sent, words_.size() - sent, MSG_NOSIGNAL);
          if (now <= 0) break;
          sent += size_t(now);
        }
      }
      ::close(one);
    }
  }

  std::string words_;
  std::string path_ = testing::TempDir() + "/quire_parrot_" + std::to_string(::getpid());
  int listener_ = -1;
  std::thread thread_;
};

constexpr StorePatience kShort{.connect = std::chrono::milliseconds(200),
                               .silence = std::chrono::milliseconds(50),
                               .answer = std::chrono::milliseconds(150)};

std::string problem_of(const std::string& reply, const std::function<void(StoreConnection&)>& talk) {
  Parrot parrot(reply);
  const auto store = open_redis(parrot.address(), kShort);
  try {
    const auto connection = store->connect();
    talk(*connection);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const auto kAskWhetherOneIsThere = [](StoreConnection& connection) {
  connection.has(std::vector<std::string>{"a"});
};
const auto kFetchOne = [](StoreConnection& connection) {
  connection.ask(std::vector<std::string>{"a"});
  connection.take(100);
};

TEST(RedisStore, SaysWhatRedisUnderstandsAndUnderstandsWhatItSays) {
  Parrot parrot(":1\r\n:0\r\n");
  const auto store = open_redis(parrot.address(), kShort);
  const auto connection = store->connect();
  EXPECT_EQ(connection->has(std::vector<std::string>{"here", "not here"}), (std::vector<bool>{true, false}));
}

TEST(RedisStore, GivesAValueAsItIs) {
  using namespace std::string_literals;
  Parrot parrot("$5\r\na\r\n\0b\r\n"s);
  const auto store = open_redis(parrot.address(), kShort);
  const auto connection = store->connect();
  connection->ask(std::vector<std::string>{"a"});
  const auto value = connection->take(100);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(value->bytes.get()), value->size), "a\r\n\0b"s);
}

TEST(RedisStore, AValueThatIsNotThereIsNone) {
  Parrot parrot("$-1\r\n");
  const auto store = open_redis(parrot.address(), kShort);
  const auto connection = store->connect();
  connection->ask(std::vector<std::string>{"a"});
  EXPECT_FALSE(connection->take(100).has_value());
}

TEST(RedisStore, AStoreThatIsFullSaysSoAndGoesOn) {
  Parrot parrot("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
  const auto store = open_redis(parrot.address(), kShort);
  const auto connection = store->connect();
  std::string refusal;
  const StoreConnection::Put put{"a", {std::as_bytes(std::span("xyz", 3))}};
  EXPECT_EQ(connection->put(std::span(&put, 1), refusal), std::vector<bool>{false});
  EXPECT_THAT(refusal, HasSubstr("OOM"));
  EXPECT_EQ(connection->put(std::span(&put, 1), refusal), std::vector<bool>{false});
}

TEST(RedisStore, WhatIsNotRedissIsAnErrorAndNothingWorse) {
  for (const std::string& reply :
       {std::string("garbage\r\n"), std::string(100, '\0'), std::string("*2\r\n:1\r\n:1\r\n"),
        std::string("*1000000000\r\n"), std::string("*0\r\n"), std::string("$-2\r\n"),
        std::string("$9223372036854775807\r\n"), std::string("$99999999999999999999999\r\n"),
        std::string(":\r\n"), std::string(":x\r\n"), std::string("+\r\n"), std::string("-ERR no\r\n"),
        std::string("_\r\n"), std::string("%1\r\n+a\r\n+b\r\n"), std::string(",1.5\r\n"),
        std::string("#t\r\n"), std::string("\r\n"), std::string(":2\r\n"),
        std::string("*1\r\n*1\r\n*1\r\n:1\r\n")}) {
    EXPECT_NE(problem_of(reply, kAskWhetherOneIsThere), "") << reply;
    EXPECT_NE(problem_of(reply, kFetchOne), "") << reply;
  }
}

TEST(RedisStore, WhoeverSendsMoreThanWasAskedForIsHungUpOn) {
  EXPECT_THAT(problem_of("$400000000\r\n" + std::string(4 << 20, 'x'), kFetchOne),
              HasSubstr("more than it was asked for"));
}

TEST(RedisStore, WhoeverSaysNothingIsNotWaitedFor) {
  const Clock::time_point begin = Clock::now();
  EXPECT_THAT(problem_of("", kAskWhetherOneIsThere), HasSubstr("does not answer"));
  EXPECT_THAT(problem_of("$100\r\nabc", kFetchOne), HasSubstr("does not answer"));
  EXPECT_LT(milliseconds_between(begin, Clock::now()), 5000);
}

TEST(RedisStore, WhatItComplainsOfIsToldWithoutWhatATerminalWouldObey) {
  EXPECT_THAT(problem_of("-\x1b[2Jno\x07\r\n", kAskWhetherOneIsThere), HasSubstr("?[2Jno?"));
}

TEST(RedisStore, NobodyAtAnAddressIsAnError) {
  const auto store = open_redis(StoreAddress::parse("redis+unix:///nowhere/at/all"), kShort);
  EXPECT_THROW(store->connect(), Error);
  const auto other = open_redis(StoreAddress::parse("redis://127.0.0.1:1"), kShort);
  EXPECT_THROW(other->connect(), Error);
}

TEST(StoreKey, TagsAreOfKeyAndBytesHoweverTheyAreCut) {
  const std::string text = "some bytes of a page";
  const auto bytes = std::as_bytes(std::span(text));
  const auto tag_of = [&](std::string_view key, size_t cut) {
    const std::span<const std::byte> parts[] = {bytes.first(cut), bytes.subspan(cut)};
    return make_page_mac(std::as_bytes(std::span(key)))->of(parts);
  };
  const StoreTag tag = tag_of("a key of twenty-one b", 7);
  EXPECT_EQ(tag_of("a key of twenty-one b", 0), tag);
  EXPECT_EQ(tag_of("a key of twenty-one b", text.size()), tag);
  EXPECT_NE(tag_of("a key of twenty-one c", 7), tag);
  EXPECT_NE(tag_of("", 7), tag);
  EXPECT_EQ(tag_of("", 7), tag_of("", 3)) << "without a key everybody makes the same";
  EXPECT_NE(tag_of(std::string(100, 'x'), 7), tag_of(std::string(101, 'x'), 7)) << "all of a long key counts";
}

TEST(StoreKey, IsAFileOfEnoughBytes) {
  const std::string path = testing::TempDir() + "/quire_store_key_" + std::to_string(::getpid());
  const auto write = [&](const std::string& text) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  };
  write("0123456789abcdef\r\n");
  EXPECT_EQ(read_store_key(path).size(), 16u);
  write("0123456789abcde\n");
  EXPECT_THROW(read_store_key(path), Error);
  write("");
  EXPECT_THROW(read_store_key(path), Error);
  write(std::string(4097, 'x'));
  EXPECT_THROW(read_store_key(path), Error);
  std::filesystem::remove(path);
  EXPECT_THROW(read_store_key(path), Error);
}

}  // namespace
}  // namespace quire
