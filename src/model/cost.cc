#include "model/cost.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire {

StepCost& StepCost::operator*=(double factor) {
  int8_ops *= factor;
  bf16_ops *= factor;
  f32_ops *= factor;
  weight_bytes *= factor;
  kv_bytes *= factor;
  return *this;
}

StepCost& StepCost::operator+=(const StepCost& other) {
  int8_ops += other.int8_ops;
  bf16_ops += other.bf16_ops;
  f32_ops += other.f32_ops;
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  return *this;
}

CostModel::CostModel(const ModelSpec& spec, const Weights& weights, const Backend& backend)
    : spec_(spec), weights_(weights), backend_(backend) {}

StepCost CostModel::step(const StepShape& shape, const KvLayout& layout) const {
  StepCost cost = products(shape);
  return cost += attention(shape, layout);
}

StepCost CostModel::products(const StepShape& shape) const {
  StepCost cost;
  const double rows = double(shape.sequences) * shape.tokens;
  for (const LayerWeights& layer : weights_.layers) {
    for (const Weight* weight : {&layer.query, &layer.key, &layer.value, &layer.attention_out}) {
      add_product(cost, *weight, rows);
    }
    if (spec_.experts.count > 0) {
      add_product(cost, layer.router, rows);
      add_experts(cost, layer, rows);
    } else {
      for (const Weight* weight : {&layer.gate, &layer.up, &layer.down}) add_product(cost, *weight, rows);
    }
  }
  if (shape.logit_rows > 0) add_product(cost, weights_.head, shape.logit_rows);
  return cost;
}

StepCost CostModel::attention(const StepShape& shape, const KvLayout& layout) const {
  CHECK(layout.places.size() == weights_.layers.size());
  StepCost cost;
  for (const KvLayout::Place place : layout.places)
    add_attention(cost, layout.groups[place.group].layers[place.slot], shape);
  return cost;
}

void CostModel::add_ops(StepCost& cost, DType weight, double ops) const {
  const ActivationForm form = backend_.form_for(weight);
  if (form == ActivationForm::f32) {
    cost.f32_ops += ops;
  } else if (form == ActivationForm::bf16) {
    cost.bf16_ops += ops;
  } else {
    cost.int8_ops += ops;
  }
}

void CostModel::add_product(StepCost& cost, const Weight& weight, double rows) const {
  if (!weight) return;
  const MatrixView& view = weight.view;
  add_ops(cost, view.dtype, 2 * double(view.rows) * double(view.cols) * rows);
  cost.weight_bytes += double(view.bytes());
}

void CostModel::add_experts(StepCost& cost, const LayerWeights& layer, double rows) const {
  const double count = spec_.experts.count;
  const double used = spec_.experts.used;
  // How many experts a step touches if every row chooses as it likes, all of them equally often.
  const double touched = count * (1 - std::pow(1 - used / count, rows));
  for (const Weight* weight : {&layer.gate, &layer.up, &layer.down}) {
    if (!*weight) continue;
    const MatrixView& view = weight->view;  // of all experts
    add_ops(cost, view.dtype, 2 * double(view.rows) / count * double(view.cols) * used * rows);
    cost.weight_bytes += double(view.bytes()) * touched / count;
  }
}

void CostModel::add_attention(StepCost& cost, const KvLayerLayout& layer, const StepShape& shape) const {
  const uint64_t window = layer.shape.window == 0 ? ~uint64_t(0) : layer.shape.window;
  const uint64_t end = uint64_t(shape.depth) + shape.tokens;
  double visible = 0;  // pairs of a query's token and a cached one
  for (uint64_t position = shape.depth; position < end; ++position) {
    visible += double(std::min(position + 1, window));
  }
  const double per_pair = 2 * double(spec_.heads) * (layer.shape.key_dim + layer.shape.value_dim);
  cost.f32_ops += shape.sequences * visible * per_pair;
  // From the first row that the first token sees to the last token's own.
  const uint64_t first = uint64_t(shape.depth) + 1 - std::min(uint64_t(shape.depth) + 1, window);
  const double row_bytes = double(layer.key_row_bytes + layer.value_row_bytes) * layer.shape.kv_heads;
  cost.kv_bytes += shape.sequences * double(end - first) * row_bytes;
}

}  // namespace quire
