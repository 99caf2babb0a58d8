#include "model/hf_shapes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "model/hf_scheme_parts.h"

namespace quire {
namespace {

// Of experts stacked, a matrix or biases for each.
bool is_of_experts(const std::string& name) {
  return name.find("_exps.") != std::string::npos && !name.ends_with(".scale");
}
bool is_stack(const std::string& name) {
  return is_of_experts(name) || name == "altup_proj.weight" || name == "altup_unembd_proj.weight";
}

// Whether a scale is a power of two that leaves FP8 numbers a bf16's: those of five bits of exponent reach from 2^-16 to 57344.
bool is_plain_power(const SafetensorsTensor& scales, uint64_t i) {
  constexpr int kMostExponent = 100;
  if (scales.type == SafetensorsType::f8_e8m0)
    return std::abs(int(uint8_t(scales.bytes[i])) - 127) <= kMostExponent;
  int exponent = 0;  // of 0.5
  return std::frexp(float_at(scales, i), &exponent) == 0.5f && std::abs(exponent - 1) <= kMostExponent;
}

// Of all parts: then bf16 has the same numbers.
bool has_plain_powers(const HfTensor& tensor) {
  return std::ranges::all_of(tensor.parts, [](const HfPart& part) {
    const SafetensorsTensor& scales = *part.scale;
    uint64_t count = 1;
    for (const uint64_t size : scales.shape) count *= size;
    const bool readable = scales.type == SafetensorsType::f32 || scales.type == SafetensorsType::f16 ||
                          scales.type == SafetensorsType::bf16 || scales.type == SafetensorsType::f8_e8m0;
    for (uint64_t i = 0; readable && i < count; ++i)
      if (!is_plain_power(scales, i)) return false;
    return readable;
  });
}

// From the shapes in the file: the shape and type of a tensor.
class Finish {
 public:
  Finish(const HfConfig& config, const std::string& folder, bool has_scales_name)
      : config_(config), folder_(folder), has_scales_name_(has_scales_name) {}

  void finish(HfTensor& tensor) const {
    if (tensor.parts.empty()) return;
    for (size_t i = 0; i < tensor.parts.size(); ++i)
      if (!tensor.parts[i].data) throw Error("{}: {} is missing expert {}", folder_, tensor.entry.name, i);
    const SafetensorsTensor& first = *tensor.parts.front().data;
    for (const HfPart& part : tensor.parts)
      if (part.data->shape != first.shape || part.data->type != first.type)
        refuse(*part.data, fmt::format("differs from {}", in_quotes(first.name)));
    if (tensor.entry.dtype == DType::mxfp4) return finish_packed(tensor);

    const bool all_experts = is_of_experts(tensor.entry.name) && tensor.parts.size() == 1;
    const size_t outer = all_experts ? 1 : 0;
    // Biases of choices and gates of one row come as matrices.
    const bool flat = tensor.entry.name.ends_with("exp_probs_b.bias") ||
                      tensor.entry.name.ends_with("ffn_gate_inp_shexp.weight");
    const bool one_row = flat && first.shape.size() == 2 && first.shape[0] == 1;
    // A convolution of each channel by itself.
    const bool convolution = (tensor.entry.name.find(".ssm_conv1d") != std::string::npos ||
                              tensor.entry.name.ends_with(".shortconv.conv.weight")) &&
                             first.shape.size() == 3 && first.shape[1] == 1;
    std::vector<uint64_t> shape = first.shape;
    if (one_row) shape = {first.shape[1]};
    if (first.shape.size() == 4 && tensor.entry.name.ends_with(".ssm_a") && first.shape[0] == 1 &&
        first.shape[1] == 1 && first.shape[3] == 1)
      shape = {first.shape[2]};
    if (convolution) shape = {first.shape.front(), first.shape.back()};
    const bool vector = tensor.entry.name.ends_with(".bias") || shape.size() == outer + 1;
    if (shape.size() != outer + (vector ? 1 : 2) || first.bytes.empty()) refuse(first, "has no such shape");
    if (all_experts && shape[0] != config_.experts)
      refuse(first, fmt::format("is not of {} experts", config_.experts));
    tensor.experts = all_experts ? shape[0] : 1;
    tensor.file_rows = shape[outer];
    tensor.cols = vector ? 1 : shape[outer + 1];
    if (tensor.transposed) std::swap(tensor.file_rows, tensor.cols);
    const HfTiles& tiles = tensor.tiles;
    if (tiles.reorders() &&
        (tiles.columns ? tensor.cols : tensor.file_rows) != tiles.begin + tiles.value_heads * tiles.size)
      refuse(first, fmt::format("is not of {} value heads", tiles.value_heads));
    check_factors(tensor);
    set_shape(tensor, vector);
    tensor.entry.dtype = first_is_packed(tensor) ? packed_type(tensor) : result_type(tensor, first);
    if (first_is_packed(tensor)) {
      tensor.entry.bytes =
          tensor.result_rows() * row_bytes(tensor.entry.dtype, tensor.cols) * tensor.parts.size();
      return;
    }
    const uint64_t values = first.bytes.size() / type_bytes(first) / tensor.file_rows * tensor.result_rows();
    tensor.entry.bytes = values * traits(tensor.entry.dtype).block_bytes * tensor.parts.size();
  }

 private:
  [[noreturn]] void refuse(const SafetensorsTensor& tensor, std::string_view why) const {
    refuse_hf_tensor(tensor, folder_, why);
  }

  void check_factors(const HfTensor& tensor) const {
    const SafetensorsTensor& first = *tensor.parts.front().data;
    uint64_t rows = 0;
    for (const HfFactor& one : tensor.factors) rows += one.rows == 0 ? tensor.file_rows : one.rows;
    if (!tensor.factors.empty() && rows != tensor.file_rows)
      refuse(first, fmt::format("has not the {} rows that config.json multiplies", rows));
    if (!tensor.factors.empty() && first_is_packed(tensor))
      refuse(first, "is packed, and config.json multiplies it, which is not supported");
  }

  void finish_packed(HfTensor& tensor) const {
    const SafetensorsTensor& blocks = *tensor.parts.front().data;
    const SafetensorsTensor& scales = *tensor.parts.front().scale;
    const std::vector<uint64_t>& shape = blocks.shape;
    if (blocks.type != SafetensorsType::u8 || shape.size() != 4 || shape[3] != 16 ||
        shape[0] != config_.experts || blocks.bytes.empty())
      refuse(blocks, "is not bytes of MXFP4 blocks [experts, rows, blocks, 16]");
    if (scales.type != SafetensorsType::u8 || scales.shape != std::vector(shape.begin(), shape.begin() + 3))
      refuse(scales, fmt::format("does not fit {}", in_quotes(blocks.name)));
    tensor.experts = shape[0];
    tensor.file_rows = shape[1];
    tensor.cols = shape[2] * 32;
    set_shape(tensor, false);
    tensor.entry.bytes = blocks.bytes.size() / 16 * 17 / (halves(tensor) ? 2 : 1);
  }

  static bool first_is_packed(const HfTensor& tensor) { return tensor.parts.front().packed != nullptr; }

  DType packed_type(const HfTensor& tensor) const {
    std::vector<const PackedMatrix*> matrices;
    for (const HfPart& part : tensor.parts) {
      if (part.packed == nullptr || tensor.transposed || tensor.entry.shape.size() == 1)
        refuse(*part.data, fmt::format("is packed by {} where it cannot be", config_.quantization.method));
      matrices.push_back(part.packed);
    }
    if (is_small(tensor)) return DType::f32;
    DType type = type_of_packed(matrices);
    // Beside which something else may have the name of its scales (Gemma 4).
    if (type == DType::nvfp4 && has_scales_name_) type = DType::f16;
    // Of a row: blocks would be torn.
    const bool in_parts = (tensor.tiles.reorders() && tensor.tiles.columns) || tensor.heads_turned;
    return in_parts && traits(type).block_values > 1 ? DType::f16 : type;
  }

  static bool is_small(const HfTensor& tensor) {
    const std::string& name = tensor.entry.name;
    return tensor.entry.shape.size() == 1 || !name.ends_with(".weight") || name.ends_with("_norm.weight") ||
           name.ends_with(".ffn_gate_inp.weight") || name.find("_compressor_ape.") != std::string::npos ||
           name.find("hc_") != std::string::npos || name.find(".ssm_conv1d") != std::string::npos ||
           name.ends_with(".shortconv.conv.weight") || name == "position_embd.weight";
  }

  static bool halves(const HfTensor& tensor) { return is_half(tensor.rows); }

  void set_shape(HfTensor& tensor, bool vector) const {
    const SafetensorsTensor& first = *tensor.parts.front().data;
    if (halves(tensor) && tensor.file_rows % 2 != 0) refuse(first, "does not divide into gate and up");
    if (tensor.rows == HfRows::pairs && tensor.file_rows % (2 * tensor.heads) != 0)
      refuse(first, fmt::format("does not divide into the pairs of {} heads", tensor.heads));
    const HfSections& sections = tensor.sections;
    if (tensor.rows == HfRows::sections && tensor.file_rows != sections.groups * sections.group_rows)
      refuse(first, fmt::format("is not of {} groups of {} rows", sections.groups, sections.group_rows));
    if (is_stack(tensor.entry.name))
      tensor.entry.shape.push_back(std::max<uint64_t>(tensor.experts, tensor.parts.size()));
    tensor.entry.shape.push_back(tensor.result_rows());
    if (!vector) tensor.entry.shape.push_back(tensor.cols);
    if (tensor.head_stack > 0) {
      const uint64_t rows = tensor.result_rows() / tensor.head_stack;
      tensor.entry.shape = {tensor.head_stack, rows, tensor.cols};
      if (tensor.heads_turned) std::swap(tensor.entry.shape[1], tensor.entry.shape[2]);
    }
    set_group_shape(tensor.entry);
  }

  // Mamba-2: a row for each head, and of norms for each group.
  void set_group_shape(TensorEntry& entry) const {
    if (config_.state_groups == 0 || entry.shape.size() != 1) return;
    const uint64_t values = entry.shape[0];
    if (entry.name.ends_with(".ssm_a") || entry.name.ends_with(".ssm_d")) entry.shape = {values, 1};
    if (!entry.name.ends_with(".ssm_norm.weight")) return;
    if (values % config_.state_groups != 0)
      throw Error("{}: {} does not divide into {} groups", folder_, entry.name, config_.state_groups);
    entry.shape = {config_.state_groups, values / config_.state_groups};
  }

  static bool holds_numbers(const HfTensor& tensor) {
    return tensor.entry.name.ends_with(".ffn_gate_tid2eid.weight");
  }

  DType result_type(const HfTensor& tensor, const SafetensorsTensor& source) const {
    if (holds_numbers(tensor)) {
      if (source.type != SafetensorsType::i64 && source.type != SafetensorsType::i32)
        refuse(source, fmt::format("is of type {}, and whole numbers were expected", source.type_name));
      return DType::i32;
    }
    const bool small = is_small(tensor);
    switch (source.type) {
      case SafetensorsType::f32:
        return DType::f32;
      case SafetensorsType::f16:
        return small ? DType::f32 : DType::f16;
      case SafetensorsType::bf16:
        return small ? DType::f32 : DType::bf16;
      case SafetensorsType::f8_e4m3:
      case SafetensorsType::f8_e5m2:
        if (tensor.transposed) refuse(source, "is FP8 and transposed, which is not supported");
        return !small && tensor.factors.empty() && has_plain_powers(tensor) ? DType::bf16 : DType::f32;
      default:
        refuse(source, fmt::format("is of type {}, which is not supported", source.type_name));
    }
  }

  static uint64_t type_bytes(const SafetensorsTensor& tensor) {
    if (tensor.type == SafetensorsType::i64) return 8;
    if (tensor.type == SafetensorsType::f32 || tensor.type == SafetensorsType::i32) return 4;
    return tensor.type == SafetensorsType::f16 || tensor.type == SafetensorsType::bf16 ? 2 : 1;
  }

  const HfConfig& config_;
  const std::string& folder_;
  const bool has_scales_name_;
};

}  // namespace

void refuse_hf_tensor(const SafetensorsTensor& tensor, const std::string& folder, std::string_view why) {
  throw Error("{}: tensor {} of shape [{}] {}", folder, in_quotes(tensor.name), fmt::join(tensor.shape, ", "),
              why);
}

std::string scales_name_of(const HfTensor& tensor) {
  return tensor.entry.name.substr(0, tensor.entry.name.rfind('.')) + ".scale";
}

void finish_hf_tensor(HfTensor& tensor, const HfConfig& config, const std::string& folder,
                      bool has_scales_name) {
  Finish(config, folder, has_scales_name).finish(tensor);
}

}  // namespace quire
