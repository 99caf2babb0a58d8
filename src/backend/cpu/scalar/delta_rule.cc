#include "backend/cpu/delta_rule.h"

#include "backend/cpu/scalar/matmul.h"

namespace quire::scalar {

void delta_rule(const DeltaRuleArgs& args) {
  run_delta_rule(args);
}

}  // namespace quire::scalar
