#pragma once

#include <cstddef>

// What streams from memory, weights that meet few tokens and pages of keys and values, comes sooner if it is asked for in
// time. How far ahead, and into which cache, is the core's affair: a Neoverse-V1 reads twice as fast if lines are brought to
// the third cache 16 KB ahead as to the first 8 KB ahead, a Neoverse-N1 the other way round; on x86 the three caches are alike.
// So it goes by kernel set, and is said here for all of them. It changes no bit.

namespace quire {

// x86, and arm64 without int8 or bf16 matrix instructions (N1). A hint that passes by the caches (`prefetchnta`) was always
// the slowest.
struct NearFetch {
  static constexpr int kLocality = 3;  // of __builtin_prefetch: the first cache
  static constexpr size_t kAhead = 8192;
  static constexpr size_t kRowAhead = 1024;  // in each of several rows that are read side by side
  static constexpr size_t kPagesAhead = 1;
};

// AVX2 works on each line for longer.
struct Avx2Fetch : NearFetch {
  static constexpr size_t kAhead = 4096;
};

// AMX: vectors open what tiles multiply, a while after it has come.
struct TileFetch {
  static constexpr int kLocality = 2;  // the second cache
  static constexpr size_t kAhead = 8192;
  static constexpr size_t kPagesAhead = 2;
};

// What tiles load as it is.
struct PlainTileFetch {
  static constexpr int kLocality = 1;
  static constexpr size_t kAhead = 16384;
};

// arm64 with int8 or bf16 matrix instructions (V1 and later).
struct FarFetch {
  static constexpr int kLocality = 1;  // the third cache
  static constexpr size_t kAhead = 16384;
  static constexpr size_t kRowAhead = 16384;  // there is one row at a time
  static constexpr size_t kPagesAhead = 2;
};

// Always inlined: files for different instruction sets use these.
template <class Fetch>
static inline __attribute__((always_inline)) void fetch_line(const void* at) {
  __builtin_prefetch(at, 0, Fetch::kLocality);
}

// What lies as far ahead of `kBytes` that are read now.
template <class Fetch, size_t kBytes>
static inline __attribute__((always_inline)) void fetch_ahead(const void* now) {
#pragma GCC unroll 16
  for (size_t line = 0; line < kBytes; line += 64)
    fetch_line<Fetch>(static_cast<const char*>(now) + Fetch::kAhead + line);
}

}  // namespace quire
