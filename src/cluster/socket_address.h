#pragma once

#include <cstdint>
#include <string>

namespace quire {

// Who can reach a socket that is bound there: programs of this machine, or others too. Throws Error if it is not of the form
// tcp://HOST:PORT or ipc://PATH.
enum class Reach : uint8_t { this_machine, others };
Reach reach_of(const std::string& address);

}  // namespace quire
