#include "cli/evaluator_choice.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "cli/house.h"
#include "cli/model_name.h"
#include "cli/progress.h"
#include "eval/house_data.h"
#include "model/model_identity.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// As the XDG base directories have it; empty where there is none.
fs::path cache_folder() {
  const auto folder = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value == '/' ? fs::path(value) : fs::path();
  };
  if (const fs::path cache = folder("XDG_CACHE_HOME"); !cache.empty()) return cache / "quire";
  const fs::path home = folder("HOME");
  return home.empty() ? home : home / ".cache" / "quire";
}

fs::path cached_heads_path(const LoadedModel& model) {
  const fs::path folder = cache_folder();
  return folder.empty() ? folder : folder / (model_identity(model.file()) + ".kv-heads.json");
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return !path.empty() && fs::exists(path, error);
}

}  // namespace

std::optional<FoundHeads> kept_heads(const LoadedModel& model, const std::string& model_path) {
  const std::string beside = evaluator_heads_path(model_path);
  if (is_there(beside)) return read_evaluator_heads(beside, model);
  const fs::path cached = cached_heads_path(model);
  if (is_there(cached)) return read_evaluator_heads(cached.string(), model);
  return std::nullopt;
}

std::string keep_heads(const FoundHeads& found, const LoadedModel& model, const std::string& model_path) {
  const std::string beside = evaluator_heads_path(model_path);
  try {
    check_may_write_beside(model_path);
    write_evaluator_heads(beside, found, model);
    return beside;
  } catch (const Error&) {
    const fs::path cached = cached_heads_path(model);
    if (cached.empty()) throw;
    std::error_code error;
    fs::create_directories(cached.parent_path(), error);
    write_evaluator_heads(cached.string(), found, model);
    return cached.string();
  }
}

FoundHeads find_heads(const LoadedModel& model, const std::string& data_folder, const HeadSearch& search) {
  const HouseData data = read_house_data(data_folder.empty() ? house_path("eval") : data_folder);
  Progress progress("looking at the heads");
  return find_evaluator_heads(model, data, search,
                              [&](size_t done, size_t of) { progress.update(done, of); });
}

EvaluatorHeads choose_heads(const LoadedModel& model, const std::string& model_path) {
  std::optional<FoundHeads> found = kept_heads(model, model_path);
  if (!found) {
    fmt::print(stderr, "finding this model's evaluator heads, once\n");
    found = find_heads(model, "", {});
    try {
      fmt::print(stderr, "layer {}, {}; kept in {}\n", found->best.layer,
                 counted(found->best.heads.size(), "head"), keep_heads(*found, model, model_path));
    } catch (const Error& error) {
      fmt::print(stderr, "they will be looked for again next time: {}\n", error.what());
    }
  }
  if (const std::string warning = found->warning(); !warning.empty())
    fmt::print(stderr, "warning: {}\n", warning);
  return found->best;
}

}  // namespace quire::cli
