#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// A file of a repository. Its name is safe (is_safe_path).
struct RepoFile {
  std::string path;
  uint64_t bytes = 0;
  // What is in it, and what the cache calls it: 64 digits are its sha256 (of large files), 40 the hash that git gives it.
  std::string digest;
};

// What a repository holds at one commit, as the hub tells it page by page.
struct RepoListing {
  std::vector<RepoFile> files;
  size_t left_out = 0;        // files whose names no file here may have
  std::string left_out_name;  // one of them, printable

  const RepoFile* find(std::string_view path) const;
};

// Adds a page of /api/models/REPO/tree/COMMIT. Throws Error if it is not one, or has too many files.
void add_tree_page(std::string_view json, RepoListing& listing);

// The commit in what /api/models/REPO/revision/REVISION says. Throws Error if there is none.
std::string commit_in(std::string_view json);

// The files that an index of shards names, each once. Throws Error if it is none or a name is not a plain one.
std::vector<std::string> shards_in(std::string_view json);

// The address of the next page in a reply's header Link; empty if there is none.
std::string next_page_in(std::string_view link);

}  // namespace quire
