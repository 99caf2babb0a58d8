#include "server/response_store.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using std::chrono::seconds;

const Viewer kEverybody;

ResponseStore::Kept kept(size_t bytes, const std::string& said = "[]") {
  return {.response = std::string(bytes, 'x'), .items = said};
}

TEST(ResponseStore, FindsWhatItKeepsUntilItIsRemoved) {
  ResponseStore store({});
  store.keep("a", "", kept(10, "[1]"));
  ASSERT_NE(store.find("a", kEverybody), nullptr);
  EXPECT_EQ(store.find("a", kEverybody)->items, "[1]");
  EXPECT_EQ(store.find("b", kEverybody), nullptr);
  EXPECT_TRUE(store.remove("a", kEverybody));
  EXPECT_FALSE(store.remove("a", kEverybody));
  EXPECT_EQ(store.find("a", kEverybody), nullptr);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, IsForItsOwnerAlone) {
  ResponseStore store({});
  store.keep("a", "key 1", kept(10));
  EXPECT_EQ(store.find("a", {.client = "key 2"}), nullptr);
  EXPECT_FALSE(store.remove("a", {.client = "key 2"}));
  EXPECT_NE(store.find("a", {.client = "key 1"}), nullptr);
}

TEST(ResponseStore, ForgetsWhatIsOld) {
  ResponseStore store({.bytes = 1 << 20, .seconds = 60});
  const Clock::time_point start = Clock::now();
  store.keep("a", "", kept(10), start);
  store.keep("b", "", kept(10), start + seconds(30));
  EXPECT_NE(store.find("a", kEverybody, start + seconds(59)), nullptr);
  EXPECT_EQ(store.find("a", kEverybody, start + seconds(60)), nullptr);
  EXPECT_NE(store.find("b", kEverybody, start + seconds(60)), nullptr);
  EXPECT_EQ(store.find("b", kEverybody, start + seconds(90)), nullptr);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, MakesRoomAtTheCostOfWhoeverHasMost) {
  ResponseStore store({.bytes = 10'000, .seconds = 60});
  store.keep("quiet", "key 1", kept(1000));
  for (int i = 0; i < 20; ++i) store.keep("loud " + std::to_string(i), "key 2", kept(1000));
  EXPECT_LE(store.bytes(), 10'000u);
  EXPECT_NE(store.find("quiet", kEverybody), nullptr);
  EXPECT_EQ(store.find("loud 0", kEverybody), nullptr);
  EXPECT_NE(store.find("loud 19", kEverybody), nullptr);
}

TEST(ResponseStore, KeepsNothingThatIsLargerThanAllMayBe) {
  ResponseStore store({.bytes = 1000, .seconds = 60});
  store.keep("small", "", kept(100));
  store.keep("large", "", kept(1000));
  EXPECT_EQ(store.find("large", kEverybody), nullptr);
  EXPECT_NE(store.find("small", kEverybody), nullptr);
  ResponseStore none({.bytes = 0, .seconds = 60});
  none.keep("a", "", kept(1));
  EXPECT_EQ(none.find("a", kEverybody), nullptr);
}

}  // namespace
}  // namespace quire
