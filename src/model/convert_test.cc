#include "model/convert.h"

#include <filesystem>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tensor/quantize.h"

namespace quire {
namespace {

// A folder of NVFP4, whose matrices have the number that all their scales share beside them, as "X.scale".
class ConvertScaled : public testing::Test {
 protected:
  void write(const char* type) {
    ThreadPool pool(2);
    Metadata metadata = from_->metadata();
    convert_to_gguf(*from_, TypeMix(type), path_, {.metadata = metadata, .layers = 2, .progress = {}}, pool);
    to_ = open_model_file(path_);
    std::filesystem::remove(path_);  // it is mapped
  }
  // What a matrix means.
  static std::vector<float> values(const ModelFile& file, const TensorEntry& tensor) {
    size_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    const size_t cols = tensor.shape.back();
    const TensorData data = file.load(tensor);
    std::vector<float> all(rows * cols);
    for (size_t r = 0; r < rows; ++r)
      dequantize_row(tensor.dtype, data.bytes.data() + r * row_bytes(tensor.dtype, cols),
                     std::span(all).subspan(r * cols, cols));
    const std::vector<float> scales = file.scales_of(tensor);
    for (size_t i = 0; !scales.empty() && i < all.size(); ++i)
      all[i] *= scales[i / (all.size() / scales.size())];
    return all;
  }

  const std::unique_ptr<ModelFile> from_ =
      open_model_file(QUIRE_SOURCE_DIR "/tests/goldens/llama_modelopt_nvfp4");
  std::unique_ptr<ModelFile> to_;

 private:
  const std::string path_ = testing::TempDir() + "/quire_convert_" + std::to_string(::getpid()) + ".gguf";
};

TEST_F(ConvertScaled, OtherTypesHaveTheScalesMultipliedInAndNoneBesideThem) {
  write("f32");
  size_t scaled = 0;
  for (const TensorEntry& tensor : from_->tensors()) {
    if (from_->scale_of(tensor) == nullptr) continue;
    ++scaled;
    const TensorEntry* written = to_->find(tensor.name);
    ASSERT_TRUE(written != nullptr && written->dtype == DType::f32) << tensor.name;
    EXPECT_EQ(values(*to_, *written), values(*from_, tensor)) << tensor.name;
    EXPECT_EQ(to_->find(from_->scale_of(tensor)->name), nullptr);
  }
  EXPECT_GT(scaled, 0u);
  EXPECT_EQ(to_->tensors().size() + scaled, from_->tensors().size());
}

TEST_F(ConvertScaled, WhatStaysAsItIsKeepsThem) {
  write("nvfp4");
  size_t scaled = 0;
  for (const TensorEntry& tensor : from_->tensors()) {
    const TensorEntry* scale = from_->scale_of(tensor);
    if (scale == nullptr) continue;
    ++scaled;
    const TensorEntry* written = to_->find(tensor.name);
    ASSERT_NE(written, nullptr) << tensor.name;
    EXPECT_EQ(values(*to_, *written), values(*from_, tensor)) << tensor.name;
    if (written->dtype == DType::nvfp4) {
      EXPECT_EQ(to_->scales_of(*written), from_->scales_of(tensor));
    }
    EXPECT_EQ(to_->find(scale->name) != nullptr, written->dtype == DType::nvfp4);
  }
  EXPECT_GT(scaled, 0u);
}

}  // namespace
}  // namespace quire
