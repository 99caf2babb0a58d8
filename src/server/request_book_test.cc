#include "server/request_book.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

class Book : public testing::Test {
 protected:
  void finish(RequestBook& book, const std::string& client, const std::string& id) {
    const SequenceId sequence{next_++};
    RequestEntry entry;
    entry.id = id;
    entry.client = client;
    book.add(sequence, std::move(entry));
    book.finish(sequence, std::make_shared<const Answer>(), Clock::now());
  }
  static bool knows(const RequestBook& book, const std::string& client, const std::string& id) {
    return book.find(id, 0, Viewer{.client = client}) != nullptr;
  }

  uint32_t next_ = 1;
};

TEST_F(Book, AKeyThatAsksALotPushesOutItsOwnRequestsOnly) {
  RequestBook book(Clock::now(), KeyQuota{.keys = 2});
  finish(book, "key 1", "ann's");
  for (uint32_t i = 0; i < 200; ++i) finish(book, "key 2", "bob's " + std::to_string(i));
  EXPECT_TRUE(knows(book, "key 1", "ann's"));
  EXPECT_TRUE(knows(book, "key 2", "bob's 199"));
  EXPECT_TRUE(knows(book, "key 2", "bob's 136"));
  EXPECT_FALSE(knows(book, "key 2", "bob's 135")) << "the last 64 are kept";
}

TEST_F(Book, KeepsNoMoreOfAllKeysThanItMay) {
  constexpr size_t kKeys = 64;
  RequestBook book(Clock::now(), KeyQuota{.keys = kKeys});
  for (uint32_t i = 0; i < 100; ++i) {
    for (size_t key = 0; key < kKeys; ++key) finish(book, "key " + std::to_string(key), std::to_string(i));
  }
  EXPECT_EQ(book.names().entries.size(), RequestBook::kKeptInAll);
  for (size_t key = 0; key < kKeys; ++key) EXPECT_TRUE(knows(book, "key " + std::to_string(key), "99"));
}

TEST_F(Book, WithoutKeysAllClientsShareOnePart) {
  RequestBook book(Clock::now());
  for (uint32_t i = 0; i < 200; ++i) finish(book, "client " + std::to_string(i), std::to_string(i));
  EXPECT_EQ(book.names().entries.size(), RequestBook::kKept);
}

TEST(KeyQuota, LeavesEverybodyOne) {
  EXPECT_EQ(KeyQuota{}.of_each(8, 64), 8u);
  EXPECT_EQ(KeyQuota{.keys = 8}.of_each(8, 64), 8u);
  EXPECT_EQ(KeyQuota{.keys = 9}.of_each(8, 64), 7u);
  EXPECT_EQ(KeyQuota{.keys = 1000}.of_each(8, 64), 1u);
}

}  // namespace
}  // namespace quire
