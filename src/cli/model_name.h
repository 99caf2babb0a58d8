#pragma once

#include <string>

#include "hub/hub_name.h"

namespace quire::cli {

// What -m and its like may name, for the help.
inline constexpr const char* kModelHelp =
    "a .gguf file, a folder with config.json and *.safetensors, hf:ORG/NAME[@REVISION][:TYPE] (fetched if it "
    "is not "
    "here), ollama:NAME[:TAG], or 'house'";

// A name of the hub as the user wrote it; what is none is wrong usage.
HubName hub_name(const std::string& text);

// The file or folder that a model's name means. One of the hub's that is not in the cache is fetched, with its progress on
// stderr, unless the hub is not to be asked. Throws Error with the reason if there is none.
enum class Hub { ask, offline };
std::string model_path(const std::string& model, Hub hub);

// What a model is called where it is served, unless somebody names it: its file or folder without the rest.
std::string served_name(const std::string& model);

// Throws Error where nothing may be written beside a model: in Ollama's store.
void check_may_write_beside(const std::string& path);

}  // namespace quire::cli
