#pragma once

#include <cstddef>
#include <string>

namespace quire::cuda {

// What it means for those who go on that a call of CUDA's runtime failed.
enum class Failure {
  of_call,   // it concerns what was asked for: the next call may succeed
  memory,    // there was not enough; the same
  unusable,  // there is no device that could be used, or no driver for it
  lost,      // the device has failed: every call from now on will say the same
};

// By the runtime's own numbers, which never change: so this needs no toolkit.
Failure failure_of(int code);

struct FailedCall {
  int code = 0;
  std::string words;  // CUDA's own
  std::string call;
  std::string place;  // in the source
};
// For a person: what happened, and what to do.
std::string sentence_for(const FailedCall& failed);

// The same of memory that could not be had, with what there is.
struct MissingMemory {
  size_t wanted = 0, free = 0, total = 0;  // bytes; total 0: nobody knows
};
std::string sentence_for(const MissingMemory& missing);

// Why a driver that knows CUDA up to `driver` cannot be used by a program that was built with `runtime`; both as CUDA writes
// versions, 13000 for 13.0. A driver of 0 is none.
std::string sentence_for_driver(int driver, int runtime);

}  // namespace quire::cuda
