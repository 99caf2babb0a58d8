#include "cli/model_name.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/house.h"
#include "cli/model_options.h"
#include "cli/pull_line.h"
#include "hub/ollama_store.h"
#include "hub/pull.h"

namespace quire::cli {
namespace {

std::string hub_path(const HubName& name, Hub hub, const std::string& remark = "") {
  HubPlaces places = HubPlaces::of_this_process();
  if (hub == Hub::offline) places.offline = true;
  if (const std::optional<PulledModel> here = find_pulled(name, places)) return here->path;
  PullLine line;
  if (!remark.empty()) line.say(remark);
  return pull_model(name, places, total_memory(), line).path;
}

}  // namespace

HubName hub_name(const std::string& text) {
  try {
    return HubName::parse(text);
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
}

std::string model_path(const std::string& model, Hub hub) {
  if (model == "house") return house_path("house.gguf");
  if (model == "house-draft") return house_path("draft.gguf");
  if (model.starts_with("hf:")) return hub_path(hub_name(model), hub);
  if (model.starts_with("ollama:")) return OllamaStore(HubPlaces::of_this_process().ollama).find(model).path;
  if (const std::optional<HubName> name = plain_hub_name(model)) {
    return hub_path(*name, hub,
                    fmt::format("there is no file {} here: it is taken for {}", model, name->text()));
  }
  return model;
}

std::string served_name(const std::string& model) {
  if (model == "house" || model == "house-draft") return model;
  const std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  return path.extension() == ".gguf" ? path.stem().string()
                                     : (path.has_filename() ? path : path.parent_path()).filename().string();
}

void check_may_write_beside(const std::string& path) {
  const std::filesystem::path file(path);
  if (file.filename().string().starts_with("sha256-") && file.parent_path().filename() == "blobs")
    throw Error("nothing is written beside {}: that is Ollama's store", path);
}

}  // namespace quire::cli
