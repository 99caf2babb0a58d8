#include "model/gguf.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/gguf_writer.h"
#include "model/test_folder.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Bytes of a GGUF file, put together by hand.
class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& string(std::string_view text) {
    put(uint64_t(text.size()));
    text_ += text;
    return *this;
  }
  Bytes& head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    return put(kGgufMagic).put(version).put(tensors).put(keys);
  }
  Bytes& key(std::string_view name, GgufValueType type) { return string(name).put(uint32_t(type)); }
  Bytes& tensor(std::string_view name, std::initializer_list<uint64_t> inner_first, uint32_t type,
                uint64_t offset) {
    string(name).put(uint32_t(inner_first.size()));
    for (const uint64_t size : inner_first) put(size);
    return put(type).put(offset);
  }
  Bytes& data(size_t bytes) {  // from the next multiple of 32 on
    text_.resize((text_.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

GgufHead parse(const std::string& text) {
  return parse_gguf(as_bytes(text), "test.gguf");
}

std::string parse_error(const Bytes& bytes) {
  return error_of([&] { parse(bytes.text()); });
}

// One tensor of f32 and one in blocks, and a value of every kind.
struct Sample {
  Metadata metadata;
  std::vector<TensorEntry> tensors;
  std::vector<std::string> contents;

  Sample() {
    metadata.set("general.architecture", std::string("llama"));
    metadata.set("number", uint64_t(7));
    metadata.set("large", uint64_t(1) << 40);
    metadata.set("negative", int64_t(-7));
    metadata.set("real", 0.5);
    metadata.set("flag", true);
    metadata.set("numbers", std::vector<uint64_t>{1, 2, 3});
    metadata.set("types", std::vector<int64_t>{1, -2});
    metadata.set("reals", std::vector<double>{0.25, -4});
    metadata.set("flags", std::vector<bool>{true, false, true});
    metadata.set("texts", std::vector<std::string>{"a", "", "ccc"});
    tensors.push_back({"norm", DType::f32, {3}, 12});
    tensors.push_back({"blocks", DType::q4_0, {2, 64}, 72});
    contents = {std::string("abcdefghijkl"), std::string(72, 'q')};
  }

  std::string write(const TestFolder& folder) const {
    GgufWriter writer(folder.file("sample.gguf"), metadata, tensors);
    for (const std::string& bytes : contents) writer.append(as_bytes(bytes));
    writer.finish();
    return folder.file("sample.gguf");
  }
};

std::string_view text_of(const TensorData& data) {
  return {reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size()};
}

TEST(Gguf, ReadsWhatItWrote) {
  const TestFolder folder;
  const Sample sample;
  const GgufFile file(sample.write(folder));
  EXPECT_EQ(file.metadata().all(), sample.metadata.all());
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_THAT(file.find("blocks")->shape, ElementsAre(2, 64));
  EXPECT_EQ(file.find("blocks")->dtype, DType::q4_0);
  EXPECT_EQ(text_of(file.load(*file.find("norm"))), sample.contents[0]);
  EXPECT_EQ(text_of(file.load(*file.find("blocks"))), sample.contents[1]);
  EXPECT_EQ(file.find("nothing"), nullptr);
}

TEST(Gguf, ReadsEveryKindOfNumber) {
  Bytes bytes;
  bytes.head(0, 8);
  bytes.key("u8", GgufValueType::u8).put(uint8_t(200));
  bytes.key("i8", GgufValueType::i8).put(int8_t(-100));
  bytes.key("u16", GgufValueType::u16).put(uint16_t(60000));
  bytes.key("i16", GgufValueType::i16).put(int16_t(-30000));
  bytes.key("u64", GgufValueType::u64).put(uint64_t(1) << 63);
  bytes.key("i64", GgufValueType::i64).put(INT64_MIN);
  bytes.key("f64", GgufValueType::f64).put(1e300);
  bytes.key("i16s", GgufValueType::array).put(uint32_t(GgufValueType::i16)).put(uint64_t(2));
  bytes.put(int16_t(-1)).put(int16_t(2));
  const Metadata metadata = parse(bytes.text()).metadata;
  EXPECT_EQ(metadata.number("u8"), 200u);
  EXPECT_EQ(metadata.real("i8"), -100);
  EXPECT_EQ(metadata.number("u16"), 60000u);
  EXPECT_EQ(metadata.real("i16"), -30000);
  EXPECT_EQ(metadata.number("u64"), uint64_t(1) << 63);
  EXPECT_EQ(std::get<int64_t>(*metadata.find("i64")), INT64_MIN);
  EXPECT_EQ(metadata.real("f64"), 1e300);
  EXPECT_THAT(metadata.integers("i16s"), ElementsAre(-1, 2));
}

TEST(Gguf, ReadsVersion2AndNamesOthers) {
  EXPECT_NO_THROW(parse(Bytes().head(0, 0, 2).text()));
  EXPECT_THAT(parse_error(Bytes().head(0, 0, 1)), HasSubstr("version 1; versions 2 and 3"));
  EXPECT_THAT(parse_error(Bytes().head(0, 0, 4)), HasSubstr("version 4"));
  EXPECT_THAT(parse_error(Bytes().head(0, 0, 0x03000000)), HasSubstr("big-endian"));
  EXPECT_THAT(error_of([] { parse("PK\3\4"); }), HasSubstr("is not a GGUF file"));
}

TEST(Gguf, HonoursTheAlignmentOfTheFile) {
  const TestFolder folder;
  Sample sample;
  sample.metadata.set("general.alignment", uint64_t(128));
  const std::string path = sample.write(folder);
  const GgufHead head = parse_gguf(as_bytes(TestFolder::read(path)), path);
  EXPECT_EQ(head.tensors[0].offset % 128, 0u);
  EXPECT_EQ(head.tensors[1].offset, head.tensors[0].offset + 128);
}

TEST(Gguf, RefusesAStrangeAlignment) {
  for (const uint32_t alignment : {0u, 1u, 4u, 48u, 1u << 30}) {
    Bytes bytes;
    bytes.head(0, 1).key("general.alignment", GgufValueType::u32).put(alignment);
    EXPECT_THAT(parse_error(bytes), HasSubstr("general.alignment")) << alignment;
  }
}

TEST(Gguf, RefusesAFileCutAtAnyByte) {
  const TestFolder folder;
  const std::string whole = TestFolder::read(Sample().write(folder));
  const size_t end = parse(whole).tensors.back().offset + 72;  // what follows is padding
  for (size_t size = 0; size < end; ++size) EXPECT_THROW(parse(whole.substr(0, size)), Error) << size;
  EXPECT_NO_THROW(parse(whole.substr(0, end)));
}

TEST(Gguf, NeverLeavesTheFileWhenABitFlips) {
  const TestFolder folder;
  const std::string whole = TestFolder::read(Sample().write(folder));
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = char(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      for (const GgufTensor& tensor : parse(flipped).tensors)
        ASSERT_LE(tensor.offset + tensor.entry.bytes, flipped.size()) << bit;
    } catch (const Error&) {
    }
  }
}

TEST(Gguf, TakesNoMemoryForCountsTheFileCannotHold) {
  EXPECT_THAT(parse_error(Bytes().head(0, uint64_t(1) << 60)), HasSubstr("metadata keys"));
  EXPECT_THAT(parse_error(Bytes().head(uint64_t(1) << 60, 0)), HasSubstr("tensors"));
  for (const auto type :
       {GgufValueType::string, GgufValueType::u8, GgufValueType::f64, GgufValueType::boolean}) {
    Bytes bytes;
    bytes.head(0, 1).key("a", GgufValueType::array).put(uint32_t(type)).put(uint64_t(1) << 60).data(64);
    EXPECT_THAT(parse_error(bytes), HasSubstr("array elements"));
  }
  Bytes text;
  text.head(0, 1).key("a", GgufValueType::string).put(~uint64_t(0)).data(64);
  EXPECT_THAT(parse_error(text), HasSubstr("needs 18446744073709551615 bytes"));
}

TEST(Gguf, RefusesBadMetadata) {
  Bytes twice;
  twice.head(0, 2)
      .key("same", GgufValueType::u8)
      .put(uint8_t(1))
      .key("same", GgufValueType::u8)
      .put(uint8_t(1));
  EXPECT_THAT(parse_error(twice), HasSubstr("\"same\" is there twice"));
  EXPECT_THAT(parse_error(Bytes().head(0, 1).key("odd", GgufValueType(99)).put(uint64_t(0))),
              HasSubstr("\"odd\" has the unknown value type 99"));
  Bytes nested;
  nested.head(0, 1).key("deep", GgufValueType::array).put(uint32_t(GgufValueType::array)).put(uint64_t(1));
  EXPECT_THAT(parse_error(nested), HasSubstr("\"deep\" is an array of arrays"));
  EXPECT_THAT(parse_error(Bytes().head(0, 1).key("f", GgufValueType::boolean).put(uint8_t(2))),
              HasSubstr("\"f\" has 2 for true or false"));
  EXPECT_THAT(parse_error(Bytes().head(0, 1).key("", GgufValueType::u8).put(uint8_t(1))),
              HasSubstr("is empty"));
}

TEST(Gguf, RefusesBadTensors) {
  const auto error = [](std::initializer_list<uint64_t> shape, uint32_t type, uint64_t offset) {
    return parse_error(Bytes().head(1, 0).tensor("t", shape, type, offset).data(256));
  };
  EXPECT_THAT(error({256}, 15, 0), HasSubstr("tensor \"t\" is of type Q8_K, which is not supported"));
  EXPECT_THAT(error({256}, 77, 0), HasSubstr("unknown type 77"));
  EXPECT_THAT(error({}, 0, 0), HasSubstr("0 dimensions"));
  EXPECT_THAT(error({1, 1, 1, 1, 1}, 0, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(error({33}, 2, 0), HasSubstr("33 values, which do not divide into q4_0 blocks of 32"));
  EXPECT_THAT(error({1 << 16, 1 << 16, 1 << 16, 1 << 16}, 0, 0), HasSubstr("impossible shape"));
  EXPECT_THAT(error({4, 0}, 0, 0), HasSubstr("impossible shape [0, 4]"));
  EXPECT_THAT(error({4}, 0, 16), HasSubstr("not a multiple of 32"));
  EXPECT_THAT(error({4}, 0, 256), HasSubstr("cut short"));
  EXPECT_THAT(error({4}, 0, ~uint64_t(31)), HasSubstr("cut short"));
  EXPECT_THAT(error({65}, 0, 0), HasSubstr("260 bytes at 0"));
  Bytes overlap;
  overlap.head(2, 0).tensor("late", {4}, 0, 32).tensor("early", {16}, 0, 0).data(256);
  EXPECT_THAT(parse_error(overlap), HasSubstr("tensors \"early\" and \"late\" overlap"));
}

TEST(Gguf, RefusesTwoTensorsOfOneName) {
  const TestFolder folder;
  Bytes bytes;
  bytes.head(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).data(64);
  const std::string path = folder.write("twice.gguf", bytes.text());
  EXPECT_THAT(error_of([&] { GgufFile file(path); }), HasSubstr("two tensors are named \"t\""));
}

TEST(Gguf, ShowsOddNamesInErrorsHarmlessly) {
  Bytes bytes;
  bytes.head(1, 0).tensor("\x1b[31m\n", {4}, 99, 0).data(64);
  EXPECT_THAT(parse_error(bytes), HasSubstr("\"\\x1b[31m\\x0a\""));
}

// Three files as gguf-split makes them: the tensors a, b and c, one in each.
class SplitModel {
 public:
  explicit SplitModel(const TestFolder& folder) {
    for (uint64_t i = 0; i < 3; ++i) {
      Metadata metadata;
      if (i == 0) metadata.set("general.architecture", std::string("llama"));
      metadata.set("split.no", i);
      metadata.set("split.count", uint64_t(3));
      metadata.set("split.tensors.count", int64_t(3));
      const TensorEntry tensor{std::string(1, char('a' + i)), DType::f32, {1}, 4};
      paths_.push_back(folder.file("model-0000" + std::to_string(i + 1) + "-of-00003.gguf"));
      GgufWriter writer(paths_.back(), metadata, {&tensor, 1});
      writer.append(as_bytes(std::string(4, char('a' + i))));
      writer.finish();
    }
  }
  const std::string& path(size_t index) const { return paths_[index]; }

 private:
  std::vector<std::string> paths_;
};

TEST(Gguf, OpensASplitModelThroughItsFirstFile) {
  const TestFolder folder;
  const SplitModel model(folder);
  const GgufFile file(model.path(0));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(text_of(file.load(*file.find("b"))), "bbbb");
  EXPECT_EQ(text_of(file.load(*file.find("c"))), "cccc");
  EXPECT_FALSE(file.metadata().has("split.count"));
}

TEST(Gguf, SaysWhichFileOfASplitModelIsWrong) {
  const TestFolder folder;
  const SplitModel model(folder);
  EXPECT_THAT(error_of([&] { GgufFile file(model.path(1)); }), HasSubstr("open the first, " + model.path(0)));
  const std::string renamed = folder.write("renamed.gguf", TestFolder::read(model.path(0)));
  EXPECT_THAT(error_of([&] { GgufFile file(renamed); }), HasSubstr("should end in \"-00001-of-00003.gguf\""));
  std::filesystem::copy_file(model.path(1), model.path(2), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { GgufFile file(model.path(0)); }), HasSubstr("says it is file 2 of 3"));
  std::filesystem::remove(model.path(2));
  EXPECT_THAT(error_of([&] { GgufFile file(model.path(0)); }), HasSubstr(model.path(2)));
}

TEST(GgufWriter, LeavesNothingBehindWhenItIsNotFinished) {
  const TestFolder folder;
  const Sample sample;
  {
    GgufWriter writer(folder.file("x.gguf"), sample.metadata, sample.tensors);
    writer.append(as_bytes(sample.contents[0]));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(GgufWriter, TakesATensorInPieces) {
  const TestFolder folder;
  const Sample sample;
  GgufWriter writer(folder.file("x.gguf"), sample.metadata, sample.tensors);
  for (const std::string& bytes : sample.contents)
    for (size_t i = 0; i < bytes.size(); i += 5)
      writer.append(as_bytes(std::string_view(bytes).substr(i, 5)));
  writer.finish();
  EXPECT_EQ(TestFolder::read(folder.file("x.gguf")), TestFolder::read(sample.write(folder)));
}

TEST(GgufWriter, SaysWhenAFileCannotBeWritten) {
  const Sample sample;
  EXPECT_THAT(error_of([&] { GgufWriter writer("/nowhere/x.gguf", sample.metadata, sample.tensors); }),
              HasSubstr("cannot write /nowhere/x.gguf"));
}

TEST(Gguf, SurvivesItsCorpus) {
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/corpus/gguf")) {
    ++files;
    try {
      parse(TestFolder::read(file.path().string()));
    } catch (const Error&) {
    }
  }
  EXPECT_GT(files, 10u);
}

TEST(Metadata, ConvertsNumbersOnlyWhereNothingIsLost) {
  Metadata metadata("some.gguf");
  metadata.set("whole", 8.0);
  metadata.set("part", 8.5);
  metadata.set("negative", int64_t(-1));
  metadata.set("list", std::vector<int64_t>{1, 2});
  EXPECT_EQ(metadata.number("whole"), 8u);
  EXPECT_EQ(metadata.real("negative"), -1);
  EXPECT_THAT(error_of([&] { metadata.number("part"); }),
              HasSubstr("some.gguf: the metadata key part is not"));
  EXPECT_THROW(metadata.number("negative"), Error);
  EXPECT_THROW(metadata.maybe_text("whole"), Error);
  EXPECT_THAT(error_of([&] { metadata.number("missing"); }), HasSubstr("has no key missing"));
  EXPECT_EQ(metadata.maybe_number("missing"), std::nullopt);
  EXPECT_THAT(metadata.maybe_numbers("list", 2), ElementsAre(1, 2));
  EXPECT_THAT(metadata.maybe_numbers("whole", 3), ElementsAre(8, 8, 8));
  EXPECT_THROW(metadata.maybe_numbers("list", 3), Error);
  EXPECT_THROW(metadata.integers("whole"), Error);
}

}  // namespace
}  // namespace quire
