#include "tensor/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/float16.h"
#include "tensor/float8.h"
#include "tensor/quantize_blocks.h"

namespace quire {
namespace {

using EncodeBlock = void (*)(const float* values, const float* importance, uint8_t* block);

EncodeBlock encoder(DType dtype) {
  switch (dtype) {
    case DType::q4_0:
      return format::encode_q4_0;
    case DType::q4_1:
      return format::encode_q4_1;
    case DType::q5_0:
      return format::encode_q5_0;
    case DType::q5_1:
      return format::encode_q5_1;
    case DType::q8_0:
      return format::encode_q8_0;
    case DType::q2_k:
      return format::encode_q2_k;
    case DType::q3_k:
      return format::encode_q3_k;
    case DType::q4_k:
      return format::encode_q4_k;
    case DType::q5_k:
      return format::encode_q5_k;
    case DType::q6_k:
      return format::encode_q6_k;
    case DType::iq4_nl:
      return format::encode_iq4_nl;
    case DType::iq4_xs:
      return format::encode_iq4_xs;
    case DType::mxfp4:
      return format::encode_mxfp4;
    case DType::tq1_0:
      return format::encode_tq1_0;
    case DType::tq2_0:
      return format::encode_tq2_0;
    case DType::q1_0:
      return format::encode_q1_0;
    case DType::q2_0:
      return format::encode_q2_0;
    case DType::nvfp4:
      return format::encode_nvfp4;
    case DType::iq2_xxs:
      return format::encode_iq2_xxs;
    case DType::iq2_xs:
      return format::encode_iq2_xs;
    case DType::iq2_s:
      return format::encode_iq2_s;
    case DType::iq3_xxs:
      return format::encode_iq3_xxs;
    case DType::iq3_s:
      return format::encode_iq3_s;
    case DType::iq1_s:
      return format::encode_iq1_s;
    case DType::iq1_m:
      return format::encode_iq1_m;
    default:
      return nullptr;
  }
}

template <class Stored, class Convert>
void convert_row(std::span<const float> in, uint8_t* out, Convert convert) {
  for (size_t i = 0; i < in.size(); ++i) format::store<Stored>(convert(in[i]), out + i * sizeof(Stored));
}

void encode_row(DType dtype, std::span<const float> in, std::span<const float> importance, uint8_t* out) {
  const EncodeBlock encode = encoder(dtype);
  CHECK(encode != nullptr);
  // The largest values of the formats with an f16 scale are below 2^28; their squares still have room in f32.
  const float limit = dtype == DType::mxfp4 ? 0x1.fffffep127f : 0x1p28f;
  const size_t block_values = traits(dtype).block_values;
  float values[256];
  for (size_t i = 0; i < in.size(); i += block_values) {
    for (size_t k = 0; k < block_values; ++k) {
      values[k] = std::isnan(in[i + k]) ? 0.0f : std::clamp(in[i + k], -limit, limit);
    }
    encode(values, importance.empty() ? nullptr : &importance[i], out);
    out += traits(dtype).block_bytes;
  }
}

}  // namespace

bool is_writable(DType dtype) {
  return dtype != DType::i32 && (traits(dtype).block_values == 1 || encoder(dtype) != nullptr);
}

bool has_book(DType dtype) {
  return needs_importance(dtype) || dtype == DType::iq3_xxs || dtype == DType::iq3_s;
}

bool needs_importance(DType dtype) {
  switch (dtype) {
    case DType::iq1_s:
    case DType::iq1_m:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s:
      return true;
    default:
      return false;
  }
}

void quantize_row(DType dtype, std::span<const float> in, std::byte* out, std::span<const float> importance) {
  CHECK(in.size() % traits(dtype).block_values == 0);
  CHECK(importance.empty() || importance.size() == in.size());
  uint8_t* bytes = reinterpret_cast<uint8_t*>(out);
  switch (dtype) {
    case DType::f32:
      return convert_row<float>(in, bytes, [](float value) { return value; });
    case DType::f16:
      return convert_row<uint16_t>(in, bytes, f32_to_f16);
    case DType::bf16:
      return convert_row<uint16_t>(in, bytes, f32_to_bf16);
    case DType::f8_e4m3:
      return convert_row<uint8_t>(in, bytes, f32_to_f8_e4m3);
    default:
      return encode_row(dtype, in, importance, bytes);
  }
}

}  // namespace quire
