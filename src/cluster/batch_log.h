#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

namespace quire {

// The last messages that were sent, for those who missed them. One thread.
class BatchLog {
 public:
  BatchLog(size_t batches, size_t bytes) : most_batches_(batches), most_bytes_(bytes) {}

  // The next after `end()`. The last is kept however large it is.
  void add(std::string message);
  uint64_t begin() const { return end_ - messages_.size(); }  // the number of the first that is kept
  uint64_t end() const { return end_; }                       // of the next that will be added
  // REQUIRES: begin() <= number < end().
  const std::string& at(uint64_t number) const { return messages_[size_t(number - begin())]; }
  size_t bytes() const { return bytes_; }

 private:
  size_t most_batches_, most_bytes_;
  std::deque<std::string> messages_;
  uint64_t end_ = 0;
  size_t bytes_ = 0;
};

}  // namespace quire
