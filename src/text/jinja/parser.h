#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace quire::jinja {

// Throws Error, naming the line, for what is not a template, or one that nests too deep to be evaluated
// safely.
Block parse(std::string_view source);

}  // namespace quire::jinja
