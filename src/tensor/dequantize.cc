#include <array>

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/float16.h"
#include "tensor/float8.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

template <class Stored, class Convert>
void convert_row(const uint8_t* in, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = convert(format::load<Stored>(in + i * sizeof(Stored)));
}

constexpr std::array<float, 256> make_f8_values() {
  std::array<float, 256> values = {};
  for (size_t i = 0; i < 256; ++i) values[i] = f8_e4m3_to_f32(uint8_t(i));
  return values;
}
constexpr std::array<float, 256> kF8Values = make_f8_values();

template <class Format>
void write_values(const Codes32& block, float* out) {
  for (size_t i = 0; i < 32; ++i) {
    const float value = block.scale * float(block.codes[i]);
    out[i] = Format::kHasOffset ? value + block.offset : value;
  }
}

template <class Format>
void write_values(const Codes256& block, float* out) {
  for (size_t j = 0; j < 256 / Format::kSubValues; ++j) {
    const float scale = block.scale * kShareOf<Format> * float(block.sub_scales[j]);
    const float min = Format::kHasMin ? block.min_scale * float(block.sub_mins[j]) : 0.0f;
    for (size_t i = j * Format::kSubValues; i < (j + 1) * Format::kSubValues; ++i) {
      const float value = scale * float(block.codes[i]);
      out[i] = Format::kHasMin ? value - min : value;
    }
  }
}

template <class Format>
void dequantize_few_bits(const uint8_t* in, std::span<float> out) {
  int8_t codes[Format::kValues];
  for (size_t i = 0; i < out.size(); i += Format::kValues, in += Format::kBytes) {
    const float scale = Format::unpack(in, codes);
    for (size_t k = 0; k < Format::kValues; ++k) out[i + k] = scale * float(codes[k]);
  }
}

void dequantize_nvfp4(const uint8_t* in, std::span<float> out) {
  using format::Nvfp4;
  format::Codes64 block;
  for (size_t i = 0; i < out.size(); i += Nvfp4::kValues, in += Nvfp4::kBytes) {
    Nvfp4::unpack(in, block);
    for (size_t j = 0; j < Nvfp4::kValues; ++j)
      out[i + j] = block.scales[j / Nvfp4::kSubValues] * float(block.codes[j]);
  }
}

template <class Format, class Codes>
void dequantize_blocks(const uint8_t* in, std::span<float> out) {
  Codes block;
  for (size_t i = 0; i < out.size(); i += Format::kValues, in += Format::kBytes) {
    Format::unpack(in, block);
    write_values<Format>(block, out.data() + i);
  }
}

}  // namespace

void dequantize_row(DType dtype, const std::byte* in, std::span<float> out) {
  CHECK(out.size() % traits(dtype).block_values == 0);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(in);
  switch (dtype) {
    case DType::f32:
      return convert_row<float>(bytes, out, [](float value) { return value; });
    case DType::f16:
      return convert_row<uint16_t>(bytes, out, f16_to_f32);
    case DType::bf16:
      return convert_row<uint16_t>(bytes, out, bf16_to_f32);
    case DType::f8_e4m3:
      return convert_row<uint8_t>(bytes, out, [](uint8_t bits) { return kF8Values[bits]; });
    case DType::i32:
      return convert_row<int32_t>(bytes, out, [](int32_t value) { return float(value); });
    case DType::q4_0:
      return dequantize_blocks<format::Q4_0, Codes32>(bytes, out);
    case DType::q4_1:
      return dequantize_blocks<format::Q4_1, Codes32>(bytes, out);
    case DType::q5_0:
      return dequantize_blocks<format::Q5_0, Codes32>(bytes, out);
    case DType::q5_1:
      return dequantize_blocks<format::Q5_1, Codes32>(bytes, out);
    case DType::q8_0:
      return dequantize_blocks<format::Q8_0, Codes32>(bytes, out);
    case DType::q2_k:
      return dequantize_blocks<format::Q2_K, Codes256>(bytes, out);
    case DType::q3_k:
      return dequantize_blocks<format::Q3_K, Codes256>(bytes, out);
    case DType::q4_k:
      return dequantize_blocks<format::Q4_K, Codes256>(bytes, out);
    case DType::q5_k:
      return dequantize_blocks<format::Q5_K, Codes256>(bytes, out);
    case DType::q6_k:
      return dequantize_blocks<format::Q6_K, Codes256>(bytes, out);
    case DType::iq4_nl:
      return dequantize_blocks<format::Iq4Nl, Codes32>(bytes, out);
    case DType::iq4_xs:
      return dequantize_blocks<format::Iq4Xs, Codes256>(bytes, out);
    case DType::mxfp4:
      return dequantize_blocks<format::Mxfp4, Codes32>(bytes, out);
    case DType::iq2_xxs:
      return dequantize_blocks<format::Iq2Xxs, Codes256>(bytes, out);
    case DType::iq2_xs:
      return dequantize_blocks<format::Iq2Xs, Codes256>(bytes, out);
    case DType::iq2_s:
      return dequantize_blocks<format::Iq2S, Codes256>(bytes, out);
    case DType::iq3_xxs:
      return dequantize_blocks<format::Iq3Xxs, Codes256>(bytes, out);
    case DType::iq3_s:
      return dequantize_blocks<format::Iq3S, Codes256>(bytes, out);
    case DType::iq1_s:
      return dequantize_blocks<format::Iq1S, Codes256>(bytes, out);
    case DType::iq1_m:
      return dequantize_blocks<format::Iq1M, Codes256>(bytes, out);
    case DType::tq1_0:
      return dequantize_few_bits<format::Tq1_0>(bytes, out);
    case DType::tq2_0:
      return dequantize_few_bits<format::Tq2_0>(bytes, out);
    case DType::q1_0:
      return dequantize_few_bits<format::Q1_0>(bytes, out);
    case DType::q2_0:
      return dequantize_few_bits<format::Q2_0>(bytes, out);
    case DType::nvfp4:
      return dequantize_nvfp4(bytes, out);
  }
}

}  // namespace quire
