#include "model/product_type.h"

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

template <class Format>
void rewrite_as_q4_0(std::span<const std::byte> in, std::span<std::byte> out) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(in.data());
  uint8_t* to = reinterpret_cast<uint8_t*>(out.data());
  for (size_t at = 0; at < in.size(); at += Format::kBytes) {
    int8_t codes[Format::kValues];
    Codes32 block;
    block.scale = Format::unpack(from + at, codes);
    for (size_t i = 0; i < Format::kValues; i += 32, to += format::Q4_0::kBytes) {
      std::memcpy(block.codes, codes + i, 32);
      format::Q4_0::pack(block, to);
    }
  }
}

}  // namespace

DType product_type(DType dtype) {
  switch (dtype) {
    case DType::tq1_0:
    case DType::tq2_0:
    case DType::q1_0:
    case DType::q2_0:
      return DType::q4_0;
    default:
      return dtype;
  }
}

DType turned_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 ? dtype : DType::f16;
}

void rewrite_for_products(DType from, std::span<const std::byte> in, std::span<std::byte> out) {
  switch (from) {
    case DType::tq1_0:
      return rewrite_as_q4_0<format::Tq1_0>(in, out);
    case DType::tq2_0:
      return rewrite_as_q4_0<format::Tq2_0>(in, out);
    case DType::q1_0:
      return rewrite_as_q4_0<format::Q1_0>(in, out);
    case DType::q2_0:
      return rewrite_as_q4_0<format::Q2_0>(in, out);
    default:
      break;
  }
  CHECK(product_type(from) != from);
}

}  // namespace quire
