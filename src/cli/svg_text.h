#pragma once

#include <string>
#include <string_view>

namespace quire::cli {

// A text from outside, such as a model's name, as it may stand in an SVG file.
inline std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      result += c;
    }
  }
  return result;
}

}  // namespace quire::cli
