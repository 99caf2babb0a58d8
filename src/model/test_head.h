#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "model/model_spec.h"

namespace quire {

// A file that has only a head: what a spec is read from.
class HeadOnly : public ModelFile {
 public:
  explicit HeadOnly(const std::string& architecture = "llama") : ModelFile("test.gguf") {
    set("general.architecture", architecture);
    set(architecture + ".embedding_length", uint64_t(64));
    set(architecture + ".block_count", uint64_t(12));
    set(architecture + ".context_length", uint64_t(1000));
    set(architecture + ".feed_forward_length", uint64_t(128));
    set(architecture + ".attention.head_count", uint64_t(4));
    set(architecture + ".attention.head_count_kv", uint64_t(2));
    add_tensor({"token_embd.weight", DType::f32, {100, 64}, 100 * 64 * 4});
  }
  HeadOnly& set(const std::string& key, MetadataValue value) {
    metadata_.set(key, std::move(value));
    return *this;
  }
  TensorData load(const TensorEntry&) const override { return {}; }
  std::vector<std::span<const std::byte>> stored(const TensorEntry&) const override { return {}; }
};

inline std::string message(const ModelFile& file) {
  try {
    read_model_spec(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace quire
