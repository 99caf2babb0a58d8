#pragma once

#include <string>

#include "base/json.h"
#include "engine/loaded_model.h"

namespace quire {

// What was found for one model, as a JSON file: it says whose it is and has a checksum, so that another model's is noticed, and one
// that was damaged.
struct ModelJson {
  std::string kind;     // "quire kv-heads 2": what it says, and in which version
  std::string says;     // "which heads of which layer": for sentences
  std::string command;  // that writes it anew
};

// Beside the model: MODEL.NAME.json, or NAME.json in its folder.
std::string beside_model(const std::string& model_path, const std::string& name);
// Whoever opens the file finds all of it, or the old one. Throws Error.
void write_model_json(const std::string& path, const ModelJson& what, Json object, const LoadedModel& model);
// Throws Error, a sentence, if the file is another model's, is damaged or is none of these.
Json read_model_json(const std::string& path, const ModelJson& what, const ModelFile& model);
// A member that is a whole number; throws Error.
uint32_t whole_number(const Json& object, const std::string& member);

}  // namespace quire
