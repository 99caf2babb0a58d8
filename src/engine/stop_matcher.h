#pragma once

#include <string>
#include <vector>

namespace quire {

// Finds the first of several stop strings in a text that comes piece by piece, and never lets a part of one
// through.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  // What may be shown of the text so far and was not shown before. After a match nothing more comes.
  std::string push(const std::string& text);
  std::string finish();  // what was held back in case a stop string followed

  bool matched() const { return matched_; }
  const std::string& match() const { return match_; }  // the stop string that was found

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the longest end of the text that a stop string may begin with
  bool matched_ = false;
  std::string match_;
};

}  // namespace quire
