#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::grammar {

// Texts of a `format` of JSON Schema, as a pattern for all of the text: never more than the format allows, sometimes less (years of
// four digits, host names of at most four labels and no Punycode). Nothing for a name that no draft knows, which says nothing. Throws Error for one
// that is known and not supported.
std::optional<std::string> format_pattern(std::string_view format);

}  // namespace quire::grammar
