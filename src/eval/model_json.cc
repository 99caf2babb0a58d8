#include "eval/model_json.h"

#include <filesystem>
#include <limits>
#include <span>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/replacing_file.h"
#include "model/model_identity.h"

namespace quire {
namespace {

constexpr size_t kMostBytes = 1 << 20;

std::string text_of(const Json& object, int indent) {
  return object.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Of all that the object says, in the order of its names.
std::string checksum_of(Json object) {
  object.erase("checksum");
  const std::string text = text_of(object, -1);
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace

std::string beside_model(const std::string& model_path, const std::string& name) {
  if (std::filesystem::is_directory(model_path))
    return (std::filesystem::path(model_path) / (name + ".json")).string();
  return model_path + "." + name + ".json";
}

void write_model_json(const std::string& path, const ModelJson& what, Json object, const LoadedModel& model) {
  const ModelSpec& spec = model.spec();
  object["file"] = what.kind;
  object["model"] = model_identity(model.file());
  object["model_name"] = spec.name.empty() ? spec.architecture : spec.name;
  object["checksum"] = checksum_of(object);
  const std::string text = text_of(object, 1) + "\n";
  ReplacingFile file(path);
  file.append(std::as_bytes(std::span(text)));
  file.finish();
  using std::filesystem::perms;  // whoever may read the model may read this
  std::error_code error;
  std::filesystem::permissions(path, perms::group_read | perms::others_read,
                               std::filesystem::perm_options::add, error);
}

Json read_model_json(const std::string& path, const ModelJson& what, const ModelFile& model) {
  const Json object = read_json_file(path, kMostBytes);
  const std::string anew = fmt::format("remove it, or \"{}\" writes it anew", what.command);
  if (!object.is_object() || !object.contains("file") || object["file"] != what.kind)
    throw Error("{} does not say {} as this version writes it: {}", path, what.says, anew);
  if (!object.contains("checksum") || object["checksum"] != checksum_of(object))
    throw Error("{} is damaged, what it says does not fit its checksum: {}", path, anew);
  if (!object.contains("model") || object["model"] != model_identity(model))
    throw Error("{} is of another model: {}", path, anew);
  return object;
}

uint32_t whole_number(const Json& object, const std::string& member) {
  const Json& value = object.at(member);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<uint32_t>::max())
    throw Error("\"{}\" is no whole number", member);
  return value.get<uint32_t>();
}

}  // namespace quire
