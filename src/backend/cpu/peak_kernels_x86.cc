#ifdef __x86_64__

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cpuid.h>
#include <immintrin.h>

#include "backend/cpu/amx/tile_permission.h"
#include "backend/cpu/peak_kernels.h"

namespace quire {
namespace {

template <class Vector>
const Vector* vectors(const std::byte (&panel)[PeakPanels::kBytes]) {
  return reinterpret_cast<const Vector*>(panel);
}

template <class Number, class Vector, size_t kRows, size_t kColumns>
double total_of(const Vector (&sums)[kRows][kColumns]) {
  Number numbers[sizeof(sums) / sizeof(Number)];
  std::memcpy(numbers, sums, sizeof(sums));
  double total = 0;
  for (Number number : numbers) total += double(number);
  return total;
}

// How many products of vectors one sweep makes with a tile of side x side.
constexpr double products_per_sweep(size_t vector_bytes, size_t side) {
  return double(PeakPanels::kBytes / (vector_bytes * side)) * double(side * side);
}

// Four products are added in 16 bits before they are widened: what 4-bit weights allow.
constexpr size_t kMaddubsSide = 2;
__attribute__((target("avx2"))) double run_maddubs(const PeakPanels& panels, size_t sweeps) {
  constexpr size_t kSide = kMaddubsSide;
  constexpr size_t kDeep = 4;
  const __m256i* left = vectors<__m256i>(panels.left);
  const __m256i* right = vectors<__m256i>(panels.right);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums[kSide][kSide] = {};
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < PeakPanels::kBytes / sizeof(__m256i); k += kSide * kDeep) {
      __m256i narrow[kSide][kSide] = {};
#pragma GCC unroll 4
      for (size_t d = 0; d < kDeep; ++d) {
#pragma GCC unroll 4
        for (size_t i = 0; i < kSide; ++i) {
#pragma GCC unroll 4
          for (size_t j = 0; j < kSide; ++j) {
            const __m256i product = _mm256_maddubs_epi16(left[k + d * kSide + i], right[k + d * kSide + j]);
            narrow[i][j] = d == 0 ? product : _mm256_add_epi16(narrow[i][j], product);
          }
        }
      }
#pragma GCC unroll 4
      for (size_t i = 0; i < kSide; ++i) {
#pragma GCC unroll 4
        for (size_t j = 0; j < kSide; ++j) {
          sums[i][j] = _mm256_add_epi32(sums[i][j], _mm256_madd_epi16(narrow[i][j], ones));
        }
      }
    }
  }
  return total_of<int32_t>(sums);
}

constexpr size_t kAvxVnniSide = 2;  // 4 sums hide the latency of 4 or 5 at one product a cycle
constexpr size_t kAvxVnniChains = 2;
__attribute__((target("avx2,avxvnni"))) double run_avx_vnni(const PeakPanels& panels, size_t sweeps) {
  constexpr size_t kSide = kAvxVnniSide;
  const __m256i* left = vectors<__m256i>(panels.left);
  const __m256i* right = vectors<__m256i>(panels.right);
  __m256i sums[kAvxVnniChains * kSide][kSide] = {};
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < PeakPanels::kBytes / sizeof(__m256i); k += kSide * kAvxVnniChains) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kAvxVnniChains * kSide; ++i) {
#pragma GCC unroll 4
        for (size_t j = 0; j < kSide; ++j) {
          sums[i][j] = _mm256_dpbusd_avx_epi32(sums[i][j], left[k + i], right[k + i / kSide * kSide + j]);
        }
      }
    }
  }
  return total_of<int32_t>(sums);
}

constexpr size_t kAvx512Side = 4;
__attribute__((target("avx512f,avx512vnni"))) double run_avx512_vnni(const PeakPanels& panels,
                                                                     size_t sweeps) {
  constexpr size_t kSide = kAvx512Side;
  const __m512i* left = vectors<__m512i>(panels.left);
  const __m512i* right = vectors<__m512i>(panels.right);
  __m512i sums[kSide][kSide] = {};
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < PeakPanels::kBytes / sizeof(__m512i); k += kSide) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kSide; ++i) {
#pragma GCC unroll 4
        for (size_t j = 0; j < kSide; ++j) {
          sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], left[k + i], right[k + j]);
        }
      }
    }
  }
  return total_of<int32_t>(sums);
}

// Tiles 0 to 3 are the sums, 4 comes from the left and 5 from the right. There are two operands at a time: a thread that shares its
// core has hardly more tiles than it can name, and with four operands it is up to twice as slow.
constexpr size_t kTileRows = 16;
constexpr size_t kTileRowBytes = 64;
constexpr size_t kTileBytes = kTileRows * kTileRowBytes;
enum class TileNumber { int8, bf16 };

// Written out: the compiler's own functions want the number of a tile as a literal.
template <TileNumber kNumber, int kSum>
inline __attribute__((always_inline)) void multiply_tiles() {
  if constexpr (kNumber == TileNumber::int8) {
    asm volatile("tdpbssd %%tmm5, %%tmm4, %%tmm%c0" : : "i"(kSum));
  } else {
    asm volatile("tdpbf16ps %%tmm5, %%tmm4, %%tmm%c0" : : "i"(kSum));
  }
}

// kWide: two tiles from the left by two from the right, five loads for four products; otherwise by one, three for two.
template <TileNumber kNumber, bool kWide>
__attribute__((target("amx-tile,amx-int8,amx-bf16"))) double run_amx(const PeakPanels& panels,
                                                                     size_t sweeps) {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileRowBytes;
    config.rows[tile] = kTileRows;
  }
  asm volatile("" : : "r"(&config) : "memory");  // GCC 12 believes that only its first bytes are read
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < PeakPanels::kBytes; k += 2 * kTileBytes) {
      _tile_loadd(5, panels.right + k, kTileRowBytes);
      _tile_loadd(4, panels.left + k, kTileRowBytes);
      multiply_tiles<kNumber, 0>();
      _tile_loadd(4, panels.left + k + kTileBytes, kTileRowBytes);
      multiply_tiles<kNumber, 1>();
      if constexpr (kWide) {
        _tile_loadd(5, panels.right + k + kTileBytes, kTileRowBytes);
        multiply_tiles<kNumber, 2>();
        _tile_loadd(4, panels.left + k, kTileRowBytes);
        multiply_tiles<kNumber, 3>();
      }
    }
  }
  using Sum = std::conditional_t<kNumber == TileNumber::int8, int32_t, float>;
  alignas(64) Sum sums[4][kTileBytes / sizeof(Sum)];
  _tile_stored(0, sums[0], kTileRowBytes);
  _tile_stored(1, sums[1], kTileRowBytes);
  _tile_stored(2, sums[2], kTileRowBytes);
  _tile_stored(3, sums[3], kTileRowBytes);
  _tile_release();
  return total_of<Sum>(sums);
}

template <TileNumber kNumber>
std::vector<PeakKernel> tile_peak_kernels(const char* instruction) {
  constexpr double kOps = 2 * 16 * 16 * (kNumber == TileNumber::int8 ? 64 : 32);
  constexpr double kSteps = double(PeakPanels::kBytes / (2 * kTileBytes));  // of a sweep
  return {{instruction, 4 * kSteps * kOps, run_amx<kNumber, true>},
          {instruction, 2 * kSteps * kOps, run_amx<kNumber, false>}};
}
constexpr size_t kFmaSide = 3;  // 9 sums, 6 operands in 16 registers
__attribute__((target("avx2,fma"))) double run_fma256(const PeakPanels& panels, size_t sweeps) {
  constexpr size_t kSide = kFmaSide;
  const __m256* left = vectors<__m256>(panels.left);
  const __m256* right = vectors<__m256>(panels.right);
  __m256 sums[kSide][kSide] = {};
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k + kSide <= PeakPanels::kBytes / sizeof(__m256); k += kSide) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kSide; ++i) {
#pragma GCC unroll 4
        for (size_t j = 0; j < kSide; ++j) {
          sums[i][j] = _mm256_fmadd_ps(left[k + i], right[k + j], sums[i][j]);
        }
      }
    }
  }
  return total_of<float>(sums);
}

__attribute__((target("avx512f"))) double run_fma512(const PeakPanels& panels, size_t sweeps) {
  constexpr size_t kSide = kAvx512Side;
  const __m512* left = vectors<__m512>(panels.left);
  const __m512* right = vectors<__m512>(panels.right);
  __m512 sums[kSide][kSide] = {};
  for (size_t sweep = 0; sweep < sweeps; ++sweep) {
    for (size_t k = 0; k < PeakPanels::kBytes / sizeof(__m512); k += kSide) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kSide; ++i) {
#pragma GCC unroll 4
        for (size_t j = 0; j < kSide; ++j) {
          sums[i][j] = _mm512_fmadd_ps(left[k + i], right[k + j], sums[i][j]);
        }
      }
    }
  }
  return total_of<float>(sums);
}

// Asked of the CPU itself: Clang 14's __builtin_cpu_supports does not know the name.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1u);
}

}  // namespace

std::vector<PeakKernel> int8_peak_kernels() {
  if (may_use_int8_tiles()) return tile_peak_kernels<TileNumber::int8>("amx tdpbssd");
  std::vector<PeakKernel> kernels;
  if (__builtin_cpu_supports("avx512vnni")) {
    kernels.push_back({"avx512 vpdpbusd", 2 * 64 * products_per_sweep(64, kAvx512Side), run_avx512_vnni});
  }
  if (has_avx_vnni()) {
    kernels.push_back({"avx vpdpbusd", 2 * 32 * products_per_sweep(32, kAvxVnniSide), run_avx_vnni});
  }
  if (__builtin_cpu_supports("avx2")) {
    kernels.push_back({"avx2 vpmaddubsw", 2 * 32 * products_per_sweep(32, kMaddubsSide), run_maddubs});
  }
  if (kernels.empty()) kernels.push_back(portable::int8_peak_kernel());
  return kernels;
}

std::vector<PeakKernel> f32_peak_kernels() {
  std::vector<PeakKernel> kernels;
  if (__builtin_cpu_supports("avx512f")) {
    kernels.push_back({"avx512 vfmadd", 2 * 16 * products_per_sweep(64, kAvx512Side), run_fma512});
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    kernels.push_back({"avx2 vfmadd", 2 * 8 * products_per_sweep(32, kFmaSide), run_fma256});
  }
  if (kernels.empty()) kernels.push_back(portable::f32_peak_kernel());
  return kernels;
}

std::vector<PeakKernel> bf16_peak_kernels() {
  if (!may_use_bf16_tiles()) return {};
  return tile_peak_kernels<TileNumber::bf16>("amx tdpbf16ps");
}

}  // namespace quire

#endif
