#pragma once

#include "backend/backend.h"
#include "kv/layout/kv_layout.h"
#include "model/step_cost.h"
#include "model/weights.h"

namespace quire {

// Counts steps of one model on one backend. Both must outlive it.
class CostModel {
 public:
  CostModel(const Weights& weights, const Backend& backend);

  // `layout` says how many bytes a cached row has.
  StepCost step(const StepShape& shape, const KvLayout& layout) const;
  // Its two parts: the weights' matrices, which read no cache, and attention, which reads nothing else.
  StepCost products(const StepShape& shape) const;
  StepCost attention(const StepShape& shape, const KvLayout& layout) const;

 private:
  // Adds a product that `rows` rows of activations take part in. Of several matrices each row uses so many.
  struct Experts {
    double count = 1, used = 1;
  };
  void add_product(StepCost& cost, Side side, const Weight& weight, double rows,
                   const Experts& experts) const;

  const Weights& weights_;
  const Backend& backend_;
};

}  // namespace quire
