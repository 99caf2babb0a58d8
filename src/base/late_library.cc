#include "base/late_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace quire {

#ifdef QUIRE_STATIC

LateLibrary::LateLibrary(const std::string& file, const std::string&) {
  throw Error(
      "{} is wanted, but this program was linked statically and opens no libraries: use one that was not",
      file);
}

void* LateLibrary::address_of(const char*) const {
  return nullptr;
}

#else

LateLibrary::LateLibrary(const std::string& file, const std::string& remedy) : file_(file), remedy_(remedy) {
  // Its threads may outlive whoever opened it: it is never unmapped.
  handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle_ != nullptr) return;
  const char* why = ::dlerror();
  throw Error("{} cannot be opened ({}): {}", file, why == nullptr ? "nobody says why" : why, remedy);
}

void* LateLibrary::address_of(const char* name) const {
  if (void* address = ::dlsym(handle_, name)) return address;
  throw Error("{} has no function {}: {}", file_, name, remedy_);
}

#endif

}  // namespace quire
