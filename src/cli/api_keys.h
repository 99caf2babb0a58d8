#pragma once

#include <string>
#include <vector>

namespace quire::cli {

// The keys in a file: one a line, spaces around it left out; empty lines and those that begin with # are none. Throws Error if
// it cannot be read or has none. One that others than its owner may read is used, and a warning says so.
std::vector<std::string> read_api_keys(const std::string& path);

// From options, a file (if any) and the environment, in that order and each once. Throws Error.
std::vector<std::string> gather_api_keys(const std::vector<std::string>& options, const std::string& file);

}  // namespace quire::cli
