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

std::string empty_objects(size_t count) {
  std::string text = R"({"x":[)";
  for (size_t i = 0; i < count; ++i) text += i == 0 ? "{}" : ",{}";
  return text + "]}";
}

// With a callback the parser looked through all that came before at the end of each object: 25,000,000 million looks.
TEST(Json, FiveMillionEmptyObjectsTakeAsLongAsTheirLength) {
  EXPECT_EQ(parse_json(empty_objects(5'000'000), "it")["x"].size(), 5'000'000u);
  EXPECT_EQ(parse_ordered_json(empty_objects(1'000'000), "it")["x"].size(), 1'000'000u);
}

TEST(Json, ATextWhoseTreeWouldTakeTooMuchMemoryIsRefusedBeforeItIsBuilt) {
  const JsonLimits limits{.tree_bytes = 1 << 20};
  EXPECT_NO_THROW(parse_json(empty_objects(5'000), "it", limits));
  EXPECT_THROW(parse_json(empty_objects(50'000), "it", limits), Error);
  EXPECT_THROW(parse_json("[\"" + std::string(2 << 20, 'x') + "\"]", "it", limits), Error);
  EXPECT_THROW(parse_ordered_json(object_of(9'000), "it", limits), Error);
}

TEST(Json, WhatIsWrongIsSaidInOneSentence) {
  try {
    parse_json("{\"a\": tru}", "the request's body");
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("the request's body is not valid JSON: "))
        << error.what();
  }
  EXPECT_THROW(parse_json("", "it"), Error);
  EXPECT_THROW(parse_json("{} {}", "it"), Error);
  EXPECT_THROW(parse_json("[\"\xff\"]", "it"), Error);
}

}  // namespace
}  // namespace quire
