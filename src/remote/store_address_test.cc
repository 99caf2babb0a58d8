#include "remote/store_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string problem_of(const std::string& text) {
  try {
    StoreAddress::parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(StoreAddress, IsAHostWithPortPasswordAndDatabase) {
  const StoreAddress address = StoreAddress::parse("redis://:a%3Ab@store.example:7000/3");
  EXPECT_EQ(address.host, "store.example");
  EXPECT_EQ(address.port, 7000);
  EXPECT_EQ(address.user, "");
  EXPECT_EQ(address.password, "a:b");
  EXPECT_EQ(address.database, 3u);
  EXPECT_EQ(address.text(), "redis://store.example:7000/3");
  EXPECT_FALSE(address.is_local());
}

TEST(StoreAddress, HasDefaults) {
  const StoreAddress address = StoreAddress::parse("redis://127.0.0.1");
  EXPECT_EQ(address.port, 6379);
  EXPECT_EQ(address.database, 0u);
  EXPECT_EQ(address.password, "");
  EXPECT_TRUE(address.is_local());
  EXPECT_EQ(StoreAddress::parse("redis://localhost:1/").database, 0u);
}

TEST(StoreAddress, MayBeOfIpv6) {
  const StoreAddress address = StoreAddress::parse("redis://user:word@[::1]:7000");
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.port, 7000);
  EXPECT_EQ(address.user, "user");
  EXPECT_TRUE(address.is_local());
  EXPECT_EQ(address.text(), "redis://[::1]:7000/0");
}

TEST(StoreAddress, MayBeASocketOfThisMachine) {
  const StoreAddress address = StoreAddress::parse("redis+unix:///run/redis/redis.sock?db=2");
  EXPECT_EQ(address.socket, "/run/redis/redis.sock");
  EXPECT_EQ(address.database, 2u);
  EXPECT_TRUE(address.host.empty());
  EXPECT_TRUE(address.is_local());
  EXPECT_EQ(address.text(), "redis+unix:///run/redis/redis.sock?db=2");
  EXPECT_EQ(StoreAddress::parse("redis+unix://:p@/a").password, "p");
}

TEST(StoreAddress, IsRefusedWithTheFormThatIsWantedAndWithoutThePassword) {
  for (const char* wrong : {"",
                            "redis",
                            "http://host",
                            "redis://",
                            "redis://host:",
                            "redis://host:0",
                            "redis://host:65536",
                            "redis://host:-1",
                            "redis://host/x",
                            "redis://host/1/2",
                            "redis://[::1",
                            "redis://[::1]x",
                            "redis://[::1]:",
                            "redis://secret@host",
                            "redis://:@host",
                            "redis://:se%cret@host:x",
                            "redis://:secret@host:x",
                            "redis://ho st",
                            "redis+unix://path",
                            "redis+unix:///",
                            "redis+unix:///a?db=",
                            "redis://:secret@",
                            "redis://:secret%4@host"}) {
    const std::string problem = problem_of(wrong);
    EXPECT_THAT(problem, HasSubstr("redis+unix:///PATH")) << wrong;
    EXPECT_THAT(problem, Not(HasSubstr("secret"))) << wrong;
  }
  EXPECT_THAT(problem_of("redis+unix:///" + std::string(200, 'a')), HasSubstr("fewer than"));
  EXPECT_THAT(problem_of("rediss://host"), HasSubstr("stunnel"));
}

}  // namespace
}  // namespace quire
