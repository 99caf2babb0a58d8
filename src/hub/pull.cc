#include "hub/pull.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>

#include <sys/statvfs.h>

#include "base/error.h"
#include "hub/cache_lock.h"
#include "hub/hub_client.h"
#include "hub/partial_blob.h"
#include "hub/transfer_words.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr uint64_t kLargestIndex = uint64_t(64) << 20;

bool is_shard(const RepoFile& file) {
  return file.path.ends_with(".safetensors");
}

// The index says which files of a folder are its shards; others beside them are something else.
void keep_shards(StoredModel& model, const std::vector<std::string>& shards, const std::string& where) {
  for (const std::string& shard : shards)
    if (std::ranges::find(model.files, shard, &RepoFile::path) == model.files.end())
      throw Error("{} has no {}, which its index names", where, shard);
  std::erase_if(model.files, [&](const RepoFile& file) {
    return is_shard(file) && std::ranges::find(shards, file.path) == shards.end();
  });
}

std::string read_small(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// One pull: what is shared by its steps.
class Pull {
 public:
  Pull(const HubName& name, const HubPlaces& places, PullWatcher& watcher)
      : name_(name),
        cache_(places.cache),
        watcher_(watcher),
        hub_(places, [&watcher](const std::string& why) { watcher.say(why); }) {}

  PulledModel run(uint64_t memory_bytes) {
    const std::string commit = hub_.commit(name_);
    const RepoListing listing = hub_.listing(name_, commit);
    const std::vector<StoredModel> models = models_in(listing.files);
    if (models.empty() && listing.left_out > 0)
      throw Error(
          "{} has nothing that quire reads; {} of its files were left out, because no file here may have a "
          "name like '{}'",
          name_.repo, listing.left_out, listing.left_out_name);
    FileChoice choice = choose_model(models, name_.which, memory_bytes, name_.repo);
    watcher_.say(fmt::format("{}: {}", name_.text(), choice.why));
    commit_ = commit;
    cache_.make_snapshot(name_, commit);
    StoredModel& model = choice.model;
    if (const auto index = std::ranges::find(model.files, kIndex, &RepoFile::path);
        index != model.files.end()) {
      if (index->bytes > kLargestIndex) throw Error("{} of {} is too large", kIndex, name_.repo);
      const RepoFile file = *index;
      check_room({&file, 1});
      fetch({&file, 1});
      keep_shards(model, shards_in(read_small(cache_.blob(name_, file))), name_.repo);
    }
    // The small ones first: once the weights are there, so is all.
    std::ranges::stable_sort(model.files, {}, is_shard);
    check_room(model.files);
    fetch(model.files);
    cache_.write_revision(name_, commit);
    return {.path = path_in(cache_, name_, commit, model), .bytes = model.bytes(), .label = model.label};
  }

 private:
  uint64_t there(const RepoFile& file) const {
    return std::min(PartialBlob::size_of(cache_.blob(name_, file)), file.bytes);
  }

  void check_room(std::span<const RepoFile> files) const {
    uint64_t wanted = 0;
    std::set<std::string> seen;
    for (const RepoFile& file : files)
      if (!cache_.has_blob(name_, file) && seen.insert(file.digest).second)
        wanted += file.bytes - there(file);
    struct statvfs disk {};
    if (::statvfs(cache_.folder().c_str(), &disk) != 0)
      return;  // a disk that does not say fails when it is full
    const uint64_t free = uint64_t(disk.f_bavail) * disk.f_frsize;
    if (wanted > free)
      throw Error(
          "{} wants {} more on the disk of {}, which has {} left; make room there, or name another with "
          "HF_HUB_CACHE",
          name_.text(), bytes_in_words(wanted), cache_.folder().string(), bytes_in_words(free));
  }

  void fetch(std::span<const RepoFile> files) {
    total_ = done_ = there_ = 0;
    for (const RepoFile& file : files) {
      if (cache_.has_blob(name_, file)) continue;
      total_ += file.bytes;
      there_ += there(file);
    }
    for (const RepoFile& file : files) {
      if (!cache_.has_blob(name_, file)) {
        fetch_one(file);
        done_ += file.bytes;
      }
      cache_.link(name_, commit_, file);
    }
  }

  void fetch_one(const RepoFile& file) {
    const CacheLock lock(cache_.lock(name_, file), [&] {
      watcher_.say(fmt::format("{} is being fetched by another program; waiting for it", file.path));
    });
    if (cache_.has_blob(name_, file)) return;  // by the one who had the lock
    bool kept = there(file) > 0;
    while (true) {
      PartialBlob blob(cache_.blob(name_, file), file);
      const auto on_progress = [&] { watcher_.progress(done_ + blob.size(), total_, there_); };
      on_progress();
      hub_.fetch(name_, commit_, blob, file, on_progress);
      on_progress();
      if (blob.finish()) return;
      if (!kept)
        throw Error(
            "{} is not what the hub promises: its hash is another one. It was removed; something between "
            "here and the "
            "hub changes files, or the hub's copy is broken",
            file.path);
      watcher_.say(
          fmt::format("{}: what was here of it before does not belong to it; fetching all of it", file.path));
      kept = false;
    }
  }

  const HubName& name_;
  HubCache cache_;
  PullWatcher& watcher_;
  HubClient hub_;
  std::string commit_;
  uint64_t total_ = 0, done_ = 0, there_ = 0;
};

}  // namespace

PulledModel pull_model(const HubName& name, const HubPlaces& places, uint64_t memory_bytes,
                       PullWatcher& watcher) {
  if (places.offline)
    throw Error("{} is not here whole, and the hub is not to be asked (--offline or HF_HUB_OFFLINE)",
                name.text());
  // A limit on the size of files is an error of the write, not the end of the program.
  std::signal(SIGXFSZ, SIG_IGN);
  return Pull(name, places, watcher).run(memory_bytes);
}

std::vector<StoredModel> whole_models(const HubCache& cache, const HubName& name, const std::string& commit) {
  std::vector<StoredModel> models = models_in(cache.files(name, commit));
  std::erase_if(models, [&](StoredModel& model) {
    if (!model.folder) return false;
    try {
      const fs::path folder = cache.snapshot(name, commit);
      std::error_code none;
      if (fs::is_regular_file(folder / kIndex, none) && fs::file_size(folder / kIndex, none) <= kLargestIndex)
        keep_shards(model, shards_in(read_small(folder / kIndex)), name.repo);
      // Without an index the names themselves say how many there are.
      std::set<std::string> names;
      for (const RepoFile& file : model.files) names.insert(file.path);
      for (const RepoFile& file : model.files) {
        const size_t of = file.path.rfind("-of-");
        if (!is_shard(file) || of == std::string::npos || of < 5) continue;
        const uint64_t count = std::strtoul(file.path.c_str() + of + 4, nullptr, 10);
        const auto shards = std::ranges::count_if(model.files, is_shard);
        if (count != uint64_t(shards)) return true;
      }
      return false;
    } catch (const Error&) {
      return true;
    }
  });
  return models;
}

std::string path_in(const HubCache& cache, const HubName& name, const std::string& commit,
                    const StoredModel& model) {
  const fs::path folder = cache.snapshot(name, commit);
  return (model.folder ? folder : folder / model.files[0].path).string();
}

std::optional<PulledModel> find_pulled(const HubName& name, const HubPlaces& places) {
  const HubCache cache(places.cache);
  const std::optional<std::string> commit = cache.commit(name);
  if (!commit) return {};
  const std::vector<StoredModel> models = whole_models(cache, name, *commit);
  if (models.empty()) return {};
  try {
    // What is here was wanted by somebody, whatever this machine's memory is.
    const StoredModel model = choose_model(models, name.which, 0, name.repo).model;
    return PulledModel{
        .path = path_in(cache, name, *commit, model), .bytes = model.bytes(), .label = model.label};
  } catch (const Error&) {
    return {};
  }
}

}  // namespace quire
