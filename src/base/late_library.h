#pragma once

#include <string>

namespace quire {

// A shared library that is opened when it is wanted, so that the program starts where it is missing. Once open it stays so until
// the process ends. Any thread.
class LateLibrary {
 public:
  // `file`: as the loader knows it, such as libz.so.1. Throws Error if it cannot be opened, which ends with `remedy`: what to do
  // then.
  LateLibrary(const std::string& file, const std::string& remedy);

  // A function of this type. Throws Error if the library has none of this name. REQUIRES: it is of this type.
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  std::string file_, remedy_;
  void* handle_ = nullptr;
};

}  // namespace quire
