#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tensor/block_formats.h"

// What the codes of a weight type are, said once. How they lie in panels, how panels are filled, how columns are read back and what each
// instruction set makes of them follows from it: no layout and no kernel asks for a type by its name, but to say which types it takes.

namespace quire {

template <class Format, class... Others>
inline constexpr bool kIsAnyOf = (std::is_same_v<Format, Others> || ...);

template <class Format>
concept In256 = Format::kValues == 256;

// value = scale * code - minimum, or scale * code + offset in blocks of 32.
template <class Format>
inline constexpr bool kHasMin = Format::kHasOffset;
template <In256 Format>
inline constexpr bool kHasMin<Format> = Format::kHasMin;

// Values that share a scale.
template <class Format>
inline constexpr size_t kSubValues = 32;
template <class Format>
requires requires {
  Format::kSubValues;
}
inline constexpr size_t kSubValues<Format> = Format::kSubValues;

struct WeightCodes {
  enum class Scale : uint8_t { f16, exponent, e4m3 };  // of a block; e4m3: of each of its sub-blocks

  int bits = 8;                      // of a code, or of the index that stands for it
  int lowest = -128, highest = 127;  // codes, as the format unpacks them
  bool is_table = false;             // they stand in `table`, in the order of indexes
  int8_t table[16] = {};
  Scale scale = Scale::f16;
  int times = 1;  // of a table: what it holds for a code of the format

  // What an index, or a code less the lowest, stands for.
  constexpr int8_t code(size_t index) const { return is_table ? table[index] : int8_t(int(index) + lowest); }
};

constexpr WeightCodes table_codes(int8_t (*code)(size_t index),
                                  WeightCodes::Scale scale = WeightCodes::Scale::f16, int times = 1) {
  WeightCodes codes = {.bits = 4,
                       .lowest = 127,
                       .highest = -128,
                       .is_table = true,
                       .table = {},
                       .scale = scale,
                       .times = times};
  for (size_t i = 0; i < 16; ++i) {
    codes.table[i] = int8_t(code(i) * times);
    if (codes.table[i] < codes.lowest) codes.lowest = codes.table[i];
    if (codes.table[i] > codes.highest) codes.highest = codes.table[i];
  }
  return codes;
}
constexpr WeightCodes iq4_codes() {
  return table_codes([](size_t index) { return format::kIq4Values[index]; });
}

// Formats whose panels are the same. Code books hold few magnitudes, so that with their signs sixteen numbers at most are left of the
// codes, and indexes of these are what a panel keeps: 4.3 or 4.6 bits a weight.
namespace format {
template <size_t sub_values>
struct LowBook {  // IQ1 and IQ2
  static constexpr size_t kValues = 256, kSubValues = sub_values;
  static constexpr bool kHasMin = false;
  static constexpr float kShare = 1.0f / 8;
};
}  // namespace format

template <class Format>
struct PanelsOf {
  using Type = Format;
};
template <class Format>
requires kIsAnyOf<Format, format::Iq1S, format::Iq1M, format::Iq2Xxs, format::Iq2Xs, format::Iq2S>
struct PanelsOf<Format> {
  using Type = format::LowBook<Format::kSubValues>;
};
template <class Format>
using Panels = typename PanelsOf<Format>::Type;

template <class Format>
inline constexpr bool kHasBook =
    kIsAnyOf<Format, format::Iq3Xxs, format::Iq3S, format::LowBook<16>, format::LowBook<32>>;

// Of a type that is not named: whole bytes.
template <class Format>
inline constexpr WeightCodes kWeightCodes = {};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q4_0> = {.bits = 4, .lowest = -8, .highest = 7};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q4_1> = {.bits = 4, .lowest = 0, .highest = 15};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q5_0> = {.bits = 5, .lowest = -16, .highest = 15};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q5_1> = {.bits = 5, .lowest = 0, .highest = 31};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q2_K> = {.bits = 2, .lowest = 0, .highest = 3};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q3_K> = {.bits = 3, .lowest = -4, .highest = 3};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q4_K> = {.bits = 4, .lowest = 0, .highest = 15};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q5_K> = {.bits = 5, .lowest = 0, .highest = 31};
template <>
inline constexpr WeightCodes kWeightCodes<format::Q6_K> = {.bits = 6, .lowest = -32, .highest = 31};
template <>
inline constexpr WeightCodes kWeightCodes<format::Iq4Nl> = iq4_codes();
template <>
inline constexpr WeightCodes kWeightCodes<format::Iq4Xs> = iq4_codes();
template <>
inline constexpr WeightCodes kWeightCodes<format::Mxfp4> =
    table_codes([](size_t index) { return format::Mxfp4::code(int(index)); }, WeightCodes::Scale::exponent);
// Twice, so that sums lose less where kMagic goes along (uniform_blocks.h); more would be too much for AVX2.
template <>
inline constexpr WeightCodes kWeightCodes<format::Nvfp4> =
    table_codes([](size_t index) { return format::Mxfp4::code(int(index)); }, WeightCodes::Scale::e4m3, 2);
template <>
inline constexpr WeightCodes kWeightCodes<format::Iq3Xxs> = table_codes([](size_t index) {
  constexpr int8_t kCodes[16] = {-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62};
  return kCodes[index];
});
template <>
inline constexpr WeightCodes kWeightCodes<format::Iq3S> = table_codes([](size_t index) {
  return int8_t(2 * int(index) - 15);
});
template <size_t sub_values>
inline constexpr WeightCodes kWeightCodes<format::LowBook<sub_values>> = table_codes([](size_t index) {
  constexpr int8_t kCodes[16] = {-43, -25, -9, -8, -7, -1, 1, 7, 8, 9, 25, 43};
  return kCodes[index];
});

// Blocks whose sub-blocks have floats for scales.
template <class Format>
concept HasSubFloats = kWeightCodes<Format>
.scale == WeightCodes::Scale::e4m3;

// Whether codes are four-bit numbers that are moved to -8..7 and taken sixteen times, their scale a sixteenth: then both halves of
// a byte become codes by one instruction each (a shift, a mask). Not where minimums are whole numbers, into which what is
// moved could not go.
template <class Format>
inline constexpr bool kIsWidened =
    kWeightCodes<Format>.bits <= 4 && !kWeightCodes<Format>.is_table && !(In256<Format> && kHasMin<Format>);

// What is subtracted from a widened code before it is taken sixteen times, so that it lies in -8..7.
template <class Format>
inline constexpr int kMoved = kIsWidened<Format>&& kWeightCodes<Format>.lowest == 0 ? 8 : 0;

// How codes are kept where four columns of a row lie together (panels.h).
enum class Coding : uint8_t { widened, table, four, five, six, byte };

template <class Format>
inline constexpr Coding kCoding = kWeightCodes<Format>.is_table    ? Coding::table
                                  : kIsWidened<Format>             ? Coding::widened
                                  : kWeightCodes<Format>.bits <= 4 ? Coding::four
                                  : kWeightCodes<Format>.bits == 5 ? Coding::five
                                  : kWeightCodes<Format>.bits == 6 ? Coding::six
                                                                   : Coding::byte;

// What makes codes that are not widened start at 0.
template <class Format>
inline constexpr int kLowest = kWeightCodes<Format>.lowest;

// All of a table, each code moved up by `more`; for other formats, zeros.
struct MovedTable {
  uint8_t bytes[16];
};
template <class Format>
consteval MovedTable moved_table(int more) {
  MovedTable table = {};
  if constexpr (kWeightCodes<Format>.is_table) {
    for (size_t i = 0; i < 16; ++i) table.bytes[i] = uint8_t(kWeightCodes<Format>.code(i) + more);
  }
  return table;
}

}  // namespace quire
