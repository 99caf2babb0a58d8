#include "cli/pull_line.h"

#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/tell.h"
#include "hub/transfer_words.h"

namespace quire::cli {
namespace {

constexpr std::chrono::seconds kRateOver(5);
constexpr std::chrono::milliseconds kBetweenLooks(200);

size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

PullLine::PullLine() : is_terminal_(!is_listened_to() && ::isatty(STDERR_FILENO) != 0) {}

void PullLine::say(const std::string& sentence) {
  clear();
  tell(sentence);
}

void PullLine::progress(uint64_t done, uint64_t total, uint64_t) {
  const Clock::time_point now = Clock::now();
  if (!is_terminal_ || (!seen_.empty() && done < total && now - seen_.back().at < kBetweenLooks)) return;
  // A file that was begun again has less than before.
  if (!seen_.empty() && done < seen_.back().done) seen_.clear();
  seen_.push_back({now, done});
  while (seen_.size() > 2 && now - seen_.front().at > kRateOver) seen_.pop_front();
  const double seconds = std::chrono::duration<double>(now - seen_.front().at).count();
  const double rate = seconds > 0.1 ? double(done - seen_.front().done) / seconds : 0;
  std::fprintf(stderr, "\r\033[K%s", progress_line(done, total, rate, terminal_columns() - 1).c_str());
  std::fflush(stderr);
  shown_ = true;
}

void PullLine::clear() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace quire::cli
