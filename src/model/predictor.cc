#include "model/predictor.h"

#include <utility>

namespace quire {

Predictor load_predictor(std::shared_ptr<const ModelFile> file, const SpecOptions& options,
                         const Weights& model, Backend& backend) {
  Predictor predictor{.spec = read_predictor_spec(*file, options), .weights = {}};
  predictor.weights = load_weights(std::move(file), predictor.spec, backend.traits());
  prepare_weights(predictor.weights, backend);
  predictor.weights.embedding = model.embedding;
  predictor.weights.head = model.head;
  predictor.weights.head_bias = model.head_bias;
  return predictor;
}

}  // namespace quire
