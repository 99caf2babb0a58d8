// Rows of a page as attention reads them, for one instruction set. Included by files that are compiled for different ones,
// so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attention/attend_lanes.h"
#include "backend/cpu/attention/kv_codes.h"

namespace quire {
namespace {

// In the page, or unpacked.
struct PageRows {
  const std::byte* bytes;
  size_t row_bytes;
  KvFormat format;
  ptrdiff_t ahead;  // how far on the same rows of a later page are; 0: nothing is to be fetched
};

// Whether a row is read value by value.
inline bool has_values(KvFormat format) {
  return is_float(format) || format == KvFormat::fp8;
}

// Fetches what the later page has in the place of `bytes` from `at` on.
template <class Fetch>
ALWAYS_INLINE void prefetch(const PageRows& rows, const std::byte* at, size_t bytes) {
  if (rows.ahead == 0) return;
  for (size_t i = 0; i < bytes; i += 64) fetch_line<Fetch>(at + rows.ahead + i);
}

template <class Isa, KvFormat format>
void unpack_as(const PageRows& rows, size_t count, size_t dim, size_t width, float* out) {
  constexpr size_t kBytes = value_bytes(format);
  for (size_t r = 0; r < count; ++r, out += width + kRowGap) {
    const std::byte* row = rows.bytes + r * rows.row_bytes;
    prefetch<typename Isa::Fetch>(rows, row, rows.row_bytes);
    size_t d = 0;
    for (; d + Isa::kLanes <= dim; d += Isa::kLanes)
      store_lanes(Isa::template load<format>(row + d * kBytes), out + d);
    if (d == width) continue;
    std::byte rest[kAttendLanes * kBytes] = {};
    std::memcpy(rest, row + d * kBytes, (dim - d) * kBytes);
    for (size_t i = 0; d < width; i += Isa::kLanes, d += Isa::kLanes)
      store_lanes(Isa::template load<format>(rest + i * kBytes), out + d);
  }
}

template <class Isa>
void unpack_codes(const PageRows& rows, size_t count, size_t dim, size_t width, float* out) {
  for (size_t r = 0; r < count; ++r, out += width + kRowGap) {
    const std::byte* row = rows.bytes + r * rows.row_bytes;
    prefetch<typename Isa::Fetch>(rows, row, rows.row_bytes);
    read_codes(rows.format, row, dim, out);
    for (size_t d = dim; d < width; ++d) out[d] = 0.0f;
  }
}

// Makes floats of the first `count` rows, [count, width + kRowGap]; of fp8 as `Isa` loads it, without its scale.
template <class Isa>
void unpack_rows(PageRows& rows, size_t count, size_t dim, size_t width, float* out) {
  if (rows.format == KvFormat::f32) unpack_as<Isa, KvFormat::f32>(rows, count, dim, width, out);
  if (rows.format == KvFormat::f16) unpack_as<Isa, KvFormat::f16>(rows, count, dim, width, out);
  if (rows.format == KvFormat::bf16) unpack_as<Isa, KvFormat::bf16>(rows, count, dim, width, out);
  if (rows.format == KvFormat::fp8) unpack_as<Isa, KvFormat::fp8>(rows, count, dim, width, out);
  if (!has_values(rows.format)) unpack_codes<Isa>(rows, count, dim, width, out);
  rows.bytes = reinterpret_cast<const std::byte*>(out);
  rows.row_bytes = (width + kRowGap) * sizeof(float);
  rows.format = KvFormat::f32;
  rows.ahead = 0;
}

}  // namespace
}  // namespace quire
