// The schemes that keep whole numbers in words of 32 bits: compressed-tensors, AWQ, GPTQ and MLX.
#include "model/hf_scheme_parts.h"

namespace quire {
namespace {

void keep(PackedMatrix& matrix, std::initializer_list<const SafetensorsTensor*> tensors) {
  for (const SafetensorsTensor* tensor : tensors)
    if (tensor != nullptr) matrix.stored.push_back(tensor->bytes);
}

// The columns of a group of a tensor of scales, [rows, groups] or [groups, rows].
uint64_t group_of(const SafetensorsTensor& scales, size_t axis, uint64_t cols) {
  HfModule::expect(scales, scales.shape.size() == 2, "is no matrix");
  const uint64_t groups = scales.shape[axis];
  HfModule::expect(scales, groups > 0 && groups <= cols && cols % groups == 0,
                   fmt::format("does not divide {} columns into groups", cols).c_str());
  return cols / groups;
}

// {packed [rows, cols / 8], scales [rows, groups], zeros [rows / 8, groups]}: fields of any width, moved up to start at zero.
class CompressedMatrix : public PackedMatrix {
 public:
  const SafetensorsTensor *packed = nullptr, *scale = nullptr, *zeros = nullptr;
  uint64_t bits = 4;

  void read(uint64_t row, PackedRow& out) const override {
    read_scales(row, out);
    out.codes.resize(cols);
    for (uint64_t i = 0; i < cols; ++i)
      out.codes[i] = float(field_at(*packed, row * packed->shape[1], i, bits)) - zero(row, i / group);
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    read_scales(row, out);
    float low = zero(row, 0), high = low;
    for (uint64_t g = 1; g < cols / group && zeros != nullptr; ++g) {
      low = std::min(low, zero(row, g));
      high = std::max(high, zero(row, g));
    }
    out.codes = {-high, float((1u << bits) - 1) - low};
  }

 private:
  void read_scales(uint64_t row, PackedRow& out) const {
    out.scales.resize(cols / group);
    floats_at(*scale, row * (cols / group), out.scales);
  }
  float zero(uint64_t row, uint64_t g) const {
    if (zeros == nullptr) return float(1u << (bits - 1));
    const uint64_t each = 32 / bits;  // rows of a word
    return float(word_at(*zeros, row / each * (cols / group) + g) >> (row % each * bits) &
                 ((1u << bits) - 1));
  }
};

// int8 as it is: {weight [rows, cols], scales [rows, groups]}.
class ByteMatrix : public PackedMatrix {
 public:
  const SafetensorsTensor *weight = nullptr, *scale = nullptr;

  void read(uint64_t row, PackedRow& out) const override {
    out.codes.resize(cols);
    for (uint64_t i = 0; i < cols; ++i) out.codes[i] = float(int8_t(weight->bytes[row * cols + i]));
    read_scales(row, out);
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    out.codes = {-128, 127};
    read_scales(row, out);
  }

 private:
  void read_scales(uint64_t row, PackedRow& out) const {
    out.scales.resize(cols / group);
    const bool is_one = scale->bytes.size() <= 4;
    floats_at(*scale, is_one ? 0 : row * (cols / group), out.scales);
  }
};

PackedPtr make_bytes(const HfModule& module) {
  const SafetensorsTensor* weight = module.find(".weight");
  if (weight == nullptr || weight->type != SafetensorsType::i8) return nullptr;
  HfModule::expect(*weight, weight->shape.size() == 2 && !weight->bytes.empty(), "is no matrix");
  auto matrix = std::make_unique<ByteMatrix>();
  matrix->weight = weight;
  matrix->scale = &module.get(".weight_scale");
  matrix->rows = weight->shape[0];
  matrix->cols = weight->shape[1];
  const std::vector<uint64_t>& shape = matrix->scale->shape;
  const bool is_one = shape.empty() || (shape.size() == 1 && shape[0] == 1);
  matrix->group = is_one ? matrix->cols : group_of(*matrix->scale, 1, matrix->cols);
  module.get(".weight_scale", is_one ? shape : std::vector{matrix->rows, matrix->cols / matrix->group},
             kHfFloats);
  if (module.find(".weight_zero_point") != nullptr)
    throw Error("the module {} has int8 weights with zero points, which are not supported",
                in_quotes(module.name));
  keep(*matrix, {weight, matrix->scale});
  return matrix;
}

uint64_t shape_value(const SafetensorsTensor& tensor, uint64_t index) {
  uint64_t value = 0;
  const uint64_t bytes = tensor.type == SafetensorsType::i64 ? 8 : 4;
  std::memcpy(&value, tensor.bytes.data() + index * bytes, bytes);
  return value;
}

}  // namespace

PackedPtr make_compressed(const HfModule& module) {
  const SafetensorsTensor* packed = module.find(".weight_packed");
  if (packed == nullptr) return make_bytes(module);
  if (packed->type != SafetensorsType::i32) return nullptr;
  HfModule::expect(*packed, packed->shape.size() == 2 && !packed->bytes.empty(), "is no matrix");
  const SafetensorsTensor& shape =
      module.get(".weight_shape", {2}, {SafetensorsType::i64, SafetensorsType::i32});
  auto matrix = std::make_unique<CompressedMatrix>();
  matrix->packed = packed;
  matrix->rows = packed->shape[0];
  matrix->cols = shape_value(shape, 1);
  HfModule::expect(shape, shape_value(shape, 0) == matrix->rows, "does not say the rows of its matrix");
  HfModule::expect(shape, matrix->cols > 0 && matrix->cols / 32 <= packed->shape[1],
                   "does not say the columns of its matrix");
  for (const uint64_t bits : {2, 4, 8})
    if ((matrix->cols * bits + 31) / 32 == packed->shape[1]) matrix->bits = bits;
  HfModule::expect(*packed, (matrix->cols * matrix->bits + 31) / 32 == packed->shape[1],
                   fmt::format("is not of {} columns of 2, 4 or 8 bits", matrix->cols).c_str());
  matrix->scale = &module.get(".weight_scale");
  matrix->group = group_of(*matrix->scale, 1, matrix->cols);
  const uint64_t groups = matrix->cols / matrix->group;
  module.get(".weight_scale", {matrix->rows, groups}, kHfFloats);
  if (module.find(".weight_zero_point") != nullptr) {
    const uint64_t each = 32 / matrix->bits;
    matrix->zeros =
        &module.get(".weight_zero_point", {(matrix->rows + each - 1) / each, groups}, {SafetensorsType::i32});
  }
  if (module.find(".weight_g_idx") != nullptr)
    throw Error("the module {} has columns in the order of \"weight_g_idx\", which is not supported for {}",
                in_quotes(module.name), module.quantization.method);
  keep(*matrix, {packed, matrix->scale, matrix->zeros});
  return matrix;
}

namespace {

// {words [cols, rows / 8], zeros [groups, rows / 8], scales [groups, rows]}: eight rows in a word, in an order of their own.
class AwqMatrix : public PackedMatrix {
 public:
  const SafetensorsTensor *weight = nullptr, *zeros = nullptr, *scales = nullptr;

  void read(uint64_t row, PackedRow& out) const override {
    out.codes.resize(cols);
    out.scales.resize(cols / group);
    for (uint64_t g = 0; g < cols / group; ++g) {
      out.scales[g] = float_at(*scales, g * rows + row);
      const uint32_t zero = half_at(*zeros, g, row);
      for (uint64_t i = g * group; i < (g + 1) * group; ++i)
        out.codes[i] = float(int(half_at(*weight, i, row)) - int(zero));
    }
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    uint32_t low = 15, high = 0;
    out.scales.resize(cols / group);
    for (uint64_t g = 0; g < cols / group; ++g) {
      out.scales[g] = float_at(*scales, g * rows + row);
      low = std::min(low, half_at(*zeros, g, row));
      high = std::max(high, half_at(*zeros, g, row));
    }
    out.codes = {-float(high), 15 - float(low)};
  }

 private:
  uint32_t half_at(const SafetensorsTensor& tensor, uint64_t line, uint64_t row) const {
    constexpr uint32_t kPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return word_at(tensor, line * (rows / 8) + row / 8) >> (4 * kPlace[row % 8]) & 15;
  }
};

}  // namespace

PackedPtr make_awq(const HfModule& module) {
  const SafetensorsTensor* weight = module.find(".qweight");
  if (weight == nullptr) return nullptr;
  HfModule::expect(
      *weight, weight->shape.size() == 2 && weight->type == SafetensorsType::i32 && !weight->bytes.empty(),
      "is no matrix of words");
  auto matrix = std::make_unique<AwqMatrix>();
  matrix->weight = weight;
  matrix->cols = weight->shape[0];
  matrix->rows = weight->shape[1] * 8;
  matrix->scales = &module.get(".scales");
  matrix->group = group_of(*matrix->scales, 0, matrix->cols);
  const uint64_t groups = matrix->cols / matrix->group;
  module.get(".scales", {groups, matrix->rows}, kHfFloats);
  matrix->zeros = &module.get(".qzeros", {groups, weight->shape[1]}, {SafetensorsType::i32});
  keep(*matrix, {weight, matrix->zeros, matrix->scales});
  return matrix;
}

namespace {

// {words [cols / 8, rows], zeros [groups, rows / 8], scales [groups, rows], the group of each column}
class GptqMatrix : public PackedMatrix {
 public:
  const SafetensorsTensor *weight = nullptr, *zeros = nullptr, *scales = nullptr, *order = nullptr;
  uint64_t bits = 4, groups = 0, file_group = 0;
  uint32_t less = 0;  // what zeros are stored less by

  void read(uint64_t row, PackedRow& out) const override {
    const uint64_t each = 32 / bits;
    out.codes.resize(cols);
    out.scales.resize(cols / group);
    for (uint64_t i = 0; i < cols; ++i) {
      const uint64_t g = order == nullptr ? i / file_group : word_at(*order, i);
      const uint32_t code = word_at(*weight, i / each * rows + row) >> (i % each * bits) & mask();
      out.codes[i] = float(int(code) - int(zero(g, row)));
      if (i % group == 0) out.scales[i / group] = float_at(*scales, g * rows + row);
    }
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    uint32_t low = mask(), high = 0;
    out.scales.resize(groups);
    for (uint64_t g = 0; g < groups; ++g) {
      out.scales[g] = float_at(*scales, g * rows + row);
      low = std::min(low, zero(g, row));
      high = std::max(high, zero(g, row));
    }
    out.codes = {-float(high), float(mask()) - float(low)};
  }

 private:
  uint32_t mask() const { return (1u << bits) - 1; }
  uint32_t zero(uint64_t g, uint64_t row) const {
    return (field_at(*zeros, g * zeros->shape[1], row, bits) + less) & mask();
  }
};

// Whether columns stand in the order of their groups; each has one.
bool is_in_order(const SafetensorsTensor& order, uint64_t groups, uint64_t group) {
  bool in_order = true;
  for (uint64_t i = 0; i < order.shape[0]; ++i) {
    const uint32_t g = word_at(order, i);
    if (g >= groups)
      throw Error("tensor {} says group {} of column {}, and there are {}", in_quotes(order.name), int32_t(g),
                  i, groups);
    in_order = in_order && g == i / group;
  }
  return in_order;
}

}  // namespace

PackedPtr make_gptq(const HfModule& module) {
  const SafetensorsTensor* weight = module.find(".qweight");
  if (weight == nullptr) return nullptr;
  HfModule::expect(
      *weight, weight->shape.size() == 2 && weight->type == SafetensorsType::i32 && !weight->bytes.empty(),
      "is no matrix of words");
  auto matrix = std::make_unique<GptqMatrix>();
  matrix->bits = module.quantization.bits;
  const uint64_t each = 32 / matrix->bits;
  matrix->weight = weight;
  HfModule::expect(*weight, weight->shape[0] < (uint64_t(1) << 32), "has too many columns");
  matrix->cols = weight->shape[0] * each;
  matrix->rows = weight->shape[1];
  matrix->less = module.quantization.zeros_less_one ? 1 : 0;
  matrix->scales = &module.get(".scales");
  HfModule::expect(*matrix->scales, matrix->scales->shape.size() == 2 && matrix->scales->shape[0] > 0,
                   "is no matrix");
  matrix->groups = matrix->scales->shape[0];
  module.get(".scales", {matrix->groups, matrix->rows}, kHfFloats);
  matrix->zeros =
      &module.get(".qzeros", {matrix->groups, (matrix->rows + each - 1) / each}, {SafetensorsType::i32});
  const uint64_t said = module.quantization.group;
  matrix->file_group = matrix->group = said == 0 || said > matrix->cols ? matrix->cols : said;
  const uint64_t groups = (matrix->cols + matrix->group - 1) / matrix->group;
  HfModule::expect(*matrix->scales, groups == matrix->groups,
                   fmt::format("is not of {} groups of {} columns", groups, matrix->group).c_str());
  if (module.find(".g_idx") != nullptr) {
    const SafetensorsTensor& order = module.get(".g_idx", {matrix->cols}, {SafetensorsType::i32});
    if (!is_in_order(order, matrix->groups, matrix->group)) matrix->order = &order;
  }
  if (matrix->order != nullptr || matrix->cols % matrix->group != 0) matrix->group = 1;
  keep(*matrix, {weight, matrix->zeros, matrix->scales, matrix->order});
  return matrix;
}

namespace {

// {words [rows, cols / 8], scales and offsets [rows, groups]}
class MlxMatrix : public PackedMatrix {
 public:
  const SafetensorsTensor *weight = nullptr, *scales = nullptr, *biases = nullptr;
  uint64_t bits = 4;

  void read(uint64_t row, PackedRow& out) const override {
    out.codes.resize(cols);
    for (uint64_t i = 0; i < cols; ++i)
      out.codes[i] = float(field_at(*weight, row * weight->shape[1], i, bits));
    read_scales(row, out);
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    out.codes = {0, float((1u << bits) - 1)};
    read_scales(row, out);
  }

 private:
  void read_scales(uint64_t row, PackedRow& out) const {
    out.scales.resize(cols / group);
    out.offsets.resize(cols / group);
    floats_at(*scales, row * (cols / group), out.scales);
    floats_at(*biases, row * (cols / group), out.offsets);
  }
};

}  // namespace

PackedPtr make_mlx(const HfModule& module) {
  const SafetensorsTensor* weight = module.find(".weight");
  if (weight == nullptr || weight->type != SafetensorsType::i32) return nullptr;
  HfModule::expect(*weight, weight->shape.size() == 2 && !weight->bytes.empty(), "is no matrix of words");
  auto matrix = std::make_unique<MlxMatrix>();
  matrix->weight = weight;
  matrix->rows = weight->shape[0];
  matrix->scales = &module.get(".scales");
  HfModule::expect(*matrix->scales,
                   matrix->scales->shape.size() == 2 && matrix->scales->shape[1] > 0 &&
                       matrix->scales->shape[1] <= weight->shape[1] * 16,
                   "does not fit its weight");
  const auto own = module.quantization.groups.find(module.name);
  matrix->group = own == module.quantization.groups.end() ? module.quantization.group : own->second;
  matrix->cols = matrix->scales->shape[1] * matrix->group;
  matrix->bits = weight->shape[1] * 32 / matrix->cols;
  HfModule::expect(*weight, are_fields(matrix->bits) && matrix->cols * matrix->bits == weight->shape[1] * 32,
                   fmt::format("is not of {} columns of 2, 4 or 8 bits", matrix->cols).c_str());
  module.get(".scales", {matrix->rows, matrix->scales->shape[1]}, kHfFloats);
  matrix->biases = &module.get(".biases", matrix->scales->shape, kHfFloats);
  keep(*matrix, {weight, matrix->scales, matrix->biases});
  return matrix;
}

}  // namespace quire
