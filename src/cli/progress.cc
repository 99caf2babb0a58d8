#include "cli/progress.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <unistd.h>

namespace quire::cli {

Progress::Progress(std::string what) : what_(std::move(what)) {
  update(0, 1);
}

void Progress::update(size_t done, size_t total) {
  static const bool is_terminal = ::isatty(STDERR_FILENO) != 0;
  const int percent = int(100.0 * double(done) / double(std::max<size_t>(total, 1)));
  if (!is_terminal || percent == shown_percent_) return;
  shown_percent_ = percent;
  std::fprintf(stderr, "\r\033[K%s: %d %%", what_.c_str(), percent);
  std::fflush(stderr);
}

void Progress::clear() {
  if (shown_percent_ >= 0) std::fprintf(stderr, "\r\033[K");
  shown_percent_ = -1;
}

}  // namespace quire::cli
