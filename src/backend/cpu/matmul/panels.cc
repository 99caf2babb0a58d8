#include "backend/cpu/matmul/panels.h"

#include "backend/cpu/matmul/panel_packing.h"

namespace quire {
namespace {

// Four columns of a row lie together, at the row's place in each 64 bytes of a step.
constexpr size_t kFour = 4;

void put_fours(U8x16 bytes, uint8_t* place) {
  for (size_t i = 0; i < 4; ++i) {
    std::memcpy(place + 64 * i, reinterpret_cast<const uint8_t*>(&bytes) + kFour * i, kFour);
  }
}

// The four vectors of four bytes put on top of each other.
void put_merged(U8x16 bytes, uint8_t* place) {
  uint64_t halves[2];
  std::memcpy(halves, &bytes, sizeof(halves));
  const uint64_t both = halves[0] | halves[1];
  const uint32_t four = uint32_t(both) | uint32_t(both >> 32);
  std::memcpy(place, &four, kFour);
}

// Half bytes of a table format, as the file has them at the end of a block, in the order of a step. Sub-blocks of sixteen have their own
// last eight columns in the upper halves, and not those of the next one.
template <class Format>
U8x16 table_indexes(const uint8_t* block, size_t step) {
  const U8x16 halves = load16(block + Format::kBytes - Format::kValues / 2 + 16 * step);
  if constexpr (kSubValues<Format> == 32) return halves;
  uint64_t subs[2], ordered[2];
  std::memcpy(subs, &halves, sizeof(subs));
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  ordered[0] = (subs[0] & kLow) | (subs[1] & kLow) << 4;
  ordered[1] = (subs[0] >> 4 & kLow) | (subs[1] & ~kLow);
  return load16(reinterpret_cast<const uint8_t*>(ordered));
}

// The place in the table of every code that a book can hold.
template <class Format>
struct CodeIndex {
  uint8_t of[256] = {};
  constexpr CodeIndex() {
    for (size_t i = 16; i-- > 0;) of[uint8_t(kWeightCodes<Format>.code(i))] = uint8_t(i);
  }
};
template <class Format>
void put_book_codes(const int8_t* codes, uint8_t* place) {
  static constexpr CodeIndex<Format> kIndex;
  uint8_t halves[16];
  for (size_t i = 0; i < 16; ++i)
    halves[i] = uint8_t(kIndex.of[uint8_t(codes[i])] | kIndex.of[uint8_t(codes[i + 16])] << 4);
  put_fours(load16(halves), place);
}

// 32 codes of a row, as the format unpacks them, at the row's place in a step.
template <class Format>
void put_step(const int8_t* codes, uint8_t* place) {
  constexpr Coding kCodes = kCoding<Format>;
  const U8x16 low = load16(reinterpret_cast<const uint8_t*>(codes));
  const U8x16 high = load16(reinterpret_cast<const uint8_t*>(codes) + 16);
  if constexpr (kCodes == Coding::byte) {
    put_fours(low, place);
    put_fours(high, place + 256);
  } else {
    constexpr uint8_t kLess = uint8_t(kCodes == Coding::widened ? kMoved<Format> : kLowest<Format>);
    const U8x16 first = low - kLess, second = high - kLess;  // columns 0 to 15, 16 to 31
    put_fours((first & 15) | (second << 4), place);
    if constexpr (kCodes == Coding::five) {
      constexpr U8x16 kByColumn = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
      put_merged((((first >> 4) & 1) << kByColumn) | (((second >> 4) & 1) << (kByColumn + 4)), place + 256);
    }
    if constexpr (kCodes == Coding::six) {
      constexpr U8x16 kByColumn = {0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6};
      put_merged(((first >> 4) & 3) << kByColumn, place + 256);
      put_merged(((second >> 4) & 3) << kByColumn, place + 320);
    }
  }
}

template <class Format>
struct Fours {
  using Packed = PackedBlock<Panels<Format>>;
  static void put_codes(const uint8_t* block, const int8_t* codes, size_t row, uint8_t* out) {
    uint8_t* place = out + kFour * row;
    for (size_t step = 0; step < Packed::kValues / 32; ++step, place += Packed::kStepBytes) {
      if constexpr (kHasBook<Panels<Format>>) {
        put_book_codes<Panels<Format>>(codes + 32 * step, place);
      } else if constexpr (Packed::kCodes == Coding::table) {
        put_fours(table_indexes<Format>(block, step), place);
      } else {
        put_step<Format>(codes + 32 * step, place);
      }
    }
  }
};

}  // namespace

template <class Format>
PanelFormat panel_format() {
  return PanelPacking<Format, Fours<Format>>::format();
}

#define QUIRE_FORMAT(dtype, Format, activation) template PanelFormat panel_format<format::Format>();
#include "backend/cpu/matmul/book_formats.inc"
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT

}  // namespace quire
