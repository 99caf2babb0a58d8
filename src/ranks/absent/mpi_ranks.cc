#include "base/error.h"
#include "ranks/open_ranks.h"

namespace quire {

std::shared_ptr<Ranks> join_ranks() {
  if (started_ranks() == 1) return nullptr;
  throw Error(
      "mpirun has started {} of these, but this quire was built without MPI: install libopenmpi-dev and "
      "build "
      "again",
      started_ranks());
}

}  // namespace quire
