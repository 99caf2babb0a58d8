#pragma once

#include <string>

namespace quire::cli {

// Where a file of the house model is: in the folder `house` beside the program, or in share/quire/house of the place
// it is installed in. Throws Error if it is in neither.
std::string house_path(const std::string& name);
bool house_has(const std::string& name);

}  // namespace quire::cli
