#include "hub/repo_listing.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "hub/hub_name.h"
#include "hub/url.h"

namespace quire {
namespace {

constexpr size_t kMostFiles = 100'000;
constexpr uint64_t kLargestFile = uint64_t(1) << 50;
constexpr JsonLimits kListingLimits{.depth = 32, .tree_bytes = uint64_t(512) << 20};

const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json& object, const char* name) {
  const Json* value = member(object, name);
  return value && value->is_string() ? value->get<std::string>() : "";
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && is_commit_hash(text.substr(0, 40)) && is_commit_hash(text.substr(24));
}

RepoFile file_of(const Json& entry, std::string path) {
  const Json* lfs = member(entry, "lfs");
  if (lfs && !lfs->is_object()) lfs = nullptr;
  // In the pointer's place: the size is the large file's in both.
  const Json* size = lfs ? member(*lfs, "size") : member(entry, "size");
  RepoFile file{.path = std::move(path), .bytes = 0, .digest = text_of(lfs ? *lfs : entry, "oid")};
  if (!size || !size->is_number_unsigned() || size->get<uint64_t>() > kLargestFile)
    throw Error("the hub's list of files gives no size for {}", file.path);
  if (lfs ? !is_sha256(file.digest) : !is_commit_hash(file.digest))
    throw Error("the hub's list of files gives no hash for {}", file.path);
  file.bytes = size->get<uint64_t>();
  return file;
}

}  // namespace

const RepoFile* RepoListing::find(std::string_view path) const {
  const auto found = std::ranges::find(files, path, &RepoFile::path);
  return found == files.end() ? nullptr : &*found;
}

void add_tree_page(std::string_view json, RepoListing& listing) {
  const Json page = parse_json(json, "the hub's list of files", kListingLimits);
  if (!page.is_array()) throw Error("the hub's list of files is not a list");
  for (const Json& entry : page) {
    if (!entry.is_object()) throw Error("the hub's list of files has an entry that is not an object");
    if (text_of(entry, "type") != "file") continue;
    if (listing.files.size() + listing.left_out >= kMostFiles)
      throw Error("the hub lists more than {} files", kMostFiles);
    std::string path = text_of(entry, "path");
    // Most repositories have a .gitattributes, which nobody here wants.
    if (path.starts_with(".git")) continue;
    if (!is_safe_path(path)) {
      ++listing.left_out;
      if (listing.left_out_name.empty()) listing.left_out_name = printable(path, 60);
      continue;
    }
    listing.files.push_back(file_of(entry, std::move(path)));
  }
}

std::string commit_in(std::string_view json) {
  const Json said = parse_json(json, "what the hub says of the model", kListingLimits);
  const std::string commit = said.is_object() ? text_of(said, "sha") : "";
  if (!is_commit_hash(commit)) throw Error("the hub does not say which commit that is");
  return commit;
}

std::vector<std::string> shards_in(std::string_view json) {
  const Json index = parse_json(json, "model.safetensors.index.json");
  const Json* map = index.is_object() ? member(index, "weight_map") : nullptr;
  if (!map || !map->is_object()) throw Error("model.safetensors.index.json has no object \"weight_map\"");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (!is_safe_path(name) || name.find('/') != name.npos || !name.ends_with(".safetensors"))
      throw Error("model.safetensors.index.json names a file that is no shard: '{}'", printable(name, 60));
    names.insert(name);
  }
  return {names.begin(), names.end()};
}

std::string next_page_in(std::string_view link) {
  // <https://huggingface.co/api/...?cursor=...>; rel="next", <...>; rel="..."
  while (true) {
    const size_t open = link.find('<'), close = link.find('>', open == link.npos ? link.size() : open);
    if (open == link.npos || close == link.npos) return {};
    const std::string_view url = link.substr(open + 1, close - open - 1);
    const size_t next = std::min(link.find('<', close), link.size());
    const std::string_view parameters = link.substr(close, next - close);
    if (parameters.find("rel=\"next\"") != parameters.npos || parameters.find("rel=next") != parameters.npos)
      return std::string(url);
    link.remove_prefix(next);
  }
}

}  // namespace quire
