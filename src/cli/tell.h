#pragma once

#include <functional>
#include <string>

namespace quire::cli {

// Says a sentence that nobody asked for and somebody should know: on stderr, unless whoever opens a model on this thread listens.
void tell(const std::string& sentence);
bool is_listened_to();

// Takes what is told on this thread, as long as it lives.
class Listening {
 public:
  explicit Listening(std::function<void(const std::string&)> listener);
  ~Listening();
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  std::function<void(const std::string&)> listener_;
  const std::function<void(const std::string&)>* before_;
};

}  // namespace quire::cli
