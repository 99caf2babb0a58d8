#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "engine/engine.h"
#include "model/model_file.h"
#include "model/placement.h"

namespace quire {

// A model under tests/goldens, without text: what Transformers made and computed.
struct Golden {
  std::string name;
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
  size_t vocab = 0;
  std::vector<float> logits;  // [prompt, vocab]
};
std::vector<std::string> golden_names();
Golden read_golden(const std::string& name);
std::string golden_folder(const std::string& name);

// A model without text, on the CPU or another device.
struct BareModel {
  BareModel(const std::string& path, CpuKernels kernels, uint32_t threads);
  // `placement`: of a backend with two sides.
  BareModel(const std::string& path, std::unique_ptr<Backend> backend, const Placement& placement = {});
  BareModel(std::shared_ptr<const ModelFile> file, ModelSpec spec, CpuKernels kernels, uint32_t threads);
  EngineModel engine_model();

  std::shared_ptr<const ModelFile> file;
  ModelSpec spec;
  Weights weights;
  std::unique_ptr<Backend> own;
  Backend& backend = *own;
};

// As which weights are loaded.
BackendTraits traits_of_a_cpu();

// The first GPU of this machine, or null: there is none that can be used.
std::unique_ptr<Backend> open_gpu(const std::string& kernels = "auto");

// The layers with a window keep their rows in pages of so many tokens.
void set_window_pages(ModelSpec& spec, uint32_t page_tokens);

// A name as a test's parameter may have it: "evaluator-prompt" has a character that none may have.
std::string parameter_name(std::string_view name);

// Logits of every token of `tokens`, computed as runs of at most `chunk` tokens: [tokens, vocab].
std::vector<float> all_logits(BareModel& model, std::span<const TokenId> tokens, uint32_t chunk,
                              const KvFormats& formats = KvFormat::f32);

}  // namespace quire
