#include "cli/tell.h"

#include <cstdio>
#include <utility>

namespace quire::cli {
namespace {

thread_local const std::function<void(const std::string&)>* current = nullptr;

}  // namespace

void tell(const std::string& sentence) {
  if (current != nullptr)
    (*current)(sentence);
  else
    std::fprintf(stderr, "%s\n", sentence.c_str());
}

bool is_listened_to() {
  return current != nullptr;
}

Listening::Listening(std::function<void(const std::string&)> listener)
    : listener_(std::move(listener)), before_(std::exchange(current, &listener_)) {}

Listening::~Listening() {
  current = before_;
}

}  // namespace quire::cli
