#include "hub/ollama_store.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "hub/hub_name.h"
#include "hub/url.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLargestManifest = size_t(1) << 20;
constexpr size_t kMostModels = 10'000;
constexpr const char* kHost = "registry.ollama.ai";
constexpr const char* kSpace = "library";

std::string member_text(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// "sha256:..." of a layer as the name of a blob; empty if it is none.
std::string blob_name(const std::string& digest) {
  const std::string hex = digest.starts_with("sha256:") ? digest.substr(7) : "";
  const bool is_hex = hex.size() == 64 && is_commit_hash(hex.substr(0, 40)) && is_commit_hash(hex.substr(24));
  return is_hex ? "sha256-" + hex : "";
}

std::string short_name(const fs::path& place) {
  std::vector<std::string> parts;
  for (const fs::path& part : place) parts.push_back(part.string());
  std::string name = parts[2];
  if (parts[0] != kHost || parts[1] != kSpace) name = parts[1] + "/" + name;
  if (parts[0] != kHost) name = parts[0] + "/" + name;
  return "ollama:" + name + ":" + parts[3];
}

}  // namespace

OllamaModel OllamaStore::read(const fs::path& manifest, const std::string& name) const {
  const Json said = read_json_file(manifest.string(), kLargestManifest);
  const auto layers = said.is_object() ? said.find("layers") : said.end();
  if (!said.is_object() || layers == said.end() || !layers->is_array())
    throw Error("{} is not a manifest of Ollama's", manifest.string());
  OllamaModel model{.name = name, .path = {}};
  for (const Json& layer : *layers) {
    const std::string kind = member_text(layer, "mediaType");
    if (kind == "application/vnd.ollama.image.adapter")
      throw Error("{} is a model with an adapter over it, which quire does not read", name);
    if (kind != "application/vnd.ollama.image.model") continue;
    if (!model.path.empty())
      throw Error("{} is a model of several files, which quire does not read from Ollama", name);
    const std::string blob = blob_name(member_text(layer, "digest"));
    if (blob.empty()) throw Error("{} names no blob", manifest.string());
    model.path = (folder_ / "blobs" / blob).string();
  }
  if (model.path.empty())
    throw Error("{} is not a GGUF file in Ollama's store, so quire does not read it", name);
  std::error_code problem;
  model.bytes = fs::file_size(model.path, problem);
  if (problem) throw Error("{} of Ollama's store wants {}, which is not there", name, model.path);
  return model;
}

std::vector<OllamaModel> OllamaStore::list() const {
  std::vector<OllamaModel> models;
  const fs::path root = folder_ / "manifests";
  std::error_code problem;
  for (fs::recursive_directory_iterator entry(root, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    std::error_code ignored;
    if (entry.depth() != 3 || !entry->is_regular_file(ignored)) continue;
    const fs::path place = entry->path().lexically_relative(root);
    if (!is_safe_path(place.string())) continue;
    try {
      models.push_back(read(entry->path(), short_name(place)));
    } catch (const Error&) {
      // of a kind that is not for us
    }
    if (models.size() >= kMostModels) break;
  }
  std::ranges::sort(models, {}, &OllamaModel::name);
  return models;
}

OllamaModel OllamaStore::find(const std::string& given) const {
  std::string name = given.starts_with("ollama:") ? given.substr(7) : given;
  std::string tag = "latest";
  if (const size_t colon = name.rfind(':');
      colon != std::string::npos && name.find('/', colon) == std::string::npos) {
    tag = name.substr(colon + 1);
    name = name.substr(0, colon);
  }
  const auto slashes = std::ranges::count(name, '/');
  if (!is_safe_path(name) || !is_safe_path(tag) || tag.find('/') != std::string::npos || slashes > 2)
    throw Error("'{}' is not the name of a model of Ollama's; one looks like ollama:llama3.2:1b",
                printable(given, 100));
  fs::path place = slashes == 2 ? fs::path() : fs::path(kHost);
  if (slashes == 0) place /= kSpace;
  place = place / name / tag;
  const fs::path manifest = folder_ / "manifests" / place;
  std::error_code problem;
  if (fs::is_regular_file(manifest, problem)) return read(manifest, short_name(place));
  std::string others;
  for (const OllamaModel& model : list()) others += (others.empty() ? "" : ", ") + model.name;
  throw Error("Ollama has no {}:{} in {}{}", name, tag, folder_.string(),
              others.empty() ? "" : "; it has " + others);
}

}  // namespace quire
