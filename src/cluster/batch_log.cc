#include "cluster/batch_log.h"

#include <utility>

namespace quire {

void BatchLog::add(std::string message) {
  messages_.push_back(std::move(message));
  bytes_ += messages_.back().size();
  ++end_;
  while (messages_.size() > 1 && (messages_.size() > most_batches_ || bytes_ > most_bytes_)) {
    bytes_ -= messages_.front().size();
    messages_.pop_front();
  }
}

}  // namespace quire
