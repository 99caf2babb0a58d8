#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/hf_json.h"
#include "model/packed_matrix.h"
#include "model/safetensors.h"

namespace quire {

// How a config.json says that weights are quantized.
struct HfQuantization {
  std::string method;  // empty: they are not, or no scheme of packed matrices is
  uint64_t bits = 0, group = 0;
  bool zeros_less_one = false;             // GPTQ as its first files have it
  std::map<std::string, uint64_t> groups;  // of single modules, where they differ (MLX)
};

// Reads "quantization_config", or MLX's "quantization". Throws Error for a method that is not known, naming those that are.
HfQuantization read_hf_quantization(const HfObject& config);

// The packed matrices of a folder. Each stands as one tensor NAME.weight of [rows, cols] for the tensors it is made of.
struct HfPackedTensors {
  std::map<std::string, SafetensorsTensor> tensors;               // their names, shapes and bytes
  std::map<std::string, std::unique_ptr<PackedMatrix>> matrices;  // by the same names
  std::set<std::string, std::less<>> parts;                       // names of what they are made of
};
// Throws Error naming the tensor that is missing or of no shape that its scheme has.
HfPackedTensors find_packed(const SafetensorsFolder& files, const HfQuantization& quantization);

}  // namespace quire
