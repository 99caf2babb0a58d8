#include "model/hf_schemes.h"

#include "model/hf_scheme_parts.h"

namespace quire {
namespace {

constexpr uint64_t kMaxGroup = 1 << 20;

struct Scheme {
  std::string_view method;
  PackedPtr (*make[2])(const HfModule&);  // the first that finds what it makes a matrix of
};
constexpr Scheme kSchemes[] = {
    {"compressed-tensors", {make_compressed, make_float4}},
    {"modelopt", {make_float4, nullptr}},
    {"awq", {make_awq, nullptr}},
    {"gptq", {make_gptq, nullptr}},
    {"bitsandbytes", {make_bitsandbytes, nullptr}},
    {"mlx", {make_mlx, nullptr}},
    {"fp8", {make_fp4, nullptr}},  // of which only experts are packed; the rest is read as FP8 always is
};
// Whose tensors are read one by one: FP8 with scales, and the blocks of gpt-oss.
constexpr std::string_view kOwnReaders[] = {"fp8", "mxfp4"};

// What ends the name of a tensor that is part of a packed matrix.
constexpr std::string_view kSuffixes[] = {".weight_packed",
                                          ".weight_shape",
                                          ".weight_zero_point",
                                          ".weight_g_idx",
                                          ".weight_global_scale",
                                          ".weight_scale",
                                          ".weight_scale_2",
                                          ".input_global_scale",
                                          ".input_scale",
                                          ".qweight",
                                          ".qzeros",
                                          ".scales",
                                          ".g_idx",
                                          ".biases",
                                          ".SCB",
                                          ".scale",
                                          ".weight_format",
                                          ".weight.absmax",
                                          ".weight.quant_map",
                                          ".weight.nested_absmax",
                                          ".weight.nested_quant_map",
                                          ".weight.quant_state.bitsandbytes__nf4",
                                          ".weight.quant_state.bitsandbytes__fp4"};
// Of which one at least is there wherever a module is packed.
constexpr std::string_view kFirsts[] = {".weight_packed", ".qweight", ".weight"};

uint64_t group_size(const HfObject& config, uint64_t usual) {
  if (!config.has("group_size")) return usual;
  const double group = config.maybe_real("group_size").value_or(0);
  if (group == -1) return 0;
  const uint64_t whole = config.number("group_size");
  if (whole == 0 || whole > kMaxGroup) throw Error("{}: \"group_size\" is {}", config.where(), whole);
  return whole;
}

uint64_t field_bits(const HfObject& config, std::initializer_list<uint64_t> known) {
  const uint64_t bits = config.number("bits");
  if (std::ranges::count(known, bits) == 0)
    throw Error("{}: \"bits\" is {}; known are {}", config.where(), bits, fmt::join(known, ", "));
  return bits;
}

HfQuantization read_mlx(const HfObject& config) {
  const std::string mode = config.maybe_text("mode").value_or("affine");
  if (mode != "affine") throw Error("{}: \"mode\" is {}; known is affine", config.where(), in_quotes(mode));
  HfQuantization out{
      .method = "mlx", .bits = field_bits(config, {2, 4, 8}), .group = group_size(config, 64), .groups = {}};
  if (out.group == 0) throw Error("{}: \"group_size\" is -1", config.where());
  for (const std::string& module : config.keys()) {
    if (const auto own = config.maybe_own_object(module)) out.groups[module] = group_size(*own, out.group);
  }
  for (const auto& [module, group] : out.groups)
    if (group == 0) throw Error("{}: \"group_size\" of {} is -1", config.where(), in_quotes(module));
  return out;
}

void check_awq(const HfObject& config, HfQuantization& out) {
  out.bits = field_bits(config, {4});
  const std::string version = config.maybe_text("version").value_or("gemm");
  if (version != "gemm" && version != "GEMM")
    throw Error("{}: \"version\" is {}; known is gemm", config.where(), in_quotes(version));
}

void check_gptq(const HfObject& config, HfQuantization& out) {
  out.bits = field_bits(config, {2, 4, 8});
  const std::string format = config.maybe_text("checkpoint_format").value_or("gptq");
  if (format != "gptq" && format != "gptq_v2")
    throw Error("{}: \"checkpoint_format\" is {}; known are gptq and gptq_v2", config.where(),
                in_quotes(format));
  out.zeros_less_one = format == "gptq";
}

}  // namespace

HfQuantization read_hf_quantization(const HfObject& config) {
  if (const auto mlx = config.maybe_object("quantization")) return read_mlx(*mlx);
  const auto quantization = config.maybe_object("quantization_config");
  if (!quantization) return {};
  const std::string method = quantization->maybe_text("quant_method").value_or("none");
  const std::string experts =
      quantization->maybe_text("expert_dtype").value_or(config.maybe_text("expert_dtype").value_or("fp8"));
  if (method == "fp8" && experts == "fp4") return {.method = method, .groups = {}};
  if (std::ranges::count(kOwnReaders, method) > 0) return {};
  const auto* scheme = std::ranges::find(kSchemes, method, &Scheme::method);
  if (scheme == std::end(kSchemes) || method == "mlx") {
    std::string known = fmt::format("{}", fmt::join(kOwnReaders, ", "));
    for (const Scheme& one : kSchemes)
      if (one.method != "fp8") known += fmt::format(", {}", one.method);
    throw Error("{} has weights quantized by {}, which is not supported; known are {}", config.where(),
                in_quotes(method), known);
  }
  HfQuantization out{.method = method, .groups = {}};
  if (method == "awq" || method == "gptq") out.group = group_size(*quantization, 128);
  if (method == "awq") check_awq(*quantization, out);
  if (method == "gptq") check_gptq(*quantization, out);
  return out;
}

HfPackedTensors find_packed(const SafetensorsFolder& files, const HfQuantization& quantization) {
  HfPackedTensors found;
  const auto* scheme = std::ranges::find(kSchemes, quantization.method, &Scheme::method);
  if (scheme == std::end(kSchemes)) return found;
  for (const auto& [name, tensor] : files.tensors()) {
    const auto* first = std::ranges::find_if(kFirsts, [&](auto suffix) { return name.ends_with(suffix); });
    if (first == std::end(kFirsts)) continue;
    const HfModule module{files, name.substr(0, name.size() - first->size()), quantization};
    PackedPtr matrix;
    for (const auto& make : scheme->make)
      if (matrix == nullptr && make != nullptr) matrix = make(module);
    if (matrix == nullptr) continue;
    const std::string weight = module.name + ".weight";
    matrix->name = name;
    SafetensorsTensor whole{.name = weight,
                            .type_name = quantization.method,
                            .shape = {matrix->rows, matrix->cols},
                            .bytes = tensor.bytes};
    found.parts.insert(name);
    for (const std::string_view suffix : kSuffixes) found.parts.insert(module.name + std::string(suffix));
    if (!found.tensors.emplace(weight, std::move(whole)).second)
      throw Error("the module {} has two packed weights", in_quotes(module.name));
    found.matrices.emplace(weight, std::move(matrix));
  }
  return found;
}

}  // namespace quire
