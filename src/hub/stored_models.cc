#include "hub/stored_models.h"

#include <algorithm>
#include <map>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>

#include "base/error.h"
#include "hub/cache_lock.h"
#include "hub/ollama_store.h"
#include "hub/pull.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// The blobs that the snapshots of a repository lead to: digest -> the links that do.
using Holders = std::map<std::string, std::vector<fs::path>>;

Holders holders_of(const HubCache& cache, const HubName& name) {
  Holders holders;
  for (const std::string& commit : cache.commits(name)) {
    const fs::path root = cache.snapshot(name, commit);
    std::error_code problem;
    for (fs::recursive_directory_iterator entry(root, problem), end; !problem && entry != end;
         entry.increment(problem)) {
      std::error_code ignored;
      if (!entry->is_symlink(ignored)) continue;
      const std::string digest = fs::read_symlink(entry->path(), ignored).filename().string();
      // Only a name in blobs/ itself: a link may say anything.
      if (is_safe_path(digest)) holders[digest].push_back(entry->path());
    }
  }
  return holders;
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const std::string relative = path.lexically_relative(folder).string();
  return !relative.empty() && relative != "." && !relative.starts_with("..");
}

uint64_t bytes_of(const fs::path& path) {
  std::error_code problem;
  const uintmax_t bytes = fs::file_size(path, problem);
  return problem ? 0 : uint64_t(bytes);
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(folder, problem)) files.push_back(entry.path());
  return files;
}

// Blobs whose every link is among those that go; files of a snapshot that are no links go with it.
void add_blobs(const HubCache& cache, const HubName& name, const std::set<fs::path>& going,
               Removal& removal) {
  for (const auto& [digest, links] : holders_of(cache, name)) {
    const bool all = std::ranges::all_of(links, [&](const fs::path& link) { return going.contains(link); });
    const fs::path blob = cache.repo(name) / "blobs" / digest;
    std::error_code ignored;
    if (!all || !fs::is_regular_file(blob, ignored)) continue;
    removal.bytes += bytes_of(blob);
    removal.paths.push_back(blob);
  }
}

Removal remove_repo(const HubName& name, const HubCache& cache) {
  Removal removal;
  const fs::path folder = cache.repo(name);
  std::error_code problem;
  // A link to a folder elsewhere is not ours to empty.
  if (!fs::is_directory(fs::symlink_status(folder, problem)))
    throw Error("{} is not in {}", name.text(), cache.folder().string());
  for (const fs::path& blob : files_in(folder / "blobs")) removal.bytes += bytes_of(blob);
  removal.paths = {folder, cache.locks(name)};
  removal.locks = files_in(cache.locks(name));
  const size_t revisions = cache.commits(name).size();
  removal.what =
      fmt::format("{}{}", name.text(), revisions > 1 ? fmt::format(" in {} revisions", revisions) : "");
  return removal;
}

Removal remove_revision(const HubName& name, const std::string& commit, const HubCache& cache) {
  const fs::path snapshot = cache.snapshot(name, commit);
  Removal removal{.what = name.text()};
  std::set<fs::path> going;
  for (const auto& [digest, links] : holders_of(cache, name))
    for (const fs::path& link : links)
      if (is_below(link, snapshot)) going.insert(link);
  for (const std::string& revision : cache.revisions(name)) {
    HubName other = name;
    other.revision = revision;
    if (cache.commit(other) == commit) removal.paths.push_back(cache.repo(name) / "refs" / revision);
  }
  removal.paths.push_back(snapshot);
  add_blobs(cache, name, going, removal);
  return removal;
}

Removal remove_one(const HubName& name, const std::string& commit, const HubCache& cache) {
  const StoredModel model = choose_model(whole_models(cache, name, commit), name.which, 0, name.repo).model;
  Removal removal{.what = name.text()};
  std::set<fs::path> going;
  // Of a folder the weights; its config may serve others.
  for (const RepoFile& file : model.files)
    if (!model.folder || file.path.ends_with(".safetensors"))
      going.insert(cache.snapshot(name, commit) / file.path);
  removal.links.assign(going.begin(), going.end());
  add_blobs(cache, name, going, removal);
  return removal;
}

}  // namespace

int64_t last_used(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0;
  return std::max(int64_t(status.st_atime), int64_t(status.st_mtime));
}

std::vector<StoredEntry> stored_models(const HubPlaces& places) {
  std::vector<StoredEntry> entries;
  const HubCache cache(places.cache);
  for (const HubName& repo : cache.repos()) {
    std::set<std::string> told;
    // Branches and tags first: their names say more than the commits'.
    std::vector<std::string> revisions = cache.revisions(repo);
    std::ranges::stable_sort(revisions, {}, [](const std::string& revision) { return revision != "main"; });
    for (const std::string& commit : cache.commits(repo)) revisions.push_back(commit);
    for (const std::string& revision : revisions) {
      HubName name = repo;
      name.revision = revision;
      const std::optional<std::string> commit = cache.commit(name);
      if (!commit || !told.insert(*commit).second) continue;
      const std::vector<StoredModel> models = whole_models(cache, name, *commit);
      for (const StoredModel& model : models) {
        const bool label_is_its_own = std::ranges::count(models, model.label, &StoredModel::label) == 1;
        name.which = label_is_its_own && !model.label.empty() ? model.label : model.files[0].path;
        if (models.size() == 1 && (model.folder || model.label.empty())) name.which.clear();
        // A folder is as old as its weights: its config is read by whoever looks.
        const std::string path = path_in(cache, name, *commit, model);
        const std::string weights = (cache.snapshot(name, *commit) / model.files.back().path).string();
        entries.push_back({name.text(), path, model.bytes(), last_used(weights)});
      }
    }
  }
  for (const OllamaModel& model : OllamaStore(places.ollama).list())
    entries.push_back({model.name, model.path, model.bytes, last_used(model.path)});
  return entries;
}

Removal plan_removal(const HubName& name, bool whole_repo, const HubCache& cache) {
  Removal removal;
  if (whole_repo) return remove_repo(name, cache);
  const std::optional<std::string> commit = cache.commit(name);
  if (!commit) throw Error("{} is not in {}", name.text(), cache.folder().string());
  removal = name.which.empty() ? remove_revision(name, *commit, cache) : remove_one(name, *commit, cache);
  // What is left without a single file is not worth a folder.
  const auto goes = [&](const fs::path& blob) {
    return std::ranges::find(removal.paths, blob) != removal.paths.end();
  };
  if (std::ranges::all_of(files_in(cache.repo(name) / "blobs"), goes)) return remove_repo(name, cache);
  for (const fs::path& path : removal.paths)
    if (path.parent_path() == cache.repo(name) / "blobs")
      removal.locks.push_back(cache.locks(name) / (path.filename().string() + ".lock"));
  return removal;
}

void Removal::carry_out() const {
  for (const fs::path& lock : locks)
    if (CacheLock::is_held(lock))
      throw Error("{} is being fetched just now; wait until that is done, or end it", what);
  // Links first: one without its blob would be a fault of the cache, a blob without a link is only room.
  for (const std::vector<fs::path>* list : {&links, &paths}) {
    for (const fs::path& path : *list) {
      std::error_code problem;
      fs::remove_all(path, problem);
      if (problem) throw Error("cannot remove {}: {}", path.string(), problem.message());
    }
  }
}

}  // namespace quire
