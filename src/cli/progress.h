#pragma once

#include <cstddef>
#include <string>

namespace quire::cli {

// A line on the terminal that says how far long work has come; nothing where stderr is not a terminal.
class Progress {
 public:
  Progress(std::string what, size_t total);
  ~Progress();  // clears the line
  void update(size_t done);

 private:
  std::string what_;
  size_t total_;
  int shown_percent_ = -1;
};

}  // namespace quire::cli
