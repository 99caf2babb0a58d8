#include "hub/hub_name.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace quire {
namespace {

constexpr size_t kLongestName = 96, kLongestRevision = 128, kLongestPath = 400, kLongestPart = 230;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// One half of a repository's name, as the hub allows them.
bool is_name_part(std::string_view part) {
  if (part.empty() || part.size() > kLongestName) return false;
  if (part.find("..") != part.npos || part.find("--") != part.npos) return false;
  for (const char c : {part.front(), part.back()})
    if (c == '.' || c == '-') return false;
  return std::ranges::all_of(
      part, [](char c) { return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.'; });
}

bool is_repo(std::string_view repo) {
  const size_t slash = repo.find('/');
  if (slash == repo.npos) return is_name_part(repo);
  return is_name_part(repo.substr(0, slash)) && is_name_part(repo.substr(slash + 1));
}

}  // namespace

bool is_commit_hash(std::string_view text) {
  return text.size() == 40 &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kLongestPath) return false;
  for (const char c : path)
    if (c <= ' ' || c > '~' || c == '\\' || c == '"' || c == ':') return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part.front() == '.' || part.size() > kLongestPart) return false;
    begin = end + 1;
  }
  return true;
}

HubName HubName::parse(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("hf:")) rest.remove_prefix(3);
  HubName name;
  if (const size_t colon = rest.find(':'); colon != rest.npos) {
    name.which = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    if (!is_safe_path(name.which))
      throw Error("'{}': after the colon stands a type such as Q4_K_M, or a file of the repository", text);
  }
  if (const size_t at = rest.find('@'); at != rest.npos) {
    name.revision = rest.substr(at + 1);
    rest = rest.substr(0, at);
    if (!is_safe_path(name.revision) || name.revision.size() > kLongestRevision)
      throw Error("'{}': after the @ stands a branch, a tag or a commit", text);
  }
  if (!is_repo(rest))
    throw Error(
        "'{}' is not the name of a model on the hub; one looks like hf:org/name, hf:org/name:Q4_K_M or "
        "hf:org/name@revision",
        text);
  name.repo = rest;
  return name;
}

std::string HubName::text() const {
  std::string text = "hf:" + repo;
  if (revision != "main") text += "@" + revision;
  if (!which.empty()) text += ":" + which;
  return text;
}

std::string HubName::folder() const {
  std::string folder = "models--" + repo;
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  return folder;
}

bool HubName::is_commit() const {
  return is_commit_hash(revision);
}

std::optional<HubName> plain_hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string_view repo = std::string_view(text).substr(0, text.find_first_of(":@"));
  if (slash == std::string::npos || slash >= repo.size() || !is_repo(repo)) return {};
  // Whoever mistypes the name of a file has a folder where it should be, or its ending.
  std::error_code ignored;
  if (std::filesystem::exists(text, ignored) || std::filesystem::exists(text.substr(0, slash), ignored))
    return {};
  for (const char* ending : {".gguf", ".safetensors", ".json", ".bin"})
    if (repo.ends_with(ending)) return {};
  return HubName::parse(text);
}

}  // namespace quire
