#include "golden_model.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "device/open_backend.h"
#include "engine/text_runner.h"

namespace quire {

std::string golden_folder(const std::string& name) {
  return QUIRE_SOURCE_DIR "/tests/goldens/" + name;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/goldens")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden read_golden(const std::string& name) {
  const Json json = read_json_file(golden_folder(name) + "/golden.json");
  Golden golden{.name = name,
                .prompt = json["prompt"].get<std::vector<TokenId>>(),
                .greedy = json["greedy"].get<std::vector<TokenId>>(),
                .vocab = json["vocab"].get<size_t>(),
                .logits = {}};
  const MappedFile file(golden_folder(name) + "/golden.bin");
  golden.logits.resize(golden.prompt.size() * golden.vocab);
  CHECK(file.bytes().size() == golden.logits.size() * sizeof(float));
  std::memcpy(golden.logits.data(), file.bytes().data(), file.bytes().size());
  return golden;
}

BareModel::BareModel(const std::string& path, CpuKernels kernels, uint32_t threads)
    : BareModel(path, std::make_unique<CpuBackend>(kernels, threads)) {}

namespace {

ModelSpec placed_spec(const ModelFile& file, const Placement& placement) {
  ModelSpec spec =
      read_model_spec(file, {.context = 64});  // longrope: the short factors, as the goldens want
  place(spec, placement);
  return spec;
}

}  // namespace

BareModel::BareModel(const std::string& path, std::unique_ptr<Backend> its, const Placement& placement)
    : file(open_model_file(path)),
      spec(placed_spec(*file, placement)),
      weights(load_weights(file, spec, its->traits())),
      own(std::move(its)) {
  prepare_weights(weights, backend);
}

std::unique_ptr<Backend> open_gpu(const std::string& kernels) {
  const std::string device = usual_device();
  return device == "cpu" ? nullptr : open_backend({.device = device, .kernels = kernels});
}

BackendTraits traits_of_a_cpu() {
  BackendTraits traits;
  traits.weight_scales = true;
  return traits;
}

BareModel::BareModel(std::shared_ptr<const ModelFile> from, ModelSpec its, CpuKernels kernels,
                     uint32_t threads)
    : file(std::move(from)),
      spec(std::move(its)),
      weights(load_weights(file, spec, traits_of_a_cpu())),
      own(std::make_unique<CpuBackend>(kernels, threads)) {
  prepare_weights(weights, backend);
}

EngineModel BareModel::engine_model() {
  return {.spec = &spec, .weights = &weights, .backend = &backend, .tokenizer = nullptr, .end_tokens = {}};
}

void set_window_pages(ModelSpec& spec, uint32_t page_tokens) {
  for (LayerSpec& layer : spec.layers) {
    if (layer.window() > 0) layer.gqa().page_tokens = page_tokens;
  }
}

std::string parameter_name(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '-', '_');
  return text;
}

std::vector<float> all_logits(BareModel& model, std::span<const TokenId> tokens, uint32_t chunk,
                              const KvFormats& formats) {
  TextRunner runner(model.engine_model(), formats, uint32_t(tokens.size()), chunk);
  std::vector<float> result;
  while (runner.done() < tokens.size()) {
    const uint32_t done = runner.done(), count = std::min(chunk, uint32_t(tokens.size()) - done);
    const StepOutput output = runner.compute(tokens.subspan(done, count));
    result.insert(result.end(), output.logits.begin(), output.logits.end());
  }
  return result;
}

}  // namespace quire
