#include "hub/hub_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <unistd.h>

#include "base/error.h"
#include "base/random_bytes.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostEntries = 100'000;  // in one folder of the cache

void make_folder(const fs::path& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (!fs::is_directory(folder, problem))
    throw Error("cannot make the folder {}: {}", folder.string(),
                problem ? problem.message() : "something else is there");
}

std::string read_commit(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(41, '\0');
  file.read(text.data(), 41);
  text.resize(size_t(file.gcount()));
  if (text.size() == 41 && text.back() == '\n') text.pop_back();
  return is_commit_hash(text) ? text : "";
}

// A name beside another that nobody else uses.
fs::path beside(const fs::path& path) {
  std::string name = path.filename().string() + ".";
  for (const std::byte byte : random_bytes<8>()) name += fmt::format("{:02x}", uint8_t(byte));
  return path.parent_path() / name;
}

}  // namespace

fs::path HubCache::blob(const HubName& name, const RepoFile& file) const {
  return repo(name) / "blobs" / file.digest;
}

fs::path HubCache::snapshot(const HubName& name, const std::string& commit) const {
  return repo(name) / "snapshots" / commit;
}

fs::path HubCache::lock(const HubName& name, const RepoFile& file) const {
  return locks(name) / (file.digest + ".lock");
}

std::vector<HubName> HubCache::repos() const {
  std::vector<HubName> names;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(folder_, problem)) {
    std::string folder = entry.path().filename().string();
    if (!folder.starts_with("models--") || !entry.is_directory(problem)) continue;
    folder.erase(0, 8);
    if (const size_t at = folder.find("--"); at != std::string::npos) folder.replace(at, 2, "/");
    try {
      names.push_back(HubName::parse(folder));
    } catch (const Error&) {
      // a folder of somebody else's
    }
    if (names.size() > kMostEntries) break;
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> HubCache::revisions(const HubName& name) const {
  std::vector<std::string> revisions;
  std::error_code problem;
  const fs::path refs = repo(name) / "refs";
  for (fs::recursive_directory_iterator entry(refs, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    const std::string revision = entry->path().lexically_relative(refs).string();
    if (is_safe_path(revision) && revisions.size() < kMostEntries) revisions.push_back(revision);
  }
  std::ranges::sort(revisions);
  return revisions;
}

std::vector<std::string> HubCache::commits(const HubName& name) const {
  std::vector<std::string> commits;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(repo(name) / "snapshots", problem)) {
    const std::string commit = entry.path().filename().string();
    if (is_commit_hash(commit) && commits.size() < kMostEntries) commits.push_back(commit);
  }
  std::ranges::sort(commits);
  return commits;
}

std::optional<std::string> HubCache::commit(const HubName& name) const {
  const std::string commit =
      name.is_commit() ? name.revision : read_commit(repo(name) / "refs" / name.revision);
  std::error_code ignored;
  if (commit.empty() || !fs::is_directory(snapshot(name, commit), ignored)) return {};
  return commit;
}

std::vector<RepoFile> HubCache::files(const HubName& name, const std::string& commit) const {
  std::vector<RepoFile> files;
  const fs::path root = snapshot(name, commit);
  std::error_code problem;
  for (fs::recursive_directory_iterator entry(root, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    std::error_code none;
    if (!entry->is_regular_file(none)) continue;  // follows links: one without its blob is none
    const std::string path = entry->path().lexically_relative(root).string();
    const uintmax_t bytes = fs::file_size(entry->path(), none);
    if (none || !is_safe_path(path) || files.size() >= kMostEntries) continue;
    const fs::path target =
        fs::is_symlink(entry->path(), none) ? fs::read_symlink(entry->path(), none) : fs::path();
    files.push_back({.path = path, .bytes = uint64_t(bytes), .digest = target.filename().string()});
  }
  std::ranges::sort(files, {}, &RepoFile::path);
  return files;
}

bool HubCache::has_blob(const HubName& name, const RepoFile& file) const {
  std::error_code problem;
  const fs::path path = blob(name, file);
  return fs::is_regular_file(path, problem) && fs::file_size(path, problem) == file.bytes && !problem;
}

void HubCache::make_snapshot(const HubName& name, const std::string& commit) const {
  make_folder(repo(name) / "blobs");
  make_folder(repo(name) / "refs");
  make_folder(snapshot(name, commit));
}

void HubCache::link(const HubName& name, const std::string& commit, const RepoFile& file) const {
  const fs::path path = snapshot(name, commit) / file.path;
  make_folder(path.parent_path());
  // Relative, so that the cache can be moved: up to the repository's folder, then down to the blob.
  fs::path target = fs::path("..") / "..";
  for (const char c : file.path)
    if (c == '/') target /= "..";
  target = target / "blobs" / file.digest;
  std::error_code ignored;
  if (fs::is_symlink(path, ignored) && fs::read_symlink(path, ignored) == target) return;
  const fs::path fresh = beside(path);
  if (::symlink(target.c_str(), fresh.c_str()) != 0)
    throw Error("cannot make the link {}: {}", path.string(), std::strerror(errno));
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    throw Error("cannot make the link {}: {}", path.string(), std::strerror(error));
  }
}

void HubCache::write_revision(const HubName& name, const std::string& commit) const {
  if (name.is_commit()) return;
  const fs::path path = repo(name) / "refs" / name.revision;
  if (read_commit(path) == commit) return;
  make_folder(path.parent_path());
  const fs::path fresh = beside(path);
  std::ofstream file(fresh, std::ios::binary);
  file << commit;
  file.close();
  if (!file || ::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    throw Error("cannot write {}: {}", path.string(), std::strerror(error));
  }
}

}  // namespace quire
