#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "model/hf_tensors.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

uint64_t file_row(const HfTensor& tensor, uint64_t row) {
  if (tensor.tiles.reorders() && !tensor.tiles.columns) return tensor.tiles.in_file(row);
  switch (tensor.rows) {
    case HfRows::plain:
    case HfRows::first_half:
      return row;
    case HfRows::second_half:
      return tensor.file_rows / 2 + row;
    case HfRows::even:
      return 2 * row;
    case HfRows::odd:
      return 2 * row + 1;
    case HfRows::sections:
      return tensor.sections.in_file(row);
    case HfRows::pairs:
      break;
  }
  const uint64_t head_rows = tensor.file_rows / tensor.heads;
  const uint64_t head = row / head_rows;
  const uint64_t in_head = row % head_rows;
  return head * head_rows + (in_head % 2) * (head_rows / 2) + in_head / 2;
}

void to_f32(SafetensorsType type, const std::byte* in, std::span<float> out) {
  switch (type) {
    case SafetensorsType::f32:
      return dequantize_row(DType::f32, in, out);
    case SafetensorsType::f16:
      return dequantize_row(DType::f16, in, out);
    case SafetensorsType::bf16:
      return dequantize_row(DType::bf16, in, out);
    case SafetensorsType::f8_e4m3:
      return dequantize_row(DType::f8_e4m3, in, out);
    case SafetensorsType::f8_e5m2:  // the upper half of a half
      for (size_t i = 0; i < out.size(); ++i) out[i] = f16_to_f32(uint16_t(uint16_t(in[i]) << 8));
      return;
    default:
      CHECK(false);
  }
}

// The scales of FP8 weights: one for all, one per row, or one per block.
class Scales {
 public:
  Scales(const HfTensor& tensor, const HfPart& part, const HfConfig& config) : experts_(tensor.experts) {
    if (!part.scale || tensor.entry.dtype == DType::mxfp4) return;
    const uint64_t block_rows = config.fp8_block_rows;
    const uint64_t block_cols = config.fp8_block_cols;
    read(*part.scale);
    const uint64_t each = values_.size() / experts_;
    const auto blocks = [](uint64_t size, uint64_t block) {
      return block == 0 ? 0 : (size + block - 1) / block;
    };
    if (values_.size() % experts_ == 0 && each == 1) {
      rows_ = tensor.file_rows;
      cols_ = tensor.cols;
    } else if (values_.size() % experts_ == 0 && each == tensor.file_rows) {
      rows_ = 1;
      cols_ = tensor.cols;
    } else if (values_.size() ==
               experts_ * blocks(tensor.file_rows, block_rows) * blocks(tensor.cols, block_cols)) {
      rows_ = block_rows;
      cols_ = block_cols;
    } else {
      throw Error("tensor {} of shape [{}] does not fit the FP8 tensor {} of shape [{}]",
                  in_quotes(part.scale->name), fmt::join(part.scale->shape, ", "), in_quotes(part.data->name),
                  fmt::join(part.data->shape, ", "));
    }
    across_ = blocks(tensor.cols, cols_);
    each_ = each;
  }

  void apply(uint64_t expert, uint64_t row, std::span<float> values) const {
    if (values_.empty()) return;
    const float* scales = values_.data() + expert * each_ + row / rows_ * across_;
    for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / cols_];
  }

 private:
  void read(const SafetensorsTensor& scale) {
    uint64_t count = 1;
    for (const uint64_t size : scale.shape) count *= size;
    if (scale.type == SafetensorsType::f8_e8m0 && count > 0) return read_powers(scale, count);
    const bool readable = scale.type == SafetensorsType::f32 || scale.type == SafetensorsType::f16 ||
                          scale.type == SafetensorsType::bf16;
    if (!readable || count == 0)
      throw Error("tensor {} is of type {}, which is not supported for scales", in_quotes(scale.name),
                  scale.type_name);
    values_.resize(count);
    to_f32(scale.type, scale.bytes.data(), values_);
  }

  void read_powers(const SafetensorsTensor& scale, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const int exponent = int(uint8_t(scale.bytes[i]));
      if (exponent == 255) throw Error("tensor {} has a scale that is no number", in_quotes(scale.name));
      values_.push_back(std::ldexp(1.0f, exponent - 127));
    }
  }

  std::vector<float> values_;
  uint64_t experts_;
  uint64_t each_ = 0;    // values per expert
  uint64_t rows_ = 1;    // how many rows share a scale
  uint64_t cols_ = 1;    // how many columns do
  uint64_t across_ = 1;  // scales beside each other
};

// Makes the rows of one part, one expert after another.
class RowMaker {
 public:
  RowMaker(const HfTensor& tensor, const HfPart& part, const HfConfig& config, PackedLoss& loss)
      : tensor_(tensor),
        loss_(loss),
        in_(part.data->bytes.data()),
        exponents_(part.scale ? part.scale->bytes.data() : nullptr),
        type_(part.data->type),
        value_bytes_(tensor.entry.dtype == DType::mxfp4
                         ? 0
                         : part.data->bytes.size() / (tensor.experts * tensor.file_rows * tensor.cols)),
        scales_(tensor, part, config),
        rows_(tensor.result_rows()) {}

  // Returns where it stopped.
  std::byte* make(std::byte* out) const {
    for (uint64_t expert = 0; expert < tensor_.experts; ++expert) {
      if (tensor_.transposed) {
        out = make_transposed(expert, out);
        continue;
      }
      for (uint64_t row = 0; row < rows_; ++row) out = make_tiled(expert, file_row(tensor_, row), out);
    }
    return out;
  }

 private:
  std::byte* make_tiled(uint64_t expert, uint64_t row, std::byte* out) const {
    const HfTiles& tiles = tensor_.tiles;
    if (!tiles.reorders() || !tiles.columns) return make_row(expert, row, out);
    const uint64_t bytes = traits(tensor_.entry.dtype).block_bytes;
    std::vector<std::byte> as_in_file(tensor_.cols * bytes);
    make_row(expert, row, as_in_file.data());
    for (uint64_t col = 0; col < tensor_.cols; col += tiles.size)
      std::memcpy(out + col * bytes, as_in_file.data() + tiles.in_file(col) * bytes, tiles.size * bytes);
    return out + as_in_file.size();
  }

  std::byte* make_row(uint64_t expert, uint64_t row, std::byte* out) const {
    const uint64_t place = expert * tensor_.file_rows + row;
    if (tensor_.entry.dtype == DType::mxfp4) return repack(place, out);
    const std::byte* in = in_ + place * tensor_.cols * value_bytes_;
    if (is_copy()) {
      std::memcpy(out, in, tensor_.cols * value_bytes_);
      return out + tensor_.cols * value_bytes_;
    }
    if (type_ == SafetensorsType::i64) return make_numbers(in, out);
    if (is_rounded()) return make_rounded(row, in, out);
    if (tensor_.entry.dtype == DType::bf16) return make_short(expert, row, in, out);
    const std::span<float> values(reinterpret_cast<float*>(out), tensor_.cols);
    to_f32(type_, in, values);
    scales_.apply(expert, row, values);
    for (float& value : values) value = value * factor_of(row) + tensor_.added;
    if (tensor_.negative_exponential) {
      for (float& value : values) value = -std::exp(value);
    }
    return out + values.size_bytes();
  }

  // FP8 whose numbers bf16 has.
  std::byte* make_short(uint64_t expert, uint64_t row, const std::byte* in, std::byte* out) const {
    std::vector<float> values(tensor_.cols);
    to_f32(type_, in, values);
    scales_.apply(expert, row, values);
    quantize_row(DType::bf16, values, out);
    return out + row_bytes(DType::bf16, tensor_.cols);
  }

  // Whole numbers in half the bytes: what does not fit becomes one that no table can have.
  std::byte* make_numbers(const std::byte* in, std::byte* out) const {
    for (uint64_t col = 0; col < tensor_.cols; ++col, in += sizeof(int64_t), out += sizeof(int32_t)) {
      int64_t wide = 0;
      std::memcpy(&wide, in, sizeof(wide));
      const int32_t number = wide >= 0 && wide <= INT32_MAX ? int32_t(wide) : -1;
      std::memcpy(out, &number, sizeof(number));
    }
    return out;
  }

  float factor_of(uint64_t row) const {
    for (const HfFactor& one : tensor_.factors) {
      if (one.rows == 0 || row < one.rows) return one.factor;
      row -= one.rows;
    }
    return 1;
  }

  // Rows that are multiplied keep their type.
  bool is_rounded() const { return !tensor_.factors.empty() && tensor_.entry.dtype != DType::f32; }
  std::byte* make_rounded(uint64_t row, const std::byte* in, std::byte* out) const {
    std::vector<float> values(tensor_.cols), kept(tensor_.cols);
    to_f32(type_, in, values);
    for (float& value : values) value *= factor_of(row);
    const DType dtype = tensor_.entry.dtype;
    quantize_row(dtype, values, out);
    dequantize_row(dtype, out, kept);
    for (size_t i = 0; i < values.size(); ++i) {
      loss_.values += double(values[i]) * double(values[i]);
      loss_.errors += double(kept[i] - values[i]) * double(kept[i] - values[i]);
    }
    return out + row_bytes(dtype, tensor_.cols);
  }

  bool is_copy() const {
    return tensor_.factors.empty() && tensor_.added == 0 && !tensor_.negative_exponential &&
           value_bytes_ == traits(tensor_.entry.dtype).block_bytes;
  }

  // In the folder, neighbours share a byte; in GGUF, values 16 apart. The scale comes first.
  std::byte* repack(uint64_t row, std::byte* out) const {
    const uint64_t blocks = tensor_.cols / 32;
    for (uint64_t block = row * blocks; block < (row + 1) * blocks; ++block) {
      const std::byte* in = in_ + block * 16;
      const auto value = [&](int i) { return (uint8_t(in[i / 2]) >> (i % 2 * 4)) & 15; };
      *out++ = exponents_[block];
      for (int i = 0; i < 16; ++i) *out++ = std::byte(value(i) | value(i + 16) << 4);
    }
    return out;
  }

  // In tiles, so that what a cache line brings is used.
  std::byte* make_transposed(uint64_t expert, std::byte* out) const {
    constexpr uint64_t kTile = 32;
    const std::byte* in = in_ + expert * tensor_.file_rows * tensor_.cols * value_bytes_;
    const bool widen = !is_copy();
    const uint64_t out_bytes = traits(tensor_.entry.dtype).block_bytes;
    for (uint64_t begin = 0; begin < rows_; begin += kTile) {
      const uint64_t end = std::min(begin + kTile, rows_);
      for (uint64_t col = 0; col < tensor_.cols; ++col) {
        for (uint64_t row = begin; row < end; ++row) {
          const std::byte* from = in + (col * tensor_.file_rows + file_row(tensor_, row)) * value_bytes_;
          std::byte* to = out + (row * tensor_.cols + col) * out_bytes;
          if (widen)
            to_f32(type_, from, {reinterpret_cast<float*>(to), 1});
          else
            std::memcpy(to, from, out_bytes);
        }
      }
    }
    return out + rows_ * tensor_.cols * out_bytes;
  }

  const HfTensor& tensor_;
  PackedLoss& loss_;  // of rows that are multiplied
  const std::byte* in_;
  const std::byte* exponents_;
  SafetensorsType type_;
  uint64_t value_bytes_;
  Scales scales_;
  uint64_t rows_;  // of the result, per expert
};

// Nothing to change, and aligned as its values should be: a safetensors file promises no alignment.
bool is_view(const HfTensor& tensor) {
  if (tensor.parts.size() != 1 || tensor.parts[0].packed != nullptr) return false;
  const std::span<const std::byte> bytes = tensor.parts[0].data->bytes;
  return reinterpret_cast<uintptr_t>(bytes.data()) % traits(tensor.entry.dtype).block_bytes == 0 &&
         tensor.rows == HfRows::plain && !tensor.transposed && tensor.factors.empty() && tensor.added == 0 &&
         !tensor.negative_exponential && !tensor.tiles.reorders() && tensor.entry.dtype != DType::mxfp4 &&
         tensor.entry.bytes == bytes.size();
}

// Rows [begin, end) of one part.
PackedLoss write_packed_rows(const HfTensor& tensor, const PackedMatrix& matrix, uint64_t begin, uint64_t end,
                             std::byte* out) {
  PackedLoss loss;
  const DType dtype = tensor.entry.dtype;
  const uint64_t bytes = row_bytes(dtype, tensor.cols);
  const HfTiles& tiles = tensor.tiles;
  std::vector<std::byte> as_in_file(bytes);
  for (uint64_t row = begin; row < end; ++row, out += bytes) {
    const bool moves = tiles.reorders() && tiles.columns;
    write_packed_row(matrix, file_row(tensor, row), dtype, moves ? as_in_file.data() : out, loss);
    const uint64_t each = traits(dtype).block_bytes;  // moved types have one value in a block
    for (uint64_t col = 0; moves && col < tensor.cols; col += tiles.size)
      std::memcpy(out + col * each, as_in_file.data() + tiles.in_file(col) * each, tiles.size * each);
  }
  return loss;
}

// With all CPUs: schemes pack eight rows into a word, or look numbers up.
TensorData load_packed(const HfTensor& tensor, PackedLoss& loss) {
  constexpr uint64_t kRowsAtOnce = 128;  // their words share cache lines
  auto buffer = std::make_shared<Buffer>(tensor.entry.bytes);
  const uint64_t rows = tensor.result_rows();
  const uint64_t bytes = row_bytes(tensor.entry.dtype, tensor.cols);
  std::mutex mutex;
  ThreadPool pool(usable_cpus());
  pool.parallel_for(rows * tensor.parts.size(), kRowsAtOnce, [&](size_t begin, size_t end) {
    for (uint64_t at = begin; at < end;) {
      const uint64_t part = at / rows, first = at % rows, count = std::min<uint64_t>(rows - first, end - at);
      const PackedLoss own = write_packed_rows(tensor, *tensor.parts[part].packed, first, first + count,
                                               buffer->data() + at * bytes);
      const std::lock_guard lock(mutex);
      loss.values += own.values;
      loss.errors += own.errors;
      at += count;
    }
  });
  return {buffer->bytes(), buffer};
}

// Each of the stacked matrices the other way round.
TensorData turn_heads(const HfTensor& tensor, const TensorData& plain) {
  auto buffer = std::make_shared<Buffer>(tensor.entry.bytes);
  const uint64_t bytes = traits(tensor.entry.dtype).block_bytes;  // such types have one value in a block
  const uint64_t rows = tensor.entry.shape[2], cols = tensor.entry.shape[1];  // of what is turned
  CHECK(plain.bytes.size() == tensor.head_stack * rows * cols * bytes);
  for (uint64_t head = 0; head < tensor.head_stack; ++head) {
    const uint64_t begin = head * rows * cols;
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t col = 0; col < cols; ++col)
        std::memcpy(buffer->data() + (begin + col * rows + row) * bytes,
                    plain.bytes.data() + (begin + row * cols + col) * bytes, bytes);
    }
  }
  return {buffer->bytes(), buffer};
}

TensorData load_plain(const HfTensor& tensor, const HfConfig& config, PackedLoss& loss) {
  if (!tensor.parts.empty() && tensor.parts.front().packed != nullptr) return load_packed(tensor, loss);
  auto buffer = std::make_shared<Buffer>(tensor.entry.bytes);
  if (tensor.parts.empty()) {
    std::memcpy(buffer->data(), tensor.computed.data(), tensor.entry.bytes);
  } else {
    std::byte* out = buffer->data();
    for (const HfPart& part : tensor.parts) out = RowMaker(tensor, part, config, loss).make(out);
    CHECK(out == buffer->data() + tensor.entry.bytes);
  }
  return {buffer->bytes(), buffer};
}

}  // namespace

TensorData load_hf_tensor(const HfTensor& tensor, const HfConfig& config, PackedLoss& loss) {
  if (is_view(tensor)) return {tensor.parts[0].data->bytes, nullptr};
  const TensorData data = load_plain(tensor, config, loss);
  return tensor.heads_turned ? turn_heads(tensor, data) : data;
}

}  // namespace quire
