#include "cli/progress.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <unistd.h>

namespace quire::cli {

Progress::Progress(std::string what, size_t total)
    : what_(std::move(what)), total_(std::max<size_t>(total, 1)) {
  update(0);
}

Progress::~Progress() {
  if (shown_percent_ >= 0) std::fprintf(stderr, "\r\033[K");
}

void Progress::update(size_t done) {
  static const bool is_terminal = ::isatty(STDERR_FILENO) != 0;
  const int percent = int(100.0 * double(done) / double(total_));
  if (!is_terminal || percent == shown_percent_) return;
  shown_percent_ = percent;
  std::fprintf(stderr, "\r\033[K%s: %d %%", what_.c_str(), percent);
  std::fflush(stderr);
}

}  // namespace quire::cli
