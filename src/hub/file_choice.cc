#include "hub/file_choice.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "hub/transfer_words.h"

namespace quire {
namespace {

// As files' names say it, in the order in which they are taken: about 4 bits first, because most of a model's sense is
// still there and half of the time per token of 8 bits is not; more; then less; then floats.
constexpr std::array<std::string_view, 52> kTypes{
    "Q4_K_M",  "Q4_K_XL", "Q4_K_L", "Q4_K_S",  "Q4_K",    "IQ4_XS",  "IQ4_NL",   "MXFP4",  "NVFP4",
    "Q4_1",    "Q4_0",    "Q5_K_M", "Q5_K_XL", "Q5_K_L",  "Q5_K_S",  "Q5_K",     "Q5_1",   "Q5_0",
    "Q6_K_XL", "Q6_K_L",  "Q6_K",   "Q8_K_XL", "Q8_0",    "Q3_K_XL", "Q3_K_L",   "Q3_K_M", "Q3_K",
    "IQ3_M",   "Q3_K_S",  "IQ3_S",  "IQ3_XS",  "IQ3_XXS", "Q2_K_XL", "Q2_K_L",   "Q2_K",   "IQ2_M",
    "Q2_K_S",  "IQ2_S",   "IQ2_XS", "IQ2_XXS", "TQ2_0",   "TQ1_0",   "Q2_0",     "IQ1_M",  "IQ1_S",
    "Q1_0",    "BF16",    "F16",    "FP16",    "F32",     "FP32",    "MXFP4_MOE"};

// What a folder's model is read from, beside its shards.
constexpr std::array<std::string_view, 8> kFolderFiles{"config.json",
                                                       "generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "model.safetensors.index.json",
                                                       "chat_template.jinja",
                                                       "chat_template.json",
                                                       "additional_chat_templates/tool_use.jinja"};

std::string in_capitals(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return char(std::toupper(c)); });
  return out;
}

bool is_alphanumeric(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// The last of the known types in a name, the longest that stands there.
std::string type_in(std::string_view stem) {
  const std::string name = in_capitals(stem);
  size_t best_end = 0, best_length = 0;
  for (const std::string_view type : kTypes) {
    const size_t at = name.rfind(type);
    if (at == name.npos || (at > 0 && is_alphanumeric(name[at - 1]))) continue;
    const size_t end = at + type.size();
    if (end < name.size() && (is_alphanumeric(name[end]) || name[end] == '_')) continue;
    if (end > best_end || (end == best_end && type.size() > best_length)) {
      best_end = end;
      best_length = type.size();
    }
  }
  if (best_length == 0) return {};
  const size_t at = best_end - best_length;
  const bool dynamic = at >= 3 && name.substr(at - 3, 3) == "UD-";
  return (dynamic ? "UD-" : "") + name.substr(at, best_length);
}

size_t rank_of(std::string_view label) {
  if (label.starts_with("UD-")) label.remove_prefix(3);
  return size_t(std::ranges::find(kTypes, label) - kTypes.begin());
}

std::string file_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// Of "folder/model-00002-of-00003.gguf": the rest of the name, and the two numbers.
struct Part {
  std::string stem;
  uint32_t number = 1, count = 1;
};

Part part_of(std::string_view path) {
  Part part{.stem = std::string(path.substr(0, path.size() - 5))};
  const std::string& stem = part.stem;
  constexpr size_t kLength = 15;  // -00002-of-00003
  if (stem.size() <= kLength) return part;
  const std::string_view ending = std::string_view(stem).substr(stem.size() - kLength);
  if (ending[0] != '-' || ending.substr(6, 4) != "-of-") return part;
  uint32_t number = 0, count = 0;
  const auto read = [](std::string_view digits, uint32_t& value) {
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + 5, value);
    return problem == std::errc() && end == digits.data() + 5;
  };
  if (!read(ending.substr(1, 5), number) || !read(ending.substr(10, 5), count)) return part;
  return {.stem = stem.substr(0, stem.size() - kLength), .number = number, .count = count};
}

// Eyes, importance matrices and the like are GGUF files too.
bool is_no_model(const std::string& path) {
  const std::string name = in_capitals(file_name(path));
  for (const char* word : {"MMPROJ", "IMATRIX", "CVECTOR", "CONTROL-VECTOR"})
    if (name.find(word) != name.npos) return true;
  return false;
}

std::vector<StoredModel> gguf_models(std::span<const RepoFile> files) {
  std::map<std::pair<std::string, uint32_t>, std::map<uint32_t, const RepoFile*>> parts;
  for (const RepoFile& file : files) {
    if (!file.path.ends_with(".gguf") || file.bytes == 0 || is_no_model(file.path)) continue;
    const Part part = part_of(file.path);
    parts[{part.stem, part.count}].emplace(part.number, &file);
  }
  std::vector<StoredModel> models;
  for (const auto& [name, numbered] : parts) {
    const bool whole = numbered.size() == name.second && numbered.begin()->first == 1 &&
                       numbered.rbegin()->first == name.second;
    if (!whole) continue;
    StoredModel model{.label = type_in(file_name(name.first))};
    if (model.label.empty()) model.label = type_in(name.first);  // a folder's name may tell it
    for (const auto& [number, file] : numbered) model.files.push_back(*file);
    models.push_back(std::move(model));
  }
  std::ranges::stable_sort(models, {}, [](const StoredModel& model) {
    return std::pair(rank_of(model.label), model.label.starts_with("UD-") ? 1 : 0);
  });
  return models;
}

std::optional<StoredModel> folder_model(std::span<const RepoFile> files) {
  StoredModel model{.label = "safetensors", .files = {}, .folder = true};
  bool config = false, index = false, whole = false, weights = false;
  for (const RepoFile& file : files) {
    if (std::ranges::find(kFolderFiles, file.path) != kFolderFiles.end()) model.files.push_back(file);
    config = config || file.path == "config.json";
    index = index || file.path == "model.safetensors.index.json";
    whole = whole || file.path == "model.safetensors";
  }
  for (const RepoFile& file : files) {
    if (!file.path.ends_with(".safetensors") || file.path.find('/') != file.path.npos) continue;
    // One whole file is all there is to it; "consolidated" is a second copy in its maker's own names.
    if (file.path.starts_with("consolidated") || (whole && !index && file.path != "model.safetensors"))
      continue;
    model.files.push_back(file);
    weights = true;
  }
  if (!config || !weights) return {};
  return model;
}

// Beside its weights a model wants keys, values and scratch.
uint64_t memory_for(const StoredModel& model) {
  return model.bytes() + model.bytes() / 8 + (uint64_t(256) << 20);
}

std::string told(std::span<const StoredModel> models) {
  constexpr size_t kShown = 40;
  std::string text;
  for (const StoredModel& model : models.first(std::min(models.size(), kShown)))
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", model.name(), bytes_in_words(model.bytes()));
  return text + (models.size() > kShown ? ", ..." : "");
}

bool is_meant(const StoredModel& model, const std::string& which) {
  if (in_capitals(model.label) == in_capitals(which)) return true;
  return !model.folder && (model.files[0].path == which || file_name(model.files[0].path) == which ||
                           part_of(model.files[0].path).stem == which);
}

FileChoice choose_named(std::span<const StoredModel> models, const std::string& which,
                        const std::string& repo) {
  std::vector<StoredModel> meant;
  for (const StoredModel& model : models)
    if (is_meant(model, which)) meant.push_back(model);
  if (meant.empty()) {
    for (const StoredModel& model : models)
      if (model.label == "UD-" + in_capitals(which)) meant.push_back(model);
  }
  if (meant.empty()) throw Error("{} has no {}; it has {}", repo, which, told(models));
  if (meant.size() > 1) {
    std::string names;
    for (const StoredModel& model : meant) names += (names.empty() ? "" : ", ") + model.files[0].path;
    throw Error("{} has several of {}: {}; write one of these names after the colon", repo, which, names);
  }
  return {meant[0],
          fmt::format("{}, {}, as was asked for", meant[0].name(), bytes_in_words(meant[0].bytes()))};
}

}  // namespace

uint64_t StoredModel::bytes() const {
  uint64_t sum = 0;
  for (const RepoFile& file : files) sum += file.bytes;
  return sum;
}

std::string StoredModel::name() const {
  return label.empty() ? files[0].path : label;
}

std::vector<StoredModel> models_in(std::span<const RepoFile> files) {
  std::vector<StoredModel> models = gguf_models(files);
  if (std::optional<StoredModel> folder = folder_model(files)) models.push_back(std::move(*folder));
  return models;
}

FileChoice choose_model(std::span<const StoredModel> models, const std::string& which, uint64_t memory_bytes,
                        const std::string& repo) {
  if (models.empty())
    throw Error("{} has nothing that quire reads: neither GGUF files nor config.json with *.safetensors",
                repo);
  if (!which.empty()) return choose_named(models, which, repo);
  const bool known = memory_bytes > 0;
  const StoredModel* best = nullptr;
  for (const StoredModel& model : models) {
    if (known && memory_for(model) > memory_bytes) continue;
    best = &model;
    break;
  }
  if (best == nullptr) {
    const auto smallest = std::ranges::min_element(models, {}, &StoredModel::bytes);
    throw Error(
        "nothing of {} fits into this machine's {} of memory; the smallest is {} with {}. To fetch it all "
        "the same, "
        "name it: {}:{}",
        repo, bytes_in_words(memory_bytes), smallest->name(), bytes_in_words(smallest->bytes()), repo,
        smallest->name());
  }
  std::string why = fmt::format("{}, {}", best->name(), bytes_in_words(best->bytes()));
  if (models.size() == 1) {
    why += ", which is what there is";
  } else if (best == &models[0]) {
    why += ", the usual choice";
  } else {
    why += fmt::format(", because {} with {} does not fit into this machine's {}", models[0].name(),
                       bytes_in_words(models[0].bytes()), bytes_in_words(memory_bytes));
  }
  if (models.size() > 1) {
    std::vector<StoredModel> others(models.begin(), models.end());
    std::erase_if(others,
                  [&](const StoredModel& model) { return model.files[0].path == best->files[0].path; });
    why += "; there are also " + told(others);
  }
  return {*best, why};
}

}  // namespace quire
