#pragma once

#include <string_view>

namespace quire {

// A file of the page, compiled into the program.
struct WebFile {
  std::string_view name;
  std::string_view type;
  std::string_view bytes;
};

// Null if there is none of that name.
const WebFile* find_web_file(std::string_view name);

}  // namespace quire
