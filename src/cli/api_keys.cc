#include "cli/api_keys.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/error.h"

namespace quire::cli {
namespace {

constexpr size_t kMostKeys = 4096, kLongestLine = 4096;  // every request is compared with all of them

std::string trimmed(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
}

// A warning and no more: the secrets of containers are often readable by all inside.
void warn_if_others_may_read(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if ((status.st_mode & (S_IRGRP | S_IROTH)) != 0)
    fmt::print(stderr, "warning: others than its owner may read the keys in {}: chmod 600 {}\n", path, path);
}

}  // namespace

std::vector<std::string> read_api_keys(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error("cannot open {}, the file of --api-key-file", path);
  warn_if_others_may_read(path);
  std::vector<std::string> keys;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    const std::string key = trimmed(line);
    if (key.empty() || key.front() == '#') continue;
    if (key.size() > kLongestLine || keys.size() == kMostKeys)
      throw Error("{}, line {}: a file may have {} keys of {} bytes", path, number, kMostKeys, kLongestLine);
    keys.push_back(key);
  }
  if (file.bad()) throw Error("cannot read {}, the file of --api-key-file", path);
  if (keys.empty())
    throw Error("{} has no key: one a line is wanted; a server without keys has no --api-key-file", path);
  return keys;
}

std::vector<std::string> gather_api_keys(const std::vector<std::string>& options, const std::string& file) {
  std::vector<std::string> all = options;
  if (!file.empty()) {
    for (std::string& key : read_api_keys(file)) all.push_back(std::move(key));
  }
  if (const char* key = std::getenv("QUIRE_API_KEY"); key != nullptr && *key != '\0') all.emplace_back(key);
  std::vector<std::string> once;
  for (std::string& key : all) {
    if (key.empty()) throw Error("an API key must not be empty");
    if (std::ranges::find(once, key) == once.end()) once.push_back(std::move(key));
  }
  return once;
}

}  // namespace quire::cli
