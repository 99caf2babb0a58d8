#include "engine/loaded_model.h"

#include <algorithm>

#include "base/error.h"
#include "model/divide.h"
#include "model/model_identity.h"
#include "model/refusal.h"

namespace quire {

namespace {

ModelSpec placed_spec(const ModelFile& file, const LoadOptions& options) {
  ModelSpec spec = read_model_spec(file, {.context = options.context});
  place(spec, options.placement);
  if (options.ranks) divide(spec, options.ranks->place());
  return spec;
}

std::unique_ptr<Backend> backend_for(const ModelFile& file, const ModelSpec& spec,
                                     const LoadOptions& options) {
  auto backend = is_split(spec) ? open_split_backend(options.choice()) : open_backend(options.choice());
  const std::string refusal = refusal_of(file, spec, backend->traits());
  if (!refusal.empty()) throw Error("{}", refusal);
  return backend;
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, const LoadOptions& options)
    : ranks_(options.ranks),
      file_(open_model_file(path)),
      spec_(placed_spec(*file_, options)),
      backend_(backend_for(*file_, spec_, options)),
      weights_(load_weights(file_, spec_, backend_->traits())),
      text_(std::make_unique<ModelText>(load_model_text(*file_))) {
  prepare_weights(weights_, *backend_);
  if (text_->tokenizer.size() > spec_.vocab) {
    throw Error("{}: the tokenizer has {} tokens, but the model has rows for {} only", path,
                text_->tokenizer.size(), spec_.vocab);
  }
}

EngineModel LoadedModel::engine_model() const {
  return {.spec = &spec_,
          .weights = &weights_,
          .backend = backend_.get(),
          .tokenizer = &text_->tokenizer,
          .end_tokens = text_->end_tokens,
          .repeat_request = text_->repeat_request(),
          .ranks = ranks_.get()};
}

KvIdentity LoadedModel::kv_identity() const {
  return {.model_name = spec_.name.empty() ? spec_.architecture : spec_.name,
          .model = model_identity(*file_),
          .positions = positions_identity(spec_),
          .kernels = kernels()};
}

// Where NVFP4 is multiplied in four bits it has other bits than it had as bf16.
std::string LoadedModel::kernels() const {
  const bool is_host = backend_->traits().memory == MemoryKind::host || is_split(spec_);
  const bool has_nvfp4 = std::ranges::count(file_->tensors(), DType::nvfp4, &TensorEntry::dtype) > 0;
  return backend_->traits().kernels + placement_mark(spec_) + (is_host && has_nvfp4 ? " nvfp4" : "");
}

}  // namespace quire
