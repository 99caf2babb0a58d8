#include "model/importance.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/test_folder.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

// An entry of the older kind.
std::string old_entry(std::string_view name, int32_t calls, const std::vector<float>& values) {
  std::string bytes =
      raw(int32_t(name.size())) + std::string(name) + raw(calls) + raw(int32_t(values.size()));
  for (const float value : values) bytes += raw(value);
  return bytes;
}

Importance parse_text(const std::string& text) {
  return Importance::parse(as_bytes(text), "some.imatrix");
}

std::string refusal_to_parse(const std::string& text) {
  return error_of([&] { parse_text(text); });
}

TensorEntry matrix(std::string name, std::vector<uint64_t> shape) {
  return {std::move(name), DType::f32, std::move(shape), 0};
}

TEST(Importance, ReadsTheOlderKindOfFileAndWhatFollowsIt) {
  const Importance importance =
      parse_text(raw(int32_t(2)) + old_entry("blk.0.attn_q.weight", 10, {10, 30, 20, 20}) +
                 old_entry("blk.0.ffn_up_exps.weight", 10, {10, 30, 10, 10}) + raw(int32_t(10)) + "text");
  EXPECT_EQ(importance.entries().size(), 2u);
  EXPECT_THAT(importance.of(matrix("blk.0.attn_q.weight", {7, 4}), 0), ElementsAre(0.5f, 1.5f, 1, 1));
  EXPECT_THAT(importance.of(matrix("blk.0.ffn_up_exps.weight", {2, 7, 2}), 0), ElementsAre(0.5f, 1.5f));
  EXPECT_THAT(importance.of(matrix("blk.0.ffn_up_exps.weight", {2, 7, 2}), 1), ElementsAre(1, 1));
  EXPECT_THAT(importance.of(matrix("output.weight", {7, 4}), 0), IsEmpty());
}

TEST(Importance, ThatWasWrittenIsReadAgain) {
  const std::string path = testing::TempDir() + "/quire_importance.gguf";
  Importance importance("model.gguf");
  importance.set("blk.0.attn_q.weight", {{2, 6}, {4}});
  importance.set("blk.0.ffn_up_exps.weight", {{1, 3, 0, 0, 8, 8}, {1, 0, 4}});
  importance.write(path, "text.txt", 3, 512);
  const Importance again = Importance::read(path);
  std::filesystem::remove(path);
  EXPECT_THAT(again.of(matrix("blk.0.attn_q.weight", {5, 2}), 0), ElementsAre(0.5f, 1.5f));
  const TensorEntry experts = matrix("blk.0.ffn_up_exps.weight", {3, 5, 2});
  EXPECT_THAT(again.of(experts, 0), ElementsAre(0.5f, 1.5f));
  EXPECT_THAT(again.of(experts, 1), IsEmpty());  // no token chose it
  EXPECT_THAT(again.of(experts, 2), ElementsAre(1, 1));
}

TEST(Importance, GivesUpNoColumn) {
  Importance importance("model.gguf");
  importance.set("a.weight", {{0, 4, 0, 0}, {2}});
  EXPECT_THAT(importance.of(matrix("a.weight", {3, 4}), 0), ElementsAre(0.001f, 4, 0.001f, 0.001f));
  importance.set("b.weight", {{0, 0}, {2}});
  EXPECT_THAT(importance.of(matrix("b.weight", {3, 2}), 0), IsEmpty());
}

TEST(Importance, OfAnotherShapeIsRefusedByTheTensorsName) {
  Importance importance("some.imatrix");
  importance.set("a.weight", {{1, 2, 3, 4}, {2}});
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{3, 3}, std::vector<uint64_t>{3, 8}, std::vector<uint64_t>{4, 5, 2}}) {
    EXPECT_THAT(error_of([&] { importance.of(matrix("a.weight", shape), 0); }), HasSubstr("\"a.weight\""));
  }
}

TEST(Importance, RefusesFilesThatAreNone) {
  const std::string whole = raw(int32_t(1)) + old_entry("a.weight", 1, {1, 2});
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_FALSE(refusal_to_parse(whole.substr(0, cut)).empty()) << cut;
  EXPECT_THAT(refusal_to_parse(raw(int32_t(-1)) + whole), HasSubstr("not a file of importance"));
  EXPECT_THAT(refusal_to_parse(raw(int32_t(0x7fffffff)) + whole), HasSubstr("cut short"));
  EXPECT_THAT(refusal_to_parse(raw(int32_t(1)) + raw(int32_t(0x7fffffff)) + whole), HasSubstr("cut short"));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -1.0f})
    EXPECT_THAT(refusal_to_parse(raw(int32_t(1)) + old_entry("a.weight", 1, {1, bad})),
                HasSubstr("no sums of squares"));
}

}  // namespace
}  // namespace quire
