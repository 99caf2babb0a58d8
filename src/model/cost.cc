#include "model/cost.h"

#include <cmath>
#include <utility>

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

CostModel::CostModel(const Weights& weights, const Backend& backend) : weights_(weights), backend_(backend) {}

StepCost CostModel::step(const StepShape& shape, const KvLayout& layout) const {
  StepCost cost = products(shape);
  return cost += attention(shape, layout);
}

StepCost CostModel::products(const StepShape& shape) const {
  StepCost cost;
  const double rows = double(shape.sequences) * shape.tokens;
  for (const BlockWeights& block : weights_.blocks) {
    for (size_t i = 0; i < block.roles.size(); ++i) {
      const Role& role = block.roles[i];
      if (role.kind == RoleKind::product)
        add_product(cost, block.side, block.weights[i], rows, {double(role.stacked()), double(role.used)});
    }
  }
  if (shape.logit_rows > 0) add_product(cost, Side::device, weights_.head, shape.logit_rows, {});
  return cost;
}

StepCost CostModel::attention(const StepShape& shape, const KvLayout& layout) const {
  StepCost cost;
  std::vector<const KvLayerLayout*> streams;
  for (const BlockWeights& block : weights_.blocks) {
    CHECK(block.layer < layout.places.size());
    streams.clear();
    for (const KvLayout::Place& place : std::span(layout.places[block.layer]).subspan(block.first_stream))
      streams.push_back(&layout.at(place));
    cost += block.block->cost(shape, streams);
  }
  if (backend_.traits().attention == ActivationForm::bf16) cost.bf16_ops += std::exchange(cost.f32_ops, 0);
  return cost;
}

void CostModel::add_product(StepCost& cost, Side side, const Weight& weight, double rows,
                            const Experts& experts) const {
  if (!weight) return;
  const MatrixView& view = weight.view;  // of all experts
  const double ops = 2 * double(view.rows) / experts.count * double(view.cols) * experts.used * rows;
  const ActivationForm form = backend_.side(side).form_for(view.dtype);
  if (form == ActivationForm::f32) {
    cost.f32_ops += ops;
  } else if (form == ActivationForm::bf16) {
    cost.bf16_ops += ops;
  } else {
    cost.int8_ops += ops;
  }
  // How many experts a step touches if every row chooses as it likes, all of them equally often.
  const double touched =
      experts.count == 1 ? 1 : experts.count * (1 - std::pow(1 - experts.used / experts.count, rows));
  cost.weight_bytes += double(view.bytes()) * touched / experts.count;
}

}  // namespace quire
