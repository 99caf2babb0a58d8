#pragma once

#include <cstddef>
#include <cstdint>

// One block of values to its bytes, for each block format; what quantize_row is made of.
// `importance`: how much an error of each value matters, or null: nothing is known.
// REQUIRES: the values are finite and, but for mxfp4, at most 2^28 in magnitude; importance is positive and about 1.

namespace quire::format {

// By the formula that defines the usual result; with importance by a search, but for q8_0, which has bits enough.
void encode_q4_0(const float* values, const float* importance, uint8_t* block);
void encode_q5_0(const float* values, const float* importance, uint8_t* block);
void encode_q8_0(const float* values, const float* importance, uint8_t* block);

// By a search for the least squared error.
void encode_q4_1(const float* values, const float* importance, uint8_t* block);
void encode_q5_1(const float* values, const float* importance, uint8_t* block);
void encode_mxfp4(const float* values, const float* importance, uint8_t* block);

// Of one or two bits, and NVFP4. What matters is not asked.
void encode_tq1_0(const float* values, const float* importance, uint8_t* block);
void encode_tq2_0(const float* values, const float* importance, uint8_t* block);
void encode_q1_0(const float* values, const float* importance, uint8_t* block);
void encode_q2_0(const float* values, const float* importance, uint8_t* block);
void encode_nvfp4(const float* values, const float* importance, uint8_t* block);

// By a search for the least squared error, in which large values weigh more: they matter more to the
// products.
void encode_iq4_nl(const float* values, const float* importance, uint8_t* block);
void encode_iq4_xs(const float* values, const float* importance, uint8_t* block);
void encode_q2_k(const float* values, const float* importance, uint8_t* block);
void encode_q3_k(const float* values, const float* importance, uint8_t* block);
void encode_q4_k(const float* values, const float* importance, uint8_t* block);
void encode_q5_k(const float* values, const float* importance, uint8_t* block);
void encode_q6_k(const float* values, const float* importance, uint8_t* block);

// With code books: the best entries that are found near the values, under the scales that then are the best.
void encode_iq2_xxs(const float* values, const float* importance, uint8_t* block);
void encode_iq2_xs(const float* values, const float* importance, uint8_t* block);
void encode_iq2_s(const float* values, const float* importance, uint8_t* block);
void encode_iq3_xxs(const float* values, const float* importance, uint8_t* block);
void encode_iq3_s(const float* values, const float* importance, uint8_t* block);
void encode_iq1_s(const float* values, const float* importance, uint8_t* block);
void encode_iq1_m(const float* values, const float* importance, uint8_t* block);

}  // namespace quire::format
