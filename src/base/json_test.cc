#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

std::string object_of(size_t members) {
  std::string text = "{";
  for (size_t i = 0; i < members; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":[]";
  return text + "}";
}

TEST(Json, AnOrderedObjectOfTooManyMembersIsRefusedBeforeItTakesLong) {
  EXPECT_EQ(parse_ordered_json(object_of(10'000), "it").size(), 10'000u);
  EXPECT_THROW(parse_ordered_json(object_of(100'000), "it"), Error);
  EXPECT_EQ(parse_json(object_of(100'000), "it").size(), 100'000u);  // which is a tree, and quick
}

TEST(Json, ManySmallObjectsAreFine) {
  std::string text = "[";
  for (int i = 0; i < 2'000; ++i) text += object_of(10) + ",";
  EXPECT_EQ(parse_ordered_json(text + "0]", "it").size(), 2'001u);
}

TEST(Json, DeepNestingIsRefused) {
  EXPECT_NO_THROW(parse_ordered_json(std::string(128, '[') + std::string(128, ']'), "it"));
  EXPECT_THROW(parse_ordered_json(std::string(200, '[') + std::string(200, ']'), "it"), Error);
  EXPECT_THROW(parse_json(std::string(100'000, '['), "it"), Error);
}

}  // namespace
}  // namespace quire
