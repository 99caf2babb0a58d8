#include "cli/house.h"

#include <filesystem>
#include <string_view>

#include <dlfcn.h>

#include "base/error.h"

namespace quire::cli {
namespace {

std::filesystem::path folder_of_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : program.parent_path();
}

// Of what this code is in: the program, or the library in somebody else's.
std::filesystem::path own_folder() {
#ifndef QUIRE_STATIC
  Dl_info place{};
  std::error_code error;
  if (::dladdr(reinterpret_cast<void*>(&house_path), &place) != 0 && place.dli_fname != nullptr &&
      std::string_view(place.dli_fname).find(".so") != std::string_view::npos) {
    const auto library = std::filesystem::canonical(place.dli_fname, error);
    if (!error) return library.parent_path();
  }
#endif
  return folder_of_program();
}

std::filesystem::path find(const std::string& name) {
  // Beside it as it is built or packed; of bin, lib and lib/ARCHITECTURE as it is installed.
  for (const char* place : {"house", "../share/quire/house", "../../share/quire/house"}) {
    const std::filesystem::path path = own_folder() / place / name;
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

}  // namespace

std::string house_path(const std::string& name) {
  const std::filesystem::path path = find(name);
  if (!path.empty()) return path.string();
  throw Error("{} of the house model is not beside quire (looked in {}/house); give a model file with -m",
              name, own_folder().string());
}

bool house_has(const std::string& name) {
  return !find(name).empty();
}

}  // namespace quire::cli
