#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace quire::cli {

// Restores a snapshot and says on stderr what came of it. One that cannot be used is a warning: what it has is computed
// anew.
void load_kv(Engine& engine, const LoadedModel& model, const std::string& path);

// Saves the pages along these tokens and says so on stderr. Throws Error if it cannot be done.
void save_kv(Engine& engine, const LoadedModel& model, const SaltedTokens& tokens, const std::string& path);

}  // namespace quire::cli
