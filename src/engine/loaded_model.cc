#include "engine/loaded_model.h"

#include "base/error.h"
#include "model/model_identity.h"

namespace quire {

LoadedModel::LoadedModel(const std::string& path, const LoadOptions& options)
    : file_(open_model_file(path)),
      spec_(read_model_spec(*file_, {.context = options.context})),
      weights_(load_weights(file_, spec_)),
      backend_(open_backend(options.choice())),
      text_(std::make_unique<ModelText>(load_model_text(*file_))) {
  check_computable(spec_, backend_->traits());
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
          .repeat_request = text_->repeat_request()};
}

KvIdentity LoadedModel::kv_identity() const {
  return {.model_name = spec_.name.empty() ? spec_.architecture : spec_.name,
          .model = model_identity(*file_),
          .positions = positions_identity(spec_),
          .kernels = backend_->traits().kernels};
}

}  // namespace quire
