// What is done to rows of activations between the products, by AVX-512. The same operations in the same order as the
// scalar twin's, in wider vectors, so the bits are the same.
//
// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/avx512/avx512_kernels.h"
#include "backend/cpu/nonlinearity.h"
#include "backend/cpu/scalar/matmul.h"
#include "base/check.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace quire {
namespace {

typedef float Floats16 __attribute__((vector_size(64)));
typedef int32_t Ints16 __attribute__((vector_size(64)));

constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer at the bottom of the bits

ALWAYS_INLINE Floats16 load(const float* values) {
  return Floats16(_mm512_loadu_ps(values));
}

ALWAYS_INLINE Floats16 all(float value) {
  return Floats16(_mm512_set1_ps(value));
}

// ---- nonlinearities ------------------------------------------------------------------------------------------------

// As exp4 where the architecture's baseline has no fused multiply-add.
ALWAYS_INLINE Floats16 exp16(Floats16 x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const Floats16 clamped = x < all(-87.0f) ? all(-87.0f) : x > all(88.0f) ? all(88.0f) : x;
  const Floats16 shifted = clamped * all(kLog2E) + all(kRound);
  const Floats16 n = shifted - all(kRound);
  Floats16 r = n * all(-kLn2High) + clamped;
  r = n * all(-kLn2Low) + r;
  Floats16 p = all(1.9875691500e-4f);
  p = p * r + all(1.3981999507e-3f);
  p = p * r + all(8.3334519073e-3f);
  p = p * r + all(4.1665795894e-2f);
  p = p * r + all(1.6666665459e-1f);
  p = p * r + all(5.0000001201e-1f);
  p = (p * (r * r) + r) + all(1.0f);
  const Ints16 exponent = (Ints16(shifted) - Ints16(all(kRound))) << 23;
  const Floats16 result = Floats16(Ints16(p) + exponent);
  const Floats16 bounded = x < all(-87.0f) ? all(0.0f) : x > all(88.0f) ? all(__builtin_inff()) : result;
  return x == x ? bounded : x;
}

ALWAYS_INLINE Floats16 silu(Floats16 x) {
  return x / (all(1.0f) + exp16(-x));
}

ALWAYS_INLINE Floats16 gelu_tanh(Floats16 x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  const Floats16 inner = all(kSqrt2OverPi) * (x + all(0.044715f) * x * x * x);
  const Floats16 tanh = all(1.0f) - all(2.0f) / (exp16(inner + inner) + all(1.0f));
  return all(0.5f) * x * (all(1.0f) + tanh);
}

template <class F>
ALWAYS_INLINE void apply(F f, const float* gate, const float* up, float* out, size_t count) {
  for (size_t i = 0; i < count; i += 16) {
    const Floats16 value = f(load(gate + i));
    _mm512_storeu_ps(out + i, __m512(up == nullptr ? value : value * load(up + i)));
  }
}

void limited_silu(float limit, const float* gate, const float* up, float* out, size_t count) {
  for (size_t i = 0; i < count; i += 16) {
    const Floats16 g = load(gate + i), u = load(up + i);
    const Floats16 most = all(limit), least = all(-limit);
    const Floats16 value = silu(most < g ? most : g) * (u < least ? least : most < u ? most : u);
    _mm512_storeu_ps(out + i, __m512(value));
  }
}

void activate(const Gate& function, const float* gate, const float* up, float* out, size_t count) {
  const size_t whole = count / 16 * 16;
  if (function.kind == Nonlinearity::silu) {
    apply([](Floats16 x) { return silu(x); }, gate, up, out, whole);
  } else if (function.kind == Nonlinearity::gelu_tanh) {
    apply([](Floats16 x) { return gelu_tanh(x); }, gate, up, out, whole);
  } else if (function.kind == Nonlinearity::limited_silu) {
    limited_silu(function.limit, gate, up, out, whole);
  } else {
    return activate_row(function, gate, up, out, count);
  }
  activate_row(function, gate + whole, up == nullptr ? nullptr : up + whole, out + whole, count - whole);
}

// ---- quantized activations -----------------------------------------------------------------------------------------

// The largest magnitude as bits, which keep the order; infinity and NaN come out on top.
ALWAYS_INLINE uint32_t peak_bits(const float* values, size_t count) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i peak = _mm512_setzero_si512();
  for (size_t i = 0; i < count; i += 16) {
    peak = _mm512_max_epu32(peak, _mm512_and_si512(_mm512_loadu_si512(values + i), magnitude));
  }
  return _mm512_reduce_max_epu32(peak);
}

ALWAYS_INLINE float magnitude_sum(const float* values, size_t count) {
  __m512 sum = _mm512_setzero_ps();
  for (size_t i = 0; i < count; i += 16) sum = _mm512_add_ps(sum, _mm512_abs_ps(_mm512_loadu_ps(values + i)));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// As scalar::round_without_outliers. Groups of 256 gated values have three outliers or four, so this is what most of them take.
ALWAYS_INLINE float round_without_outliers(const float* values, size_t count, float most, int8_t* out,
                                           size_t first_col, const scalar::SpanOutliers& outliers) {
  __mmask16 stays[group_values(ActivationForm::q8_256) / 16];
  __m512 peaks = _mm512_setzero_ps();  // of those that stay
  uint32_t listed = *outliers.count;
  for (size_t i = 0; i < count; i += 16) {
    const __m512 magnitudes = _mm512_abs_ps(_mm512_loadu_ps(values + i));
    const __mmask16 stay = _mm512_cmp_ps_mask(magnitudes, _mm512_set1_ps(most), _CMP_LE_OQ);
    peaks = _mm512_mask_max_ps(peaks, stay, peaks, magnitudes);
    stays[i / 16] = stay;
    for (uint32_t left = uint16_t(~stay); left != 0; left &= left - 1) {
      const size_t at = i + size_t(__builtin_ctz(left));
      CHECK(listed < outliers.most);
      outliers.list[listed++] = {uint32_t(first_col + at), values[at]};
    }
  }
  *outliers.count = listed;
  const float peak = _mm512_reduce_max_ps(peaks);
  const bool is_nothing = peak < 0x1p-100f;
  const Floats16 inverse = all(is_nothing ? 0.0f : 127.0f / peak);
  for (size_t i = 0; i < count; i += 16) {
    const Ints16 rounded = Ints16(load(values + i) * inverse + all(kRound)) - Ints16(all(kRound));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm512_maskz_cvtepi32_epi8(stays[i / 16], __m512i(rounded)));
  }
  return is_nothing ? 0.0f : peak / 127.0f;
}

// Returns the scale. A multiple of 32 values.
ALWAYS_INLINE float quantize_group(const float* values, size_t count, float most, int8_t* out,
                                   size_t first_col, scalar::SpanOutliers outliers) {
  const uint32_t bits = peak_bits(values, count);
  const float peak = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int(bits))));
  const __m128i nothing = _mm_setzero_si128();
  if (!(peak >= 0x1p-100f && bits < 0x7f800000u)) {
    for (size_t i = 0; i < count; i += 16) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), nothing);
    return bits < 0x7f800000u ? 0.0f : __builtin_nanf("");
  }
  if (peak > most) return round_without_outliers(values, count, most, out, first_col, outliers);
  const Floats16 inverse = all(127.0f / peak);
  for (size_t i = 0; i < count; i += 16) {
    const Ints16 rounded = Ints16(load(values + i) * inverse + all(kRound)) - Ints16(all(kRound));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(__m512i(rounded)));
  }
  return peak / 127.0f;
}

// Of 32 values from `first` on.
ALWAYS_INLINE void store_sums(const MutableQ8Row& row, size_t first, float scale) {
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.values + first));
  const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), all);
  const __m256i eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0b10'11'00'01));
  const __m256i sums = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0b01'00'11'10));
  const int low = _mm256_extract_epi32(sums, 0), high = _mm256_extract_epi32(sums, 4);
  row.scaled_sums[first / 32] = scale * float(low + high);
  row.sums16[first / 16] = int16_t(low);
  row.sums16[first / 16 + 1] = int16_t(high);
  row.sums32[first / 32] = int16_t(low + high);
}

template <ActivationForm kForm>
void quantize_q8(const float* values, size_t n, std::byte* bytes) {
  constexpr size_t kGroup = group_values(kForm);
  const MutableQ8Row row(bytes, n, kGroup);
  float most = 0.0f;
  for (size_t i = 0; i < n; i += kGroup) {
    if (i % kOutlierSpan == 0) {
      const size_t span = n - i < kOutlierSpan ? n - i : kOutlierSpan;
      most = outlier_means(kGroup) * (magnitude_sum(values + i, span) / float(span));
    }
    const size_t count = n - i < kGroup ? n - i : kGroup;
    const float scale = quantize_group(values + i, count, most, row.values + i, i % kOutlierSpan,
                                       scalar::outliers_at(row, kGroup, i));
    row.scales[i / kGroup] = scale;
    for (size_t k = i; k < i + count; k += 32) store_sums(row, k, scale);
  }
}

// To nearest, ties to even; NaN stays NaN.
void round_to_bf16(const float* values, size_t n, std::byte* row) {
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 live = n - i < 16 ? __mmask16((1u << (n - i)) - 1) : __mmask16(0xffff);
    const __m512 floats = _mm512_maskz_loadu_ps(live, values + i);
    const __m512i bits = _mm512_castps_si512(floats), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i moved = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_mov_epi32(_mm512_srli_epi32(moved, 16), is_nan, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i * sizeof(uint16_t)),
                        _mm512_cvtepi32_epi16(rounded));
  }
  if ((n + 15) / 16 % 2 != 0) {  // the last sixteen of the row's multiple of 32
    const size_t end = (n + 15) / 16 * 16;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + end * sizeof(uint16_t)), _mm256_setzero_si256());
  }
}

void to_f16(const float* values, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; i += 16) {
    const __mmask16 live = count - i < 16 ? __mmask16((1u << (count - i)) - 1) : __mmask16(0xffff);
    const __m256i halves =
        _mm512_cvtps_ph(_mm512_maskz_loadu_ps(live, values + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_mask_storeu_epi16(out + i, live, halves);
  }
}

}  // namespace

void use_avx512_rows(CpuKernels& kernels) {
  kernels.quantize_activation[size_t(ActivationForm::q8_64)] = quantize_q8<ActivationForm::q8_64>;
  kernels.quantize_activation[size_t(ActivationForm::q8_128)] = quantize_q8<ActivationForm::q8_128>;
  kernels.quantize_activation[size_t(ActivationForm::q8_256)] = quantize_q8<ActivationForm::q8_256>;
  kernels.quantize_activation[size_t(ActivationForm::bf16)] = round_to_bf16;
  kernels.activate = activate;
  kernels.to_f16 = to_f16;
}

}  // namespace quire

#endif
