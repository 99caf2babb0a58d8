#pragma once

#include <memory>

#include "backend/backend.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace quire {

// The layer of a file that predicts one token more than its model does: a model of one layer, which joins the embedding of a
// token with what the model made of the token before. Embedding and head are the model's.
struct Predictor {
  ModelSpec spec;
  Weights weights;
};

// Throws Error if the file has none, or what it has is not whole.
Predictor load_predictor(std::shared_ptr<const ModelFile> file, const SpecOptions& options,
                         const Weights& model, Backend& backend);

}  // namespace quire
