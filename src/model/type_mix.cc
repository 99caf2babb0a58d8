#include "model/type_mix.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include <fmt/ranges.h>

#include "base/error.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

struct Known {
  const char* name;
  DType main;
  bool more_bits;
  uint32_t file_type;
};

constexpr Known kKnown[] = {
    {"f32", DType::f32, false, 0},          {"f16", DType::f16, false, 1},
    {"bf16", DType::bf16, false, 32},       {"q4_0", DType::q4_0, false, 2},
    {"q4_1", DType::q4_1, false, 3},        {"q5_0", DType::q5_0, false, 8},
    {"q5_1", DType::q5_1, false, 9},        {"q8_0", DType::q8_0, false, 7},
    {"q2_k", DType::q2_k, false, 10},       {"q3_k_s", DType::q3_k, false, 11},
    {"q3_k_m", DType::q3_k, true, 12},      {"q4_k_s", DType::q4_k, false, 14},
    {"q4_k_m", DType::q4_k, true, 15},      {"q5_k_s", DType::q5_k, false, 16},
    {"q5_k_m", DType::q5_k, true, 17},      {"q6_k", DType::q6_k, false, 18},
    {"iq4_nl", DType::iq4_nl, false, 25},   {"iq4_xs", DType::iq4_xs, false, 30},
    {"mxfp4", DType::mxfp4, false, 38},     {"nvfp4", DType::nvfp4, false, 39},
    {"iq3_s", DType::iq3_s, false, 26},     {"iq3_xxs", DType::iq3_xxs, false, 23},
    {"iq2_s", DType::iq2_s, false, 28},     {"iq2_xs", DType::iq2_xs, false, 20},
    {"iq2_xxs", DType::iq2_xxs, false, 19}, {"iq1_m", DType::iq1_m, false, 31},
    {"iq1_s", DType::iq1_s, false, 24},     {"tq1_0", DType::tq1_0, false, 36},
    {"tq2_0", DType::tq2_0, false, 37},     {"q1_0", DType::q1_0, false, 40},
    {"q2_0", DType::q2_0, false, 41},
};

const Known* find(std::string_view name) {
  const auto* known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return k.name == name; });
  return known == std::end(kKnown) ? nullptr : known;
}

bool is_float(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

// The block format nearest in size for rows that 256 does not divide.
DType with_short_blocks(DType type) {
  switch (type) {
    case DType::q2_k:
    case DType::q3_k:
    case DType::iq4_xs:
    case DType::iq3_s:
    case DType::iq3_xxs:
    case DType::iq2_s:
    case DType::iq2_xs:
    case DType::iq2_xxs:
    case DType::iq1_m:
    case DType::iq1_s:
    case DType::tq1_0:
    case DType::tq2_0:
    case DType::q1_0:
    case DType::q2_0:
      return DType::iq4_nl;
    case DType::nvfp4:
      return DType::mxfp4;
    case DType::q4_k:
      return DType::q5_0;
    case DType::q5_k:
      return DType::q5_1;
    case DType::q6_k:
      return DType::q8_0;
    default:
      return type;
  }
}

DType finer(DType type) {
  return type == DType::q3_k ? DType::q5_k : DType::q6_k;
}

// Where a mix is of a type with a code book, some matrices have bits enough to bear it: values, of which there are few, what is
// added to the stream early, and the embedding, of which no importance is known.
DType beside_book(DType main, const std::string& name, uint32_t layer, uint32_t layers) {
  const bool is_small = needs_importance(main);
  const auto is = [&name](const char* part) { return name.find(part) != std::string::npos; };
  if (is("token_embd")) return is_small ? DType::q3_k : DType::iq3_s;
  if (is("attn_v.weight") || is("attn_qkv")) return is_small ? DType::q4_k : main;
  if (is("attn_output") && is_small)
    return main == DType::iq1_s || main == DType::iq1_m ? DType::iq2_xxs : main;
  if (is("ffn_down") && layer < layers / 8) return is_small ? DType::q2_k : DType::q4_k;
  return main;
}

// The layers whose value and down matrices get more bits: the first and last eighth, and every third between.
bool gets_more_bits(uint32_t layer, uint32_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

uint32_t layer_of(const std::string& tensor) {
  uint32_t layer = 0;
  if (tensor.starts_with("blk.")) std::from_chars(tensor.data() + 4, tensor.data() + tensor.size(), layer);
  return layer;
}

}  // namespace

TypeMix::TypeMix(std::string_view name) : name_(name) {
  std::transform(name_.begin(), name_.end(), name_.begin(),
                 [](unsigned char c) { return char(std::tolower(c)); });
  if (name_ == "q4_k" || name_ == "q5_k" || name_ == "q3_k") name_ += "_m";
  const Known* known = find(name_);
  if (known == nullptr)
    throw Error("'{}' is not a type of model file; known are {}", name, fmt::join(TypeMix::known(), ", "));
  main_ = known->main;
  more_bits_ = known->more_bits;
}

DType TypeMix::type_for(const TensorEntry& tensor, uint32_t layers, bool tied) const {
  const std::string& name = tensor.name;
  if (tensor.dtype == DType::i32) return DType::i32;
  if (tensor.shape.size() < 2 || !name.ends_with(".weight")) return DType::f32;
  // Small, and everything depends on them.
  for (const char* part : {"ffn_gate_inp", "position_embd.weight", ".ssm_conv1d", ".shortconv.conv.",
                           ".ssm_alpha.", ".ssm_beta.", ".ssm_ba.", ".ssm_x.", ".ssm_dt.", "_norm.weight",
                           ".altup_", "hc_attn_", "hc_ffn_", "output_hc_", "_compressor_ape."}) {
    if (name.find(part) != std::string::npos) return DType::f32;
  }
  if (main_ == DType::f32) return DType::f32;
  // Experts that were trained in MXFP4 lose by any other small type.
  if (tensor.dtype == DType::mxfp4 && !is_float(main_)) return DType::mxfp4;

  DType type = main_;
  const bool is_head = name == "output.weight" || (tied && name == "token_embd.weight");
  if (is_head && !is_float(main_) && main_ != DType::q8_0) type = DType::q6_k;
  const bool is_sensitive =
      name.find("attn_v.weight") != std::string::npos || name.find("ffn_down") != std::string::npos;
  if (more_bits_ && is_sensitive && gets_more_bits(layer_of(name), layers)) type = finer(main_);
  if (has_book(main_) && !is_head) type = beside_book(main_, name, layer_of(name), layers);
  // Two bits are too few for what everything else is added to.
  const bool writes_stream = is_sensitive || name.find("attn_output") != std::string::npos;
  if (main_ == DType::q2_k && writes_stream) type = DType::q3_k;
  const uint64_t cols = tensor.shape.back();
  if (cols % traits(type).block_values != 0) type = with_short_blocks(type);
  if (cols % traits(type).block_values != 0) type = DType::f16;
  return type;
}

uint32_t TypeMix::file_type() const {
  return find(name_)->file_type;
}

std::vector<std::string> TypeMix::known() {
  std::vector<std::string> names;
  for (const Known& k : kKnown) names.emplace_back(k.name);
  return names;
}

}  // namespace quire
