#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// The code books of the IQ types: sets of eight or four magnitudes, of which a code in a block names one. They are part of the
// formats (NOTICE says where they come from). A magnitude is a byte, the first value's lowest.

namespace quire::format {

extern const std::array<uint64_t, 256> kBookIq2Xxs;  // of 8, 25, 43
extern const std::array<uint64_t, 512> kBookIq2Xs;   // the same
extern const std::array<uint64_t, 1024> kBookIq2S;   // the same
extern const std::array<uint32_t, 256> kBookIq3Xxs;  // of 4, 12, 20, 28, 36, 44, 52, 62
extern const std::array<uint32_t, 512> kBookIq3S;    // of 1, 3, ... 15
extern const std::array<uint64_t, 2048> kBookIq1;    // of 0, 8, 16: eight more than eight times -1, 0, 1

}  // namespace quire::format
