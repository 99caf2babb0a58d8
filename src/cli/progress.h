#pragma once

#include <cstddef>
#include <string>

namespace quire::cli {

// A line on the terminal that says how far long work has come; nothing where stderr is not a terminal.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress() { clear(); }
  void update(size_t done, size_t total);
  void clear();  // takes the line away

 private:
  std::string what_;
  int shown_percent_ = -1;
};

}  // namespace quire::cli
