// Any text is either a config.json that becomes a spec of bounded size, or an Error.
#include <cstdint>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "model/hf_config.h"
#include "model/model_spec.h"

namespace {

// A file of which only the head is there.
class Head : public quire::ModelFile {
 public:
  explicit Head(const quire::HfConfig& config) : ModelFile("fuzz") {
    metadata_ = config.metadata;
    const std::string architecture = metadata_.text("general.architecture");
    const uint64_t rows = metadata_.number(architecture + ".vocab_size");
    add_tensor({"token_embd.weight", quire::DType::f32, {rows, config.embedding}, 0});
  }
  quire::TensorData load(const quire::TensorEntry&) const override { return {}; }
  std::vector<std::span<const std::byte>> stored(const quire::TensorEntry&) const override { return {}; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::BoundedWork work(size);
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const quire::HfConfig config =
        quire::convert_hf_config(quire::HfObject(quire::parse_json(text, "fuzz"), "fuzz"), "fuzz");
    const quire::ModelSpec spec = quire::read_model_spec(Head(config));
    CHECK(spec.layers.size() <= config.layers);
    for (const quire::LayerSpec& layer : spec.layers) {
      if (const quire::GqaSpec* gqa = layer.attention()) CHECK(gqa->heads % gqa->kv_heads == 0);
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
