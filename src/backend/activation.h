#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor_view.h"

namespace quire {

// The forms an activation row can take as the input of a matrix product. The quantized ones are int8 values
// with a scale for so many values, and sums for formats with a minimum.
enum class ActivationForm : uint8_t { f32, bf16, q8_64, q8_128, q8_256 };
inline constexpr size_t kActivationFormCount = 5;
inline constexpr size_t kFirstRoundedForm = size_t(ActivationForm::bf16);
inline constexpr size_t kFirstQuantizedForm = size_t(ActivationForm::q8_64);

// Which of them are wanted: those of all the matrices that will read the rows.
struct FormSet {
  uint8_t bits = 0;
  FormSet& operator|=(ActivationForm form) {
    bits = uint8_t(bits | 1u << unsigned(form));
    return *this;
  }
  bool has(ActivationForm form) const { return (bits >> unsigned(form)) & 1u; }
};

// Rows of activations that an operation wrote for the next product: always f32, and the rounded forms of
// `forms`. The memory belongs to the caller (Backend::allocate); row t of a form is at data[form] + t *
// stride[form].
struct Activation {
  Rows f32;
  FormSet forms;
  std::byte* data[kActivationFormCount] = {};
  size_t stride[kActivationFormCount] = {};

  Activation first(size_t rows) const {
    Activation part = *this;
    part.f32 = f32.first(rows);
    return part;
  }
};

}  // namespace quire
