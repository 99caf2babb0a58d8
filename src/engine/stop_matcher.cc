#include "engine/stop_matcher.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace quire {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(const std::string& text) {
  if (matched_) return {};
  held_ += text;
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at >= match) continue;
    match = at;
    match_ = stop;
  }
  if (match != std::string::npos) {
    matched_ = true;
    held_.resize(match);
    return std::exchange(held_, {});
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) keep = length;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopMatcher::finish() {
  return matched_ ? std::string() : std::exchange(held_, {});
}

}  // namespace quire
