#pragma once

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/hf_schemes.h"
#include "model/model_file.h"
#include "tensor/quantize.h"

// What the schemes of packed matrices have in common.

namespace quire {

// The tensors of one module: what it is called, and those beside it.
struct HfModule {
  const SafetensorsFolder& files;
  std::string name;  // "model.layers.0.mlp.up_proj"
  const HfQuantization& quantization;

  const SafetensorsTensor* find(const char* suffix) const { return files.find(name + suffix); }
  const SafetensorsTensor& get(const char* suffix) const {
    if (const SafetensorsTensor* tensor = find(suffix)) return *tensor;
    throw Error("the tensor {} is missing, which {} needs", in_quotes(name + suffix), quantization.method);
  }
  // REQUIRED to have this shape and to be of one of these types.
  const SafetensorsTensor& get(const char* suffix, const std::vector<uint64_t>& shape,
                               std::initializer_list<SafetensorsType> types) const {
    const SafetensorsTensor& tensor = get(suffix);
    expect(tensor, tensor.shape == shape, fmt::format("is not [{}]", fmt::join(shape, ", ")).c_str());
    expect(tensor, std::ranges::count(types, tensor.type) > 0,
           fmt::format("is of type {}", tensor.type_name).c_str());
    return tensor;
  }
  static void expect(const SafetensorsTensor& tensor, bool holds, const char* what) {
    if (!holds)
      throw Error("tensor {} of shape [{}] {}", in_quotes(tensor.name), fmt::join(tensor.shape, ", "), what);
  }
};

// Numbers of any float type. REQUIRES: the tensor is of one.
inline constexpr std::initializer_list<SafetensorsType> kHfFloats = {
    SafetensorsType::f32, SafetensorsType::f16, SafetensorsType::bf16};
inline float float_at(const SafetensorsTensor& tensor, uint64_t index) {
  float value = 0;
  const DType dtype = tensor.type == SafetensorsType::f32       ? DType::f32
                      : tensor.type == SafetensorsType::f16     ? DType::f16
                      : tensor.type == SafetensorsType::f8_e4m3 ? DType::f8_e4m3
                                                                : DType::bf16;
  dequantize_row(dtype, tensor.bytes.data() + index * traits(dtype).block_bytes, {&value, 1});
  return value;
}
inline void floats_at(const SafetensorsTensor& tensor, uint64_t first, std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = float_at(tensor, first + i);
}

inline uint32_t word_at(const SafetensorsTensor& tensor, uint64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, tensor.bytes.data() + index * sizeof(word), sizeof(word));
  return word;
}

// Fields of `bits` in words, the lowest first: field `index` of the words from `first` on.
inline uint32_t field_at(const SafetensorsTensor& tensor, uint64_t first, uint64_t index, uint64_t bits) {
  const uint64_t each = 32 / bits;
  return word_at(tensor, first + index / each) >> (index % each * bits) & uint32_t((uint64_t(1) << bits) - 1);
}

inline bool are_fields(uint64_t bits) {
  return bits == 2 || bits == 4 || bits == 8;
}

// Made of the tensors of a module, if they are there: by what a method calls them. Null: the module is not packed.
using PackedPtr = std::unique_ptr<PackedMatrix>;
PackedPtr make_compressed(const HfModule& module);
PackedPtr make_float4(const HfModule& module);  // NVFP4 and MXFP4 of compressed-tensors and of modelopt
PackedPtr make_fp4(
    const HfModule& module);  // what stands beside FP8: two values in a byte and exponents (DeepSeek V4)
PackedPtr make_awq(const HfModule& module);
PackedPtr make_gptq(const HfModule& module);
PackedPtr make_bitsandbytes(const HfModule& module);
PackedPtr make_mlx(const HfModule& module);

}  // namespace quire
