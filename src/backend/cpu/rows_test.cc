// What kernel sets do to rows between the products, compared with the scalar twin on every set present.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/nonlinearity.h"
#include "tensor/buffer.h"

namespace quire {
namespace {

std::vector<float> random_row(size_t count, float size) {
  std::mt19937 random(uint32_t(count) + 1);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> row(count);
  for (float& value : row) value = normal(random);
  return row;
}

std::vector<std::byte> quantized(const CpuKernels& kernels, ActivationForm form,
                                 const std::vector<float>& row) {
  Buffer bytes(activation_row_bytes(form, row.size()));
  kernels.quantize_activation[size_t(form)](row.data(), row.size(), bytes.data());
  const Q8Row view(bytes.data(), row.size(), group_values(form));
  const size_t spans = outlier_spans(row.size());
  const auto* end = reinterpret_cast<const std::byte*>(view.outlier_counts + spans);
  std::vector<std::byte> all(static_cast<const std::byte*>(bytes.data()), end);
  for (size_t span = 0; span < spans; ++span) {
    const auto outliers = std::as_bytes(std::span(view.outliers + span * most_outliers(group_values(form)),
                                                  size_t(view.outlier_counts[span])));
    all.insert(all.end(), outliers.begin(), outliers.end());
  }
  return all;
}

TEST(Rows, AreQuantizedToTheSameBytesByEverySet) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const CpuKernels& kernels : present_kernels()) {
    for (ActivationForm form : {ActivationForm::q8_64, ActivationForm::q8_128, ActivationForm::q8_256}) {
      for (size_t count : {32u, 64u, 96u, 480u, 2048u}) {
        std::vector<float> row = random_row(count, 3.0f);
        for (size_t i = 7; i < count; i += 90) row[i] *= 40.0f;
        EXPECT_EQ(quantized(kernels, form, row), quantized(scalar_kernels(), form, row)) << kernels.name;
        for (float odd :
             {0.0f, -0.0f, 1e-40f, 1e30f, infinity, -infinity, std::numeric_limits<float>::max()}) {
          row[count / 2] = odd;
          EXPECT_EQ(quantized(kernels, form, row), quantized(scalar_kernels(), form, row))
              << kernels.name << " " << odd;
        }
        row.assign(count, 1e-35f);
        EXPECT_EQ(quantized(kernels, form, row), quantized(scalar_kernels(), form, row)) << kernels.name;
      }
    }
  }
}

TEST(Rows, AreActivatedToTheSameBitsByEverySet) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const CpuKernels& kernels : present_kernels()) {
    for (Nonlinearity kind : {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::gelu_erf,
                              Nonlinearity::clamped_swiglu, Nonlinearity::limited_silu}) {
      for (size_t count : {1u, 15u, 16u, 100u, 2048u}) {
        std::vector<float> gate = random_row(count, 20.0f);
        gate[0] = infinity;
        gate[count / 2] = -infinity;
        gate[count - 1] = -200.0f;
        const std::vector<float> up = random_row(count, 5.0f);
        std::vector<float> expected(count), out(count);
        activate_row({.kind = kind}, gate.data(), up.data(), expected.data(), count);
        kernels.activate({.kind = kind}, gate.data(), up.data(), out.data(), count);
        for (size_t i = 0; i < count; ++i) {
          if (std::isnan(expected[i]) && std::isnan(out[i])) continue;
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected[i]))
              << kernels.name << " " << gate[i];
        }
        if (kind == Nonlinearity::clamped_swiglu || kind == Nonlinearity::limited_silu)
          continue;  // always have an `up`
        activate_row({.kind = kind}, gate.data(), nullptr, expected.data(), count);
        kernels.activate({.kind = kind}, gate.data(), nullptr, gate.data(), count);  // in place
        for (size_t i = 0; i < count; ++i) {
          if (std::isnan(expected[i]) && std::isnan(gate[i])) continue;
          ASSERT_EQ(std::bit_cast<uint32_t>(gate[i]), std::bit_cast<uint32_t>(expected[i])) << kernels.name;
        }
      }
    }
  }
}

TEST(Rows, BecomeTheSameHalvesByEverySet) {
  for (const CpuKernels& kernels : present_kernels()) {
    for (size_t count : {1u, 7u, 16u, 64u, 77u}) {
      std::vector<float> row = random_row(count, 3.0f);
      row[0] = 65520.0f;
      row[count / 2] = -3e-6f;
      row[count - 1] = 1.0f + 0x1p-11f;
      std::vector<uint16_t> expected(count + 1, 0xabcd), out(count + 1, 0xabcd);
      scalar_kernels().to_f16(row.data(), count, expected.data());
      kernels.to_f16(row.data(), count, out.data());
      EXPECT_EQ(out, expected) << kernels.name << " " << count;
    }
  }
}

TEST(Rows, AreActivatedAndQuantizedToTheSameBytesByAnyNumberOfThreads) {
  const size_t width = 2336;  // more than two threads' parts, the last one shorter
  std::vector<float> gate = random_row(width, 5.0f), up = random_row(width, 1.0f);
  for (size_t i = 5; i < width; i += 100) up[i] *= 50.0f;  // outliers in every part
  const auto activated = [&](uint32_t threads) {
    CpuBackend backend(present_kernels().back(), threads);
    std::vector<float> out(width);
    std::vector<std::byte> memory(activation_row_bytes(ActivationForm::bf16, width) +
                                  activation_row_bytes(ActivationForm::q8_64, width) +
                                  activation_row_bytes(ActivationForm::q8_256, width));
    Activation activation{.f32 = {out.data(), 1, width, width}, .forms = {}, .data = {}, .stride = {}};
    std::byte* at = memory.data();
    for (ActivationForm form : {ActivationForm::bf16, ActivationForm::q8_64, ActivationForm::q8_256}) {
      activation.forms |= form;
      activation.data[size_t(form)] = at;
      activation.stride[size_t(form)] = activation_row_bytes(form, width);
      at += activation.stride[size_t(form)];
    }
    backend.activate({.gate = {gate.data(), 1, width, width},
                      .up = {up.data(), 1, width, width},
                      .function = {},
                      .out = activation});
    return memory;
  };
  EXPECT_EQ(activated(4), activated(1));
}

}  // namespace
}  // namespace quire
