// The formats with code books. Each sub-block is fitted freely first, under many scales; then scales become odd multiples of a
// common one, which is fitted to the outcome.
#include <algorithm>
#include <cmath>

#include "tensor/block_formats.h"
#include "tensor/book_search.h"
#include "tensor/quantize_blocks.h"
#include "tensor/quantize_search.h"

namespace quire::format {
namespace {

constexpr int kBookRounds = 2;  // of fitting the common scale again

// A block on its way into bytes: which entries were taken, and what they stand for.
struct BookChoice {
  BookCodes codes;
  float values[256];  // whole numbers, in units of scale * sub-scale
};

enum class Signs : uint8_t { any, even };

// Eight values under one entry of `Search`, or two, with a sign each. Where signs are even in number, a value that costs least goes to the
// wrong side.
template <class Search, Signs kSigns>
struct SignedGroups {
  static constexpr size_t kPart = Search::kValues;

  const Search& search;
  float magnitudes[256];  // of a value on the wrong side negative
  uint8_t signs[32];

  SignedGroups(const Search& of, const float* x, const float* w) : search(of) {
    for (size_t g = 0; g < 32; ++g) {
      uint32_t bits = 0;
      size_t least = 0;
      for (size_t i = 0; i < 8; ++i) {
        const size_t at = 8 * g + i;
        magnitudes[at] = std::fabs(x[at]);
        bits |= uint32_t(x[at] < 0.0f ? 1 : 0) << i;
        if (w[at] * magnitudes[at] < w[8 * g + least] * magnitudes[8 * g + least]) least = i;
      }
      if (kSigns == Signs::even && std::popcount(bits) % 2 == 1) {
        bits ^= 1u << least;
        magnitudes[8 * g + least] = -magnitudes[8 * g + least];
      }
      signs[g] = uint8_t(bits);
    }
  }

  // Takes entries for the values from `begin` on under a scale.
  void choose(const float*, const float* w, size_t begin, size_t count, float inverse,
              BookChoice& out) const {
    for (size_t at = begin; at < begin + count; at += kPart) {
      float wanted[kPart];
      for (size_t i = 0; i < kPart; ++i) wanted[i] = magnitudes[at + i] * inverse;
      const uint32_t entry = search.nearest(wanted, w + at);
      out.codes.entries[at / kPart] = uint16_t(entry);
      for (size_t i = 0; i < kPart; ++i) {
        const float value = search.values(entry)[i];
        out.values[at + i] = (signs[(at + i) / 8] >> ((at + i) % 8) & 1) != 0 ? -value : value;
      }
    }
    for (size_t g = begin / 8; g < (begin + count) / 8; ++g) out.codes.signs[g] = signs[g];
  }
};

// Eight values of -1, 0 and 1, all moved by an eighth to one side; so many values have the side in common.
template <class Search, size_t kTogether>
struct MovedGroups {
  static constexpr size_t kPart = 8;

  const Search& search;

  MovedGroups(const Search& of, const float*, const float*) : search(of) {}

  void choose(const float* x, const float* w, size_t begin, size_t count, float inverse,
              BookChoice& out) const {
    for (size_t first = begin; first < begin + count; first += kTogether) {
      float best = INFINITY;
      for (const bool less : {false, true}) {
        const float move = less ? -1.0f : 1.0f;
        uint32_t entries[kTogether / 8];
        float error = 0.0f;
        for (size_t g = 0; g < kTogether / 8; ++g) {
          const size_t at = first + 8 * g;
          float wanted[8];
          for (size_t i = 0; i < 8; ++i) wanted[i] = x[at + i] * inverse - move;
          entries[g] = search.nearest(wanted, w + at);
          for (size_t i = 0; i < 8; ++i) {
            const float off = wanted[i] - search.values(entries[g])[i];
            error += w[at + i] * off * off;
          }
        }
        if (!(error < best)) continue;
        best = error;
        for (size_t g = 0; g < kTogether / 8; ++g) {
          const size_t at = first + 8 * g;
          out.codes.entries[at / 8] = uint16_t(entries[g]);
          out.codes.signs[at / 8] = less ? 1 : 0;
          for (size_t i = 0; i < 8; ++i) out.values[at + i] = search.values(entries[g])[i] + move;
        }
      }
    }
  }
};

// Which scales are tried: those that bring the largest value to `first` times the highest code, and so on in steps.
constexpr int kScaleTries = 14;
struct ScaleRange {
  float highest, first, step;
};
constexpr ScaleRange kThreeLevels = {43.0f, 0.80f, 0.05f};
constexpr ScaleRange kEightLevels = {62.0f, 0.75f, 0.04f};
constexpr ScaleRange kOddLevels = {15.0f, 0.75f, 0.04f};
constexpr ScaleRange kTernaryLevels = {9.0f, 1.00f, 0.10f};

template <class Format, class Groups>
struct BookBlockSearch {
  static constexpr size_t kSub = Format::kSubValues, kSubs = 256 / kSub;

  const float* x;
  const float* w;
  const Groups& groups;
  int highest_sub;  // the largest s of 2 s + 1

  struct Sums {
    float xc = 0.0f, cc = 0.0f;
  };
  Sums sums(const BookChoice& choice, size_t sub) const {
    F32x4 xc = {}, cc = {};
    for (size_t i = sub * kSub; i < (sub + 1) * kSub; i += 4) {
      const F32x4 code = load4(choice.values + i), wc = load4(w + i) * code;
      xc += wc * load4(x + i);
      cc += wc * code;
    }
    return {sum4(xc), sum4(cc)};
  }

  // The best scale for a sub-block by itself.
  float fit(size_t sub, const ScaleRange& range) const {
    float peak = 0.0f;
    for (size_t i = 0; i < kSub; ++i) peak = std::max(peak, std::fabs(x[sub * kSub + i]));
    const float to_unit = inverse_or_zero(peak);
    if (to_unit == 0.0f) return 0.0f;
    BookChoice tried;
    float best = 0.0f, best_gain = 0.0f;
    for (int i = 0; i < kScaleTries; ++i) {
      const float target = range.highest * (range.first + float(i) * range.step);
      groups.choose(x, w, sub * kSub, kSub, target * to_unit, tried);
      const Sums s = sums(tried, sub);
      if (!(s.cc > 0.0f) || !(s.xc > 0.0f)) continue;
      const float gain = s.xc * s.xc / s.cc;
      if (!(gain > best_gain)) continue;
      best_gain = gain;
      best = s.xc / s.cc;
    }
    return best;
  }

  // The entries under a common scale, sub-scales near the wanted ones. Returns the error.
  float encode(float scale, const float* wanted, BookChoice& out) const {
    out.codes.scale = scale;
    const float unit = scale * Format::kShare, inverse = inverse_or_zero(unit);
    float total = 0.0f;
    for (size_t j = 0; j < kSubs; ++j) {
      const float s = clamped(0.5f * (wanted[j] * inverse - 1.0f), 0.0f, float(highest_sub));
      const int middle = int(round_small(s));
      BookChoice tried;
      float best = INFINITY;
      for (int sub = std::max(middle - 1, 0); sub <= std::min(middle + 1, highest_sub); ++sub) {
        const float own = unit * float(2 * sub + 1);
        groups.choose(x, w, j * kSub, kSub, inverse_or_zero(own), tried);
        float error = 0.0f;
        for (size_t i = j * kSub; i < (j + 1) * kSub; ++i) {
          const float off = x[i] - own * tried.values[i];
          error += w[i] * off * off;
        }
        if (!(error < best)) continue;
        best = error;
        out.codes.sub_scales[j] = uint8_t(sub);
        take(tried, j, out);
      }
      total += best;
    }
    return total;
  }

  static void take(const BookChoice& from, size_t sub, BookChoice& to) {
    const size_t begin = sub * kSub;
    std::copy_n(from.values + begin, kSub, to.values + begin);
    std::copy_n(from.codes.signs + begin / 8, kSub / 8, to.codes.signs + begin / 8);
    std::copy_n(from.codes.entries + begin / Groups::kPart, kSub / Groups::kPart,
                to.codes.entries + begin / Groups::kPart);
  }

  // The least-squares common scale for what was chosen.
  float refit(const BookChoice& choice) const {
    float xc = 0.0f, cc = 0.0f;
    for (size_t j = 0; j < kSubs; ++j) {
      const Sums s = sums(choice, j);
      const float sub = float(2 * choice.codes.sub_scales[j] + 1);
      xc += sub * s.xc;
      cc += sub * sub * s.cc;
    }
    return cc > 0.0f ? as_f16(xc / cc / Format::kShare) : 0.0f;
  }
};

template <class Format, class Groups, class Search>
void encode_book(const Search& search, const ScaleRange& range, int highest_sub, const float* x,
                 const float* importance, uint8_t* block) {
  float weights[256];
  weigh(x, importance, 256, weights);
  const Groups groups(search, x, weights);
  const BookBlockSearch<Format, Groups> fitted{x, weights, groups, highest_sub};
  float wanted[fitted.kSubs];
  float peak = 0.0f;
  for (size_t j = 0; j < fitted.kSubs; ++j) {
    wanted[j] = fitted.fit(j, range);
    peak = std::max(peak, wanted[j]);
  }
  BookChoice best = {};
  const float first = as_f16(peak / float(2 * highest_sub + 1) / Format::kShare);
  float best_error = fitted.encode(first, wanted, best);
  for (int round = 0; round < kBookRounds; ++round) {
    BookChoice next = {};
    const float error = fitted.encode(fitted.refit(best), wanted, next);
    if (!(error < best_error)) break;
    best_error = error;
    best = next;
  }
  Format::pack(best.codes, block);
}

using SearchIq2Xxs = BookSearch<uint64_t, 256, 3>;
using SearchIq2Xs = BookSearch<uint64_t, 512, 3>;
using SearchIq2S = BookSearch<uint64_t, 1024, 3>;
using SearchIq3Xxs = BookSearch<uint32_t, 256, 8>;
using SearchIq3S = BookSearch<uint32_t, 512, 8>;
using SearchIq1 = BookSearch<uint64_t, 2048, 3>;

constexpr std::array<int8_t, 3> kTwoBitMagnitudes = {8, 25, 43};

// Made when the first block is written.
const SearchIq1& search_iq1() {
  static const SearchIq1 search(kBookIq1, {-8, 0, 8}, -8);
  return search;
}

}  // namespace

void encode_iq2_xxs(const float* values, const float* importance, uint8_t* block) {
  static const SearchIq2Xxs search(kBookIq2Xxs, kTwoBitMagnitudes, 0);
  encode_book<Iq2Xxs, SignedGroups<SearchIq2Xxs, Signs::even>>(search, kThreeLevels, 15, values, importance,
                                                               block);
}

void encode_iq2_xs(const float* values, const float* importance, uint8_t* block) {
  static const SearchIq2Xs search(kBookIq2Xs, kTwoBitMagnitudes, 0);
  encode_book<Iq2Xs, SignedGroups<SearchIq2Xs, Signs::even>>(search, kThreeLevels, 15, values, importance,
                                                             block);
}

void encode_iq2_s(const float* values, const float* importance, uint8_t* block) {
  static const SearchIq2S search(kBookIq2S, kTwoBitMagnitudes, 0);
  encode_book<Iq2S, SignedGroups<SearchIq2S, Signs::any>>(search, kThreeLevels, 15, values, importance,
                                                          block);
}

void encode_iq3_xxs(const float* values, const float* importance, uint8_t* block) {
  static const SearchIq3Xxs search(kBookIq3Xxs, {4, 12, 20, 28, 36, 44, 52, 62}, 0);
  encode_book<Iq3Xxs, SignedGroups<SearchIq3Xxs, Signs::even>>(search, kEightLevels, 15, values, importance,
                                                               block);
}

void encode_iq3_s(const float* values, const float* importance, uint8_t* block) {
  static const SearchIq3S search(kBookIq3S, {1, 3, 5, 7, 9, 11, 13, 15}, 0);
  encode_book<Iq3S, SignedGroups<SearchIq3S, Signs::any>>(search, kOddLevels, 15, values, importance, block);
}

void encode_iq1_s(const float* values, const float* importance, uint8_t* block) {
  encode_book<Iq1S, MovedGroups<SearchIq1, 32>>(search_iq1(), kTernaryLevels, 7, values, importance, block);
}

void encode_iq1_m(const float* values, const float* importance, uint8_t* block) {
  encode_book<Iq1M, MovedGroups<SearchIq1, 8>>(search_iq1(), kTernaryLevels, 7, values, importance, block);
}

}  // namespace quire::format
