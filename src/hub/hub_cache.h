#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/hub_name.h"
#include "hub/repo_listing.h"

namespace quire {

// The cache that Hugging Face's programs share: models--org--name/{blobs/DIGEST, snapshots/COMMIT/PATH -> blob, refs/main}
// and .locks. Nothing is held in memory: whoever else writes it is seen.
class HubCache {
 public:
  explicit HubCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path repo(const HubName& name) const { return folder_ / name.folder(); }
  std::filesystem::path blob(const HubName& name, const RepoFile& file) const;
  std::filesystem::path snapshot(const HubName& name, const std::string& commit) const;
  std::filesystem::path lock(const HubName& name, const RepoFile& file) const;
  std::filesystem::path locks(const HubName& name) const { return folder_ / ".locks" / name.folder(); }

  // The repositories of models that are here, and the branches and tags that each knows.
  std::vector<HubName> repos() const;
  std::vector<std::string> revisions(const HubName& name) const;
  std::vector<std::string> commits(const HubName& name) const;
  // What the name's revision was when it was last asked for.
  std::optional<std::string> commit(const HubName& name) const;
  // The files that are here whole.
  std::vector<RepoFile> files(const HubName& name, const std::string& commit) const;
  bool has_blob(const HubName& name, const RepoFile& file) const;

  // Makes the folders of a snapshot. Throws Error if that cannot be.
  void make_snapshot(const HubName& name, const std::string& commit) const;
  // Puts a blob into a snapshot, under the file's name.
  void link(const HubName& name, const std::string& commit, const RepoFile& file) const;
  void write_revision(const HubName& name, const std::string& commit) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace quire
