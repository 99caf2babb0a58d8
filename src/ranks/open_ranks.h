#pragma once

#include <memory>

#include "ranks/ranks.h"

namespace quire {

// The processes that mpirun has started with this one; null: it is alone, and nothing of MPI is touched. Throws Error if there are others
// and this program knows no MPI. Once in a process, on the thread that lets go of it in the end.
std::shared_ptr<Ranks> join_ranks();

// How many mpirun says there are; 1: this one alone.
uint32_t started_ranks();
// Those of them that are on this machine.
uint32_t ranks_here();
// Of the CPUs that this process may use, how many are its own to compute with: all of them if it is alone or mpirun has bound it to
// them, else its part of what ranks on one machine have together.
uint32_t own_cpus(uint32_t usable);

}  // namespace quire
