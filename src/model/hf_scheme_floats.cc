// The schemes whose codes stand for floats: NVFP4, MXFP4 and what bitsandbytes writes.
#include <cmath>
#include <optional>

#include "base/json.h"
#include "model/hf_scheme_parts.h"
#include "tensor/block_formats.h"

namespace quire {
namespace {

// {two neighbours in a byte, the first in its low half [rows, cols / 2], scales [rows, groups]}: codes are twice the float.
class Float4Matrix : public PackedMatrix {
 public:
  const SafetensorsTensor *packed = nullptr, *scale = nullptr;
  float half_global = 0.5f;    // half of what all scales are multiplied with
  bool has_exponents = false;  // in place of scales

  void read(uint64_t row, PackedRow& out) const override {
    out.codes.resize(cols);
    for (uint64_t i = 0; i < cols; ++i) {
      const uint32_t byte = uint32_t(packed->bytes[row * (cols / 2) + i / 2]);
      out.codes[i] = float(format::Mxfp4::code(int(byte >> (i % 2 * 4) & 15)));
    }
    read_scales(row, out);
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    out.codes = {-12, 12};
    read_scales(row, out);
  }
  std::span<const std::byte> short_scales(uint64_t row) const override {
    return scale->bytes.subspan(row * (cols / group), cols / group);
  }

 private:
  void read_scales(uint64_t row, PackedRow& out) const {
    const uint64_t groups = cols / group;
    out.scales.resize(groups);
    for (uint64_t g = 0; g < groups; ++g) {
      const uint64_t at = row * groups + g;
      out.scales[g] = has_exponents ? format::Mxfp4::half_power(uint8_t(scale->bytes[at]))
                                    : half_global * float_at(*scale, at);
    }
  }
};

// The one number that scales of NVFP4 share.
float global_scale(const HfModule& module, std::vector<std::span<const std::byte>>& stored) {
  const bool divides = module.find(".weight_scale_2") == nullptr;
  const SafetensorsTensor& tensor = module.get(divides ? ".weight_global_scale" : ".weight_scale_2");
  HfModule::expect(tensor, tensor.type == SafetensorsType::f32 && tensor.bytes.size() == 4,
                   "is not one F32 number");
  stored.push_back(tensor.bytes);
  const float value = float_at(tensor, 0);
  HfModule::expect(tensor, std::isfinite(value) && value > 0, "is no scale");
  return divides ? 1.0f / value : value;
}

}  // namespace

PackedPtr make_float4(const HfModule& module) {
  const SafetensorsTensor* packed = module.find(".weight_packed");
  if (packed == nullptr) packed = module.find(".weight");
  if (packed == nullptr || packed->type != SafetensorsType::u8) return nullptr;
  HfModule::expect(*packed, packed->shape.size() == 2 && !packed->bytes.empty(), "is no matrix");
  auto matrix = std::make_unique<Float4Matrix>();
  matrix->packed = packed;
  matrix->rows = packed->shape[0];
  matrix->cols = packed->shape[1] * 2;
  matrix->scale = &module.get(".weight_scale");
  matrix->has_exponents =
      matrix->scale->type == SafetensorsType::u8 || matrix->scale->type == SafetensorsType::f8_e8m0;
  matrix->group = matrix->has_exponents ? 32 : 16;
  matrix->is_mxfp4 = matrix->has_exponents;
  HfModule::expect(*packed, matrix->cols % matrix->group == 0, "does not divide into groups");
  module.get(".weight_scale", {matrix->rows, matrix->cols / matrix->group},
             {SafetensorsType::u8, SafetensorsType::f8_e8m0, SafetensorsType::f8_e4m3});
  matrix->stored = {packed->bytes, matrix->scale->bytes};
  if (!matrix->has_exponents) {
    matrix->common_scale = global_scale(module, matrix->stored);
    matrix->half_global = 0.5f * matrix->common_scale;
  }
  return matrix;
}

PackedPtr make_fp4(const HfModule& module) {
  const SafetensorsTensor *packed = module.find(".weight"), *scale = module.find(".scale");
  if (packed == nullptr || scale == nullptr) return nullptr;
  if (packed->type != SafetensorsType::i8 && packed->type != SafetensorsType::u8) return nullptr;
  HfModule::expect(*packed, packed->shape.size() == 2 && !packed->bytes.empty(), "is no matrix");
  auto matrix = std::make_unique<Float4Matrix>();
  matrix->packed = packed;
  matrix->scale = scale;
  matrix->rows = packed->shape[0];
  matrix->cols = packed->shape[1] * 2;
  matrix->has_exponents = matrix->is_mxfp4 = true;
  matrix->group = 32;
  HfModule::expect(*packed, matrix->cols % matrix->group == 0, "does not divide into groups");
  module.get(".scale", {matrix->rows, matrix->cols / matrix->group},
             {SafetensorsType::u8, SafetensorsType::f8_e8m0});
  matrix->stored = {packed->bytes, scale->bytes};
  return matrix;
}

namespace {

constexpr size_t kMaxStateBytes = 1 << 16;
constexpr uint64_t kMaxBlock = 1 << 16;

// Sixteen floats to choose from, two neighbours in a byte, the first in its high half; blocks of a flat list of values share a scale,
// which may be a code of 256 floats itself.
class TableMatrix : public PackedMatrix {
 public:
  const SafetensorsTensor *packed = nullptr, *absmax = nullptr;
  float table[16] = {};
  uint64_t block = 64;
  const SafetensorsTensor *nested_table = nullptr, *nested_absmax = nullptr;
  uint64_t nested_block = 256;
  float nested_offset = 0;

  void read(uint64_t row, PackedRow& out) const override {
    out.codes.resize(cols);
    out.scales.resize(cols / group);
    for (uint64_t i = 0; i < cols; ++i) {
      const uint64_t at = row * cols + i;
      out.codes[i] = table[uint32_t(packed->bytes[at / 2]) >> (at % 2 == 0 ? 4 : 0) & 15];
      if (i % group == 0) out.scales[i / group] = scale(at / block);
    }
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    out.codes.assign(table, table + 16);
    out.scales.resize(cols / group);
    for (uint64_t g = 0; g < out.scales.size(); ++g) out.scales[g] = scale((row * cols + g * group) / block);
  }

 private:
  float scale(uint64_t index) const {
    if (nested_table == nullptr) return float_at(*absmax, index);
    return float_at(*nested_table, uint64_t(absmax->bytes[index])) *
               float_at(*nested_absmax, index / nested_block) +
           nested_offset;
  }
};

// int8 with a scale for 127 of each row.
class RowScaledMatrix : public PackedMatrix {
 public:
  const SafetensorsTensor *weight = nullptr, *scale = nullptr;

  void read(uint64_t row, PackedRow& out) const override {
    out.codes.resize(cols);
    for (uint64_t i = 0; i < cols; ++i) out.codes[i] = float(int8_t(weight->bytes[row * cols + i]));
    out.scales.assign(1, float_at(*scale, row) / 127.0f);
  }
  void read_range(uint64_t row, PackedRow& out) const override {
    out.codes = {-128, 127};
    out.scales.assign(1, float_at(*scale, row) / 127.0f);
  }
};

PackedPtr make_row_scaled(const HfModule& module, const SafetensorsTensor& weight) {
  HfModule::expect(weight, weight.shape.size() == 2 && !weight.bytes.empty(), "is no matrix");
  auto matrix = std::make_unique<RowScaledMatrix>();
  matrix->weight = &weight;
  matrix->rows = weight.shape[0];
  matrix->group = matrix->cols = weight.shape[1];
  matrix->scale = &module.get(".SCB", {matrix->rows}, {SafetensorsType::f32});
  matrix->stored = {weight.bytes, matrix->scale->bytes};
  return matrix;
}

// The JSON that says what a packed weight is.
HfObject quant_state(const HfModule& module) {
  for (const char* kind :
       {".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"}) {
    const SafetensorsTensor* tensor = module.find(kind);
    if (tensor == nullptr) continue;
    HfModule::expect(*tensor, tensor->type == SafetensorsType::u8 && tensor->bytes.size() <= kMaxStateBytes,
                     "is no text");
    const std::string text(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
    return {parse_json(text, in_quotes(tensor->name)), in_quotes(tensor->name)};
  }
  throw Error("the tensor {} is missing, which bitsandbytes needs",
              in_quotes(module.name + ".weight.quant_state.bitsandbytes__nf4"));
}

uint64_t block_size(const HfObject& state, const char* key) {
  const uint64_t block = state.number(key);
  if (block < 16 || block > kMaxBlock || (block & (block - 1)) != 0)
    throw Error("{}: \"{}\" is {}", state.where(), key, block);
  return block;
}

void read_nested(const HfModule& module, const HfObject& state, TableMatrix& matrix) {
  matrix.nested_block = block_size(state, "nested_blocksize");
  const double offset = state.maybe_real("nested_offset").value_or(0);
  if (!std::isfinite(offset)) throw Error("{}: \"nested_offset\" is {}", state.where(), offset);
  matrix.nested_offset = float(offset);
  const uint64_t blocks = matrix.absmax->shape[0];
  matrix.nested_table = &module.get(".weight.nested_quant_map", {256}, {SafetensorsType::f32});
  matrix.nested_absmax =
      &module.get(".weight.nested_absmax", {(blocks + matrix.nested_block - 1) / matrix.nested_block},
                  {SafetensorsType::f32});
  matrix.stored.push_back(matrix.nested_table->bytes);
  matrix.stored.push_back(matrix.nested_absmax->bytes);
}

}  // namespace

PackedPtr make_bitsandbytes(const HfModule& module) {
  const SafetensorsTensor* weight = module.find(".weight");
  if (weight == nullptr) return nullptr;
  if (weight->type == SafetensorsType::i8) return make_row_scaled(module, *weight);
  if (weight->type != SafetensorsType::u8) return nullptr;
  const HfObject state = quant_state(module);
  const std::vector<uint64_t> shape = state.numbers("shape");
  uint64_t values = 0;
  const bool is_matrix = shape.size() == 2 && shape[0] > 0 && shape[1] > 0 &&
                         !__builtin_mul_overflow(shape[0], shape[1], &values);
  if (!is_matrix) throw Error("{}: \"shape\" is no matrix's", state.where());
  HfModule::expect(*weight, values % 2 == 0 && weight->bytes.size() == values / 2,
                   fmt::format("is not of [{}] values", fmt::join(shape, ", ")).c_str());
  auto matrix = std::make_unique<TableMatrix>();
  matrix->packed = weight;
  matrix->rows = shape[0];
  matrix->cols = shape[1];
  matrix->has_whole_codes = false;
  matrix->block = block_size(state, "blocksize");
  matrix->group = 1;  // the largest that divides a block and a row
  while (matrix->group < matrix->block && matrix->cols % (2 * matrix->group) == 0) matrix->group *= 2;
  const SafetensorsTensor& table = module.get(".weight.quant_map", {16}, {SafetensorsType::f32});
  for (size_t i = 0; i < 16; ++i) matrix->table[i] = float_at(table, i);
  matrix->absmax = &module.get(".weight.absmax", {(values + matrix->block - 1) / matrix->block},
                               {SafetensorsType::f32, SafetensorsType::u8});
  matrix->stored = {weight->bytes, table.bytes, matrix->absmax->bytes};
  if (matrix->absmax->type == SafetensorsType::u8) read_nested(module, state, *matrix);
  return matrix;
}

}  // namespace quire
