#pragma once

#include <chrono>
#include <deque>
#include <string>

#include "hub/pull.h"

namespace quire::cli {

// How a pull goes, on stderr: its sentences, and on a terminal a line with how far it is, how fast, and how long it will
// take.
class PullLine : public PullWatcher {
 public:
  PullLine();
  ~PullLine() override { clear(); }
  void say(const std::string& sentence) override;
  void progress(uint64_t done, uint64_t total, uint64_t there) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Seen {
    Clock::time_point at;
    uint64_t done;
  };
  void clear();

  bool is_terminal_;
  bool shown_ = false;
  std::deque<Seen> seen_;  // of the last seconds: the rate is theirs
};

}  // namespace quire::cli
