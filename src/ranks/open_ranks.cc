#include "ranks/open_ranks.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace quire {
namespace {

// Open MPI's mpirun says so to all that it starts.
uint32_t told_count(const char* name) {
  const char* told = std::getenv(name);
  if (told == nullptr) return 1;
  const std::string_view text = told;
  uint32_t count = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  return problem == std::errc() && end == text.data() + text.size() && count > 0 ? count : 1;
}

}  // namespace

uint32_t started_ranks() {
  return told_count("OMPI_COMM_WORLD_SIZE");
}

uint32_t ranks_here() {
  return told_count("OMPI_COMM_WORLD_LOCAL_SIZE");
}

uint32_t own_cpus(uint32_t usable) {
  const bool is_bound = std::getenv("OMPI_MCA_orte_bound_at_launch") != nullptr;
  return started_ranks() == 1 || is_bound ? usable : std::max(1u, usable / ranks_here());
}

}  // namespace quire
