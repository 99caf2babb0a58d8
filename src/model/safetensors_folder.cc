#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "model/model_file.h"
#include "model/safetensors.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".safetensors";

// name of a tensor -> name of its file, as model.safetensors.index.json says.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const Json index = read_json_file(path);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object())
    throw Error("{} has no object \"weight_map\"", path);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : weight_map->items()) {
    const std::string* name = file.get_ptr<const std::string*>();
    // Only files beside the index: it must not lead elsewhere.
    if (!name || !name->ends_with(kEnding) || name->find('/') != std::string::npos)
      throw Error("{}: the file of tensor {} is not a name ending in {}", path, in_quotes(tensor), kEnding);
    files.emplace(tensor, *name);
  }
  if (files.empty()) throw Error("{} lists no tensors", path);
  return files;
}

// The siblings that a name such as "model-00001-of-00003.safetensors" promises; only itself otherwise.
std::vector<std::string> siblings(const std::string& name) {
  const std::string_view stem = std::string_view(name).substr(0, name.size() - kEnding.size());
  const size_t of = stem.rfind("-of-");
  if (of == std::string_view::npos || of < 6 || stem[of - 6] != '-' || stem.size() != of + 9) return {name};
  uint32_t count = 0;
  const char* end = stem.data() + stem.size();
  if (std::from_chars(stem.data() + of + 4, end, count).ptr != end) return {name};
  std::vector<std::string> names;
  for (uint32_t i = 1; i <= count; ++i)
    names.push_back(fmt::format("{}{:05}-of-{:05}{}", stem.substr(0, of - 5), i, count, kEnding));
  return names;
}

std::set<std::string> list_files(const fs::path& folder) {
  if (fs::exists(folder / "model.safetensors")) return {"model.safetensors"};
  std::set<std::string> names;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    // "consolidated" is a second copy of the same model in its maker's own names.
    if (!name.ends_with(kEnding) || name.starts_with("consolidated")) continue;
    for (std::string& sibling : siblings(name)) names.insert(std::move(sibling));
  }
  if (names.empty()) throw Error("{} has no *.safetensors files", folder.string());
  return names;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder) {
  const fs::path path(folder);
  const std::string index_path = (path / "model.safetensors.index.json").string();
  std::map<std::string, std::string> weight_map;
  std::set<std::string> names;
  if (fs::exists(index_path)) {
    weight_map = read_weight_map(index_path);
    for (const auto& [tensor, file] : weight_map) names.insert(file);
  } else {
    names = list_files(path);
  }

  std::map<std::string, std::string> found;  // tensor -> the file it is in
  for (const std::string& name : names) {
    if (!fs::exists(path / name)) throw Error("{} is missing, a part of the model in {}", name, folder);
    const MappedFile& file = files_.emplace_back((path / name).string());
    for (auto& [tensor, entry] : parse_safetensors(file.bytes(), file.path())) {
      if (!found.emplace(tensor, name).second)
        throw Error("{}: tensor {} is in {} and in {}", folder, in_quotes(tensor), found[tensor], name);
      tensors_.emplace(tensor, SafetensorsTensor{tensor, entry.type, entry.type_name, entry.shape,
                                                 file.bytes().subspan(entry.begin, entry.bytes)});
    }
  }
  for (const auto& [tensor, name] : weight_map)
    if (const auto at = found.find(tensor); at == found.end() || at->second != name)
      throw Error("{} has no tensor {}, though {} says so", (path / name).string(), in_quotes(tensor),
                  index_path);
}

const SafetensorsTensor* SafetensorsFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace quire
