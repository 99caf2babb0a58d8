#include "model/model_identity.h"

#include <filesystem>
#include <set>
#include <utility>

#include "model/gguf.h"
#include "model/gguf_writer.h"
#include "model/test_folder.h"

namespace quire {
namespace {

// A file in memory: a large tensor in two pieces, and a small one.
class InMemory : public ModelFile {
 public:
  explicit InMemory(DType type = DType::f32, const std::string& path = "a.gguf") : ModelFile(path) {
    metadata_.set("general.architecture", std::string("llama"));
    metadata_.set("tokenizer.tokens", std::vector<std::string>{"ab", "c"});
    add_tensor({"large", type, {1 << 18}, size_t(1) << 20});
    add_tensor({"small", DType::f32, {16}, 64});
    bytes_.assign(2, std::vector<std::byte>(size_t(1) << 20));
    bytes_.emplace_back(64);
  }
  Metadata& head() { return metadata_; }
  std::byte& byte(size_t piece, size_t at) { return bytes_[piece].at(at); }

  TensorData load(const TensorEntry&) const override { return {}; }
  std::vector<std::span<const std::byte>> stored(const TensorEntry& entry) const override {
    if (index_of(entry) == 1) return {bytes_[2]};
    return {bytes_[0], bytes_[1]};
  }

 private:
  std::vector<std::vector<std::byte>> bytes_;
};

TEST(ModelIdentity, IsTheSameWhereverTheFileIs) {
  EXPECT_EQ(model_identity(InMemory()), model_identity(InMemory(DType::f32, "elsewhere/b.gguf")));
}

TEST(ModelIdentity, ChangesWithMetadataTypesAndWeights) {
  std::set<std::string> all = {model_identity(InMemory()), model_identity(InMemory(DType::f16))};
  const auto changed = [&](auto change) {
    InMemory file;
    change(file);
    return all.insert(model_identity(file)).second;
  };
  EXPECT_EQ(all.size(), 2u);
  EXPECT_TRUE(changed([](InMemory& f) { f.head().set("general.name", std::string("fox")); }));
  EXPECT_TRUE(changed([](InMemory& f) {
    f.head().set("tokenizer.tokens", std::vector<std::string>{"a", "bc"});
  }));
  EXPECT_TRUE(changed([](InMemory& f) { f.byte(2, 37) = std::byte(1); }));
  for (const size_t piece : {0, 1}) {
    EXPECT_TRUE(changed([&](InMemory& f) { f.byte(piece, 0) = std::byte(1); }));
    EXPECT_TRUE(changed([&](InMemory& f) { f.byte(piece, (1 << 20) - 1) = std::byte(1); }));
    // As another quantization or training would: everywhere a little.
    EXPECT_TRUE(changed([&](InMemory& f) {
      for (size_t at = 5; at < size_t(1) << 20; at += 1000) f.byte(piece, at) = std::byte(1);
    }));
  }
}

TEST(ModelIdentity, OfAGgufFileIsThatOfItsContents) {
  const TestFolder folder;
  Metadata metadata;
  metadata.set("general.architecture", std::string("llama"));
  const std::vector<TensorEntry> tensors = {{"a", DType::f32, {4}, 16}};
  const auto write = [&](const std::string& name, std::string_view bytes) {
    GgufWriter writer(folder.file(name), metadata, tensors);
    writer.append(as_bytes(bytes));
    writer.finish();
    return model_identity(GgufFile(folder.file(name)));
  };
  const std::string first = write("first.gguf", "0123456789abcdef");
  EXPECT_EQ(first, write("copy.gguf", "0123456789abcdef"));
  EXPECT_NE(first, write("other.gguf", "0123456789abcdeF"));
}

TEST(PositionsIdentity, ChangesWithTheFrequencies) {
  ModelSpec spec;
  spec.layers.resize(2);
  spec.ropes = {{.inverse_frequencies = {1, 0.5f}}};
  const std::string before = positions_identity(spec);
  EXPECT_EQ(positions_identity(spec), before);
  spec.ropes[0].inverse_frequencies[1] = 0.25f;
  EXPECT_NE(positions_identity(spec), before);
}

}  // namespace
}  // namespace quire
