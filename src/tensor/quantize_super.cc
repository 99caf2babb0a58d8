// The formats with a scale per sub-block in blocks of 256, and iq4_nl, which shares its codes with one.
// Sub-blocks are fitted freely first; then their scales are rounded to multiples of a common one, and the
// common one is fitted to the outcome.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tensor/block_formats.h"
#include "tensor/quantize_blocks.h"
#include "tensor/quantize_search.h"

namespace quire::format {
namespace {

constexpr int kRounds = 2;  // of fitting the common scales again; more changes almost nothing

struct Q3Codes : WholeCodes<-4, 3> {
  static constexpr int kSteps = 9;
  static constexpr float kStep = 0.025f;
};
struct Q6Codes : WholeCodes<-32, 31> {
  static constexpr int kSteps = 9;
  static constexpr float kStep = 0.003f;
};
struct Q2Codes : WholeCodes<0, 3> {
  static constexpr int kSteps = 9;
  static constexpr float kStep = 0.05f;
};
struct Q4Codes : WholeCodes<0, 15> {
  static constexpr int kSteps = 10;
  static constexpr float kStep = 0.0125f;
};
struct Q5Codes : WholeCodes<0, 31> {
  static constexpr int kSteps = 10;
  static constexpr float kStep = 0.00625f;
};

// For each half unit from -128 up, the nearest of kIq4Values; the borders between them are whole half units.
constexpr std::array<int8_t, 512> make_iq4_nearest() {
  std::array<int8_t, 512> nearest = {};
  for (int half = 0; half < 512; ++half) {
    int index = 0;
    while (index < 15 && half - 256 >= kIq4Values[index] + kIq4Values[index + 1]) ++index;
    nearest[size_t(half)] = kIq4Values[index];
  }
  return nearest;
}
constexpr std::array<int8_t, 512> kIq4Nearest = make_iq4_nearest();

struct Iq4Codes {
  static constexpr int kLow = -127, kHigh = 113;
  static constexpr int kSteps = 4;
  static constexpr float kStep = 0.03f;
  static F32x4 nearest(F32x4 values) {
    F32x4 codes = {};
    for (size_t k = 0; k < 4; ++k) {
      // Plus 256 it is not negative, so that the conversion rounds down.
      codes[k] = float(kIq4Nearest[size_t(int(clamped(2.0f * values[k], -256.0f, 255.0f) + 256.0f))]);
    }
    return codes;
  }
};

// x ~ scale * sub_scale * code, sub-scales in [kLowest, -kLowest).
template <class Format, class Codes, int kLowest>
struct ScaledBlock {
  static constexpr size_t kSub = Format::kSubValues;
  static constexpr size_t kSubs = 256 / kSub;

  const float* x;
  const float* w;

  // The codes of the block under a given common scale, sub-scales near the wanted ones. Returns the error.
  float encode(float scale, const float* wanted, Codes256& out) const {
    out.scale = scale;
    const float inverse = inverse_or_zero(scale);
    float total = 0.0f;
    for (size_t j = 0; j < kSubs; ++j) {
      const int middle = int(round_small(clamped(wanted[j] * inverse, float(kLowest), float(-kLowest - 1))));
      float best = INFINITY;
      int best_scale = middle;
      for (int s = std::max(middle - 1, kLowest); s <= std::min(middle + 1, -kLowest - 1); ++s) {
        const float error = coding_error<Codes, kSub>(x + j * kSub, w + j * kSub, scale * float(s), 0.0f);
        if (error < best) {
          best = error;
          best_scale = s;
        }
      }
      out.sub_scales[j] = int8_t(best_scale);
      write_codes<Codes, kSub>(x + j * kSub, scale * float(best_scale), 0.0f, out.codes + j * kSub);
      total += best;
    }
    return total;
  }

  // The least-squares common scale for the codes and sub-scales of `block`.
  float refit(const Codes256& block) const {
    float xc = 0.0f, cc = 0.0f;
    for (size_t i = 0; i < 256; ++i) {
      const size_t j = i / kSub;
      const float code = float(block.sub_scales[j] * block.codes[i]);
      xc += w[i] * x[i] * code;
      cc += w[i] * code * code;
    }
    return cc > 0.0f ? as_f16(xc / cc) : 0.0f;
  }
};

template <class Format, class Codes, int kLowest>
void encode_scaled(const float* x, const float* importance, uint8_t* out) {
  float weights[256];
  weigh(x, importance, 256, weights);
  const ScaledBlock<Format, Codes, kLowest> search = {x, weights};
  float wanted[search.kSubs];
  float peak = 0.0f;
  for (size_t j = 0; j < search.kSubs; ++j) {
    wanted[j] = fit_scale<Codes, search.kSub>(x + j * search.kSub, weights + j * search.kSub);
    peak = std::fabs(wanted[j]) > std::fabs(peak) ? wanted[j] : peak;
  }
  Codes256 best = {};
  float best_error = search.encode(as_f16(peak / float(kLowest)), wanted, best);
  for (int round = 0; round < kRounds; ++round) {
    Codes256 next = {};
    const float error = search.encode(search.refit(best), wanted, next);
    if (!(error < best_error)) break;
    best_error = error;
    best = next;
  }
  Format::pack(best, out);
}

// x ~ scale * sub_scale * code - min_scale * sub_min, sub-scales and sub-minimums in [0, kHighest].
template <class Format, class Codes, int kHighest>
struct LinedBlock {
  static constexpr size_t kSub = Format::kSubValues;
  static constexpr size_t kSubs = 256 / kSub;

  const float* x;
  const float* w;

  static int nearest_multiple(float value, float inverse) {
    return int(round_small(clamped(value * inverse, 0.0f, float(kHighest))));
  }

  float encode(Line common, const Line* wanted, Codes256& out) const {
    out.scale = common.scale;
    out.min_scale = common.offset;
    const float scale_inverse = inverse_or_zero(common.scale);
    const float min_inverse = inverse_or_zero(common.offset);
    float total = 0.0f;
    for (size_t j = 0; j < kSubs; ++j) {
      const float* sub_x = x + j * kSub;
      const float* sub_w = w + j * kSub;
      const int scale = nearest_multiple(wanted[j].scale, scale_inverse);
      const int min = nearest_multiple(-wanted[j].offset, min_inverse);
      float best = INFINITY;
      int best_scale = scale, best_min = min;
      for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, kHighest); ++s) {
        for (int m = std::max(min - 1, 0); m <= std::min(min + 1, kHighest); ++m) {
          const float error =
              coding_error<Codes, kSub>(sub_x, sub_w, common.scale * float(s), -(common.offset * float(m)));
          if (error < best) {
            best = error;
            best_scale = s;
            best_min = m;
          }
        }
      }
      out.sub_scales[j] = int8_t(best_scale);
      out.sub_mins[j] = int8_t(best_min);
      write_codes<Codes, kSub>(sub_x, common.scale * float(best_scale), -(common.offset * float(best_min)),
                               out.codes + j * kSub);
      total += best;
    }
    return total;
  }

  // The least-squares common scales for the codes, sub-scales and sub-minimums of `block`.
  Line refit(const Codes256& block) const {
    float cc = 0.0f, cm = 0.0f, mm = 0.0f, xc = 0.0f, xm = 0.0f;
    for (size_t i = 0; i < 256; ++i) {
      const size_t j = i / kSub;
      const float code = float(block.sub_scales[j] * block.codes[i]);
      const float min = -float(block.sub_mins[j]);
      cc += w[i] * code * code;
      cm += w[i] * code * min;
      mm += w[i] * min * min;
      xc += w[i] * x[i] * code;
      xm += w[i] * x[i] * min;
    }
    const float determinant = cc * mm - cm * cm;
    if (!(determinant > 0.0f) || !std::isfinite(determinant)) {
      return {cc > 0.0f ? as_f16(xc / cc) : block.scale, block.min_scale};
    }
    return {as_f16((xc * mm - xm * cm) / determinant), as_f16((xm * cc - xc * cm) / determinant)};
  }
};

template <class Format, class Codes, int kHighest>
void encode_lined(const float* x, const float* importance, uint8_t* out) {
  float weights[256];
  weigh(x, importance, 256, weights);
  const LinedBlock<Format, Codes, kHighest> search = {x, weights};
  Line wanted[search.kSubs];
  float highest_scale = 0.0f, highest_min = 0.0f;
  for (size_t j = 0; j < search.kSubs; ++j) {
    wanted[j] = fit_line<Codes, search.kSub, OffsetSign::not_positive>(x + j * search.kSub,
                                                                       weights + j * search.kSub);
    highest_scale = std::max(highest_scale, wanted[j].scale);
    highest_min = std::max(highest_min, -wanted[j].offset);
  }
  const Line first = {as_f16(highest_scale / float(kHighest)), as_f16(highest_min / float(kHighest))};
  Codes256 best = {};
  float best_error = search.encode(first, wanted, best);
  for (int round = 0; round < kRounds; ++round) {
    Codes256 next = {};
    const float error = search.encode(search.refit(best), wanted, next);
    if (!(error < best_error)) break;
    best_error = error;
    best = next;
  }
  Format::pack(best, out);
}

}  // namespace

void encode_iq4_nl(const float* values, const float* importance, uint8_t* block) {
  float weights[32];
  weigh(values, importance, 32, weights);
  Codes32 out;
  out.scale = as_f16(fit_scale<Iq4Codes, 32>(values, weights));
  write_codes<Iq4Codes, 32>(values, out.scale, 0.0f, out.codes);
  Iq4Nl::pack(out, block);
}

void encode_iq4_xs(const float* values, const float* importance, uint8_t* block) {
  encode_scaled<Iq4Xs, Iq4Codes, -32>(values, importance, block);
}

void encode_q2_k(const float* values, const float* importance, uint8_t* block) {
  encode_lined<Q2_K, Q2Codes, 15>(values, importance, block);
}

void encode_q3_k(const float* values, const float* importance, uint8_t* block) {
  encode_scaled<Q3_K, Q3Codes, -32>(values, importance, block);
}

void encode_q4_k(const float* values, const float* importance, uint8_t* block) {
  encode_lined<Q4_K, Q4Codes, 63>(values, importance, block);
}

void encode_q5_k(const float* values, const float* importance, uint8_t* block) {
  encode_lined<Q5_K, Q5Codes, 63>(values, importance, block);
}

void encode_q6_k(const float* values, const float* importance, uint8_t* block) {
  encode_scaled<Q6_K, Q6Codes, -128>(values, importance, block);
}

}  // namespace quire::format
