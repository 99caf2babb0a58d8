#include "cli/house.h"

#include <filesystem>

#include "base/error.h"

namespace quire::cli {
namespace {

std::filesystem::path program_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : program.parent_path();
}

std::filesystem::path find(const std::string& name) {
  for (const char* place : {"house", "../share/quire/house"}) {
    const std::filesystem::path path = program_folder() / place / name;
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

}  // namespace

std::string house_path(const std::string& name) {
  const std::filesystem::path path = find(name);
  if (!path.empty()) return path.string();
  throw Error(
      "{} of the house model is not beside the program (looked in {}/house); give a model file with -m", name,
      program_folder().string());
}

bool house_has(const std::string& name) {
  return !find(name).empty();
}

}  // namespace quire::cli
