#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"

// What sentence-transformers keeps beside a model: how a text becomes one vector.

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 1 << 20;

// GGUF's numbers.
constexpr uint64_t kMean = 1, kCls = 2, kLast = 3, kRank = 4;

struct PoolingName {
  std::string_view flag, word;  // as older files say it, and newer ones
  uint64_t type;
};
constexpr PoolingName kNames[] = {{"pooling_mode_mean_tokens", "mean", kMean},
                                  {"pooling_mode_cls_token", "cls", kCls},
                                  {"pooling_mode_lasttoken", "lasttoken", kLast}};

uint64_t pooling_type(const std::string& path) {
  const HfObject config(read_json_file(path, kMostBytes), path);
  std::vector<uint64_t> found;
  if (config.is_text("pooling_mode")) {
    for (const PoolingName& one : kNames) {
      if (*config.maybe_text("pooling_mode") == one.word) found.push_back(one.type);
    }
  } else {
    for (const std::string& key : config.keys()) {
      if (!key.starts_with("pooling_mode_") || !config.maybe_flag(key.c_str()).value_or(false)) continue;
      const auto* name = std::ranges::find(kNames, key, &PoolingName::flag);
      if (name == std::end(kNames)) throw Error("{}: {} is not supported", path, in_quotes(key));
      found.push_back(name->type);
    }
  }
  if (found.size() != 1)
    throw Error("{}: one of mean, cls and lasttoken must be how tokens are pooled", path);
  return found.front();
}

// What follows the last dot: the packages before it have been renamed.
std::string_view kind_of(const Json& module) {
  if (!module.is_object() || !module.contains("type") || !module["type"].is_string()) return {};
  const std::string_view type = module["type"].get_ref<const std::string&>();
  return type.substr(type.rfind('.') + 1);
}

std::string path_of(const Json& module) {
  return module.contains("path") && module["path"].is_string() ? module["path"].get<std::string>() : "";
}

}  // namespace

void add_hf_pooling(const std::string& folder, HfConfig& out) {
  const std::string list_path = (fs::path(folder) / "modules.json").string();
  if (!fs::exists(list_path)) return;
  const Json list = read_json_file(list_path, kMostBytes);
  if (!list.is_array()) throw Error("{} is not a list of modules", list_path);
  const std::string key = fmt::format("{}.pooling_type", out.family->architecture);
  for (const Json& module : list) {
    const std::string_view kind = kind_of(module);
    if (kind == "Transformer" || kind == "Normalize") continue;
    if (kind == "LogitScore") {
      out.metadata.set(key, kRank);
    } else if (kind == "Pooling") {
      const std::string name = path_of(module);
      if (name.find('/') != std::string::npos || name == "..")
        throw Error("{}: the path {} leads out of the folder", list_path, in_quotes(name));
      out.metadata.set(key, pooling_type((fs::path(folder) / name / "config.json").string()));
    } else {
      throw Error(
          "{}: its vectors go through a module {} that is not supported; known are Transformer, Pooling, "
          "Normalize and LogitScore",
          list_path, in_quotes(kind));
    }
  }
}

}  // namespace quire
