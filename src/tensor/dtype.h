#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

// How the numbers of a tensor are stored: plain types, and the block formats of GGUF, in which `block_values`
// neighbouring values of a row share scales.
enum class DType : uint8_t {
  f32,
  f16,
  bf16,
  f8_e4m3,
  i32,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  iq1_s,
  iq1_m,
  tq1_0,
  tq2_0,
  q1_0,
  q2_0,
  nvfp4,
};
inline constexpr size_t kDTypeCount = size_t(DType::nvfp4) + 1;

struct DTypeTraits {
  std::string_view name;  // "q4_0": as the command line writes it
  uint32_t block_values;
  uint32_t block_bytes;
};

const DTypeTraits& traits(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);  // any case

// Bytes of `values` numbers. REQUIRES: values is a multiple of the block.
size_t row_bytes(DType dtype, size_t values);

}  // namespace quire
