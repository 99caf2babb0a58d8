#include "cluster/batch_log.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(BatchLog, KeepsTheLastUnderTheirNumbers) {
  BatchLog log(3, 1000);
  EXPECT_EQ(log.begin(), 0u);
  EXPECT_EQ(log.end(), 0u);
  for (const char* message : {"a", "b", "c", "d"}) log.add(message);
  EXPECT_EQ(log.begin(), 1u);
  EXPECT_EQ(log.end(), 4u);
  EXPECT_EQ(log.at(1), "b");
  EXPECT_EQ(log.at(3), "d");
}

TEST(BatchLog, KeepsNoMoreThanSoManyBytesButAlwaysTheLast) {
  BatchLog log(100, 10);
  log.add("aaaa");
  log.add("bbbb");
  log.add("cccc");
  EXPECT_EQ(log.begin(), 1u);
  EXPECT_EQ(log.bytes(), 8u);
  log.add(std::string(50, 'd'));
  EXPECT_EQ(log.begin(), 3u);
  EXPECT_EQ(log.at(3).size(), 50u);
  log.add("e");
  EXPECT_EQ(log.begin(), 4u);
  EXPECT_EQ(log.bytes(), 1u);
}

}  // namespace
}  // namespace quire
