#include "tensor/dtype.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::array<DTypeTraits, kDTypeCount> kTraits = {{
    {"f32", 1, 4},      {"f16", 1, 2},        {"bf16", 1, 2},      {"f8_e4m3", 1, 1},    {"i32", 1, 4},
    {"q4_0", 32, 18},   {"q4_1", 32, 20},     {"q5_0", 32, 22},    {"q5_1", 32, 24},     {"q8_0", 32, 34},
    {"q2_k", 256, 84},  {"q3_k", 256, 110},   {"q4_k", 256, 144},  {"q5_k", 256, 176},   {"q6_k", 256, 210},
    {"iq4_nl", 32, 18}, {"iq4_xs", 256, 136}, {"mxfp4", 32, 17},   {"iq2_xxs", 256, 66}, {"iq2_xs", 256, 74},
    {"iq2_s", 256, 82}, {"iq3_xxs", 256, 98}, {"iq3_s", 256, 110}, {"iq1_s", 256, 50},   {"iq1_m", 256, 56},
    {"tq1_0", 256, 54}, {"tq2_0", 256, 66},   {"q1_0", 128, 18},   {"q2_0", 64, 18},     {"nvfp4", 64, 36},
}};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
}

}  // namespace

const DTypeTraits& traits(DType dtype) {
  CHECK(size_t(dtype) < kDTypeCount);
  return kTraits[size_t(dtype)];
}

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto matches = [name](const DTypeTraits& entry) {
    return std::ranges::equal(name, entry.name, [](char a, char b) { return lower(a) == b; });
  };
  const auto found = std::ranges::find_if(kTraits, matches);
  if (found == kTraits.end()) return std::nullopt;
  return DType(found - kTraits.begin());
}

size_t row_bytes(DType dtype, size_t values) {
  const DTypeTraits& type = traits(dtype);
  CHECK(values % type.block_values == 0);
  return values / type.block_values * type.block_bytes;
}

}  // namespace quire
