#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/test_folder.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string file_of(std::string_view head, std::string_view data) {
  const uint64_t size = head.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + std::string(head) +
         std::string(data);
}

SafetensorsIndex parse(const std::string& text) {
  return parse_safetensors(as_bytes(text), "test.safetensors");
}

std::string parse_error(std::string_view head, std::string_view data = "12345678") {
  return error_of([&] { parse(file_of(head, data)); });
}

constexpr std::string_view kTwo = R"({"__metadata__": {"format": "pt"},
  "a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]},
  "b": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}})";

TEST(Safetensors, ReadsNamesTypesShapesAndPlaces) {
  const std::string text = file_of(kTwo, "abcdefgh");
  const SafetensorsIndex index = parse(text);
  ASSERT_EQ(index.size(), 2u);
  const SafetensorsEntry& b = index.at("b");
  EXPECT_EQ(b.type, SafetensorsType::bf16);
  EXPECT_THAT(b.shape, ElementsAre(2));
  EXPECT_EQ(text.substr(b.begin, b.bytes), "efgh");
}

TEST(Safetensors, ReadsScalarsAndEmptyTensors) {
  const auto index = parse(file_of(R"({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
                                       "b": {"dtype": "F32", "shape": [0, 9], "data_offsets": [4, 4]}})",
                                   "1234"));
  EXPECT_EQ(index.at("a").bytes, 4u);
  EXPECT_EQ(index.at("b").bytes, 0u);
}

TEST(Safetensors, RefusesAFileCutAtAnyByte) {
  const std::string whole = file_of(kTwo, "abcdefgh");
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(parse(whole.substr(0, size)), Error) << size;
}

TEST(Safetensors, NeverLeavesTheFileWhenABitFlips) {
  const std::string whole = file_of(kTwo, "abcdefgh");
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = char(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      for (const auto& [name, entry] : parse(flipped))
        ASSERT_LE(entry.begin + entry.bytes, flipped.size()) << bit;
    } catch (const Error&) {
    }
  }
}

TEST(Safetensors, RefusesBadHeads) {
  EXPECT_THAT(error_of([] { parse(std::string(8, '\xff')); }), HasSubstr("more than 100000000"));
  EXPECT_THAT(parse_error("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(parse_error(std::string(100000, '[')), HasSubstr("nests deeper"));
  EXPECT_THAT(parse_error(R"({"a": 1})"), HasSubstr("tensor \"a\" is not described"));
  EXPECT_THAT(parse_error(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                              "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})"),
              HasSubstr("two tensors are named \"a\""));
}

TEST(Safetensors, RefusesBadTensors) {
  const auto error = [](std::string_view type, std::string_view shape, std::string_view offsets) {
    return parse_error(
        fmt::format(R"({{"a": {{"dtype": {}, "shape": {}, "data_offsets": {}}}}})", type, shape, offsets));
  };
  EXPECT_THAT(error(R"("F4")", "[8]", "[0, 4]"), HasSubstr("unknown type \"F4\""));
  EXPECT_THAT(error("4", "[8]", "[0, 4]"), HasSubstr("no \"dtype\""));
  EXPECT_THAT(error(R"("F32")", "[-1]", "[0, 4]"), HasSubstr("whole numbers in \"shape\""));
  EXPECT_THAT(error(R"("F32")", "[1.5]", "[0, 4]"), HasSubstr("whole numbers in \"shape\""));
  EXPECT_THAT(error(R"("F32")", "[1,1,1,1,1,1,1,1,1]", "[0, 4]"), HasSubstr("at most 8"));
  EXPECT_THAT(error(R"("F32")", "[4294967296, 4294967296]", "[0, 0]"), HasSubstr("impossible shape"));
  EXPECT_THAT(error(R"("F32")", "[1]", "[4, 0]"), HasSubstr("the bytes [4, 0]"));
  EXPECT_THAT(error(R"("F32")", "[1]", "[0]"), HasSubstr("the bytes [0]"));
  EXPECT_THAT(error(R"("F32")", "[3]", "[0, 12]"), HasSubstr("the file has 8 bytes of data"));
  EXPECT_THAT(error(R"("F32")", "[1]", "[0, 8]"), HasSubstr("8 bytes, and its shape [1] of F32 needs 4"));
  EXPECT_THAT(parse_error(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                              "b": {"dtype": "F32", "shape": [1], "data_offsets": [3, 7]}})"),
              HasSubstr("\"a\" and \"b\" overlap"));
}

TEST(Safetensors, SurvivesItsCorpus) {
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/corpus/safetensors")) {
    ++files;
    try {
      parse(TestFolder::read(file.path().string()));
    } catch (const Error&) {
    }
  }
  EXPECT_GT(files, 10u);
}

std::string one_tensor(const std::string& name) {
  return file_of(fmt::format(R"({{"{}": {{"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}}})", name),
                 name + name);
}

TEST(SafetensorsFolder, ReadsTheFilesThatTheIndexLists) {
  const TestFolder folder;
  folder.write("x.safetensors", one_tensor("xx"));
  folder.write("y.safetensors", one_tensor("yy"));
  folder.write("other.safetensors", one_tensor("zz"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"xx": "x.safetensors", "yy": "y.safetensors"}})");
  const SafetensorsFolder files(folder.path());
  EXPECT_EQ(files.tensors().size(), 2u);
  EXPECT_EQ(char(files.find("yy")->bytes[3]), 'y');
  EXPECT_EQ(files.find("zz"), nullptr);
}

TEST(SafetensorsFolder, ReadsAllFilesWithoutAnIndex) {
  const TestFolder folder;
  folder.write("model-00001-of-00002.safetensors", one_tensor("xx"));
  folder.write("model-00002-of-00002.safetensors", one_tensor("yy"));
  folder.write("consolidated.safetensors", one_tensor("xx"));
  EXPECT_EQ(SafetensorsFolder(folder.path()).tensors().size(), 2u);
}

TEST(SafetensorsFolder, NamesAMissingFile) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { SafetensorsFolder files(folder.path()); }),
              HasSubstr("has no *.safetensors files"));
  folder.write("model-00002-of-00002.safetensors", one_tensor("yy"));
  EXPECT_THAT(error_of([&] { SafetensorsFolder files(folder.path()); }),
              HasSubstr("model-00001-of-00002.safetensors is missing"));
  folder.write("model.safetensors.index.json", R"({"weight_map": {"xx": "lost.safetensors"}})");
  EXPECT_THAT(error_of([&] { SafetensorsFolder files(folder.path()); }),
              HasSubstr("lost.safetensors is missing"));
}

TEST(SafetensorsFolder, RefusesAnIndexThatIsWrong) {
  const TestFolder folder;
  folder.write("x.safetensors", one_tensor("xx"));
  const auto error = [&](std::string_view index) {
    folder.write("model.safetensors.index.json", index);
    return error_of([&] { SafetensorsFolder files(folder.path()); });
  };
  EXPECT_THAT(error("[]"), HasSubstr("no object \"weight_map\""));
  EXPECT_THAT(error(R"({"weight_map": {}})"), HasSubstr("lists no tensors"));
  EXPECT_THAT(error(R"({"weight_map": {"xx": "../x.safetensors"}})"), HasSubstr("is not a name ending in"));
  EXPECT_THAT(error(R"({"weight_map": {"xx": 7}})"), HasSubstr("is not a name ending in"));
  EXPECT_THAT(error(R"({"weight_map": {"zz": "x.safetensors"}})"), HasSubstr("has no tensor \"zz\""));
  folder.write("y.safetensors", one_tensor("xx"));
  EXPECT_THAT(error(R"({"weight_map": {"xx": "x.safetensors", "yy": "y.safetensors"}})"),
              HasSubstr("tensor \"xx\" is in x.safetensors and in y.safetensors"));
}

}  // namespace
}  // namespace quire
