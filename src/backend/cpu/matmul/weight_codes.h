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

struct WeightCodes {
  enum class Scale : uint8_t { f16, exponent };  // of a block

  int bits = 8;                      // of a code, or of the index that stands for it
  int lowest = -128, highest = 127;  // codes, as the format unpacks them
  bool is_table = false;             // they stand in `table`, in the order of indexes
  int8_t table[16] = {};
  Scale scale = Scale::f16;

  // What an index, or a code less the lowest, stands for.
  constexpr int8_t code(size_t index) const { return is_table ? table[index] : int8_t(int(index) + lowest); }
};

constexpr WeightCodes table_codes(int8_t (*code)(size_t index),
                                  WeightCodes::Scale scale = WeightCodes::Scale::f16) {
  WeightCodes codes = {
      .bits = 4, .lowest = 127, .highest = -128, .is_table = true, .table = {}, .scale = scale};
  for (size_t i = 0; i < 16; ++i) {
    codes.table[i] = code(i);
    if (codes.table[i] < codes.lowest) codes.lowest = codes.table[i];
    if (codes.table[i] > codes.highest) codes.highest = codes.table[i];
  }
  return codes;
}
constexpr WeightCodes iq4_codes() {
  return table_codes([](size_t index) { return format::kIq4Values[index]; });
}

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
