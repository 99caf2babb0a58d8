#pragma once

#include <optional>
#include <string>

#include "cli/model_options.h"
#include "eval/evaluator_heads.h"
#include "eval/head_search.h"

namespace quire::cli {

// The model's evaluator heads as they are kept beside it, or in the user's cache folder; nothing if they are in neither. Throws Error
// if the file there is another model's or is damaged.
std::optional<FoundHeads> kept_heads(const LoadedModel& model, const std::string& model_path);

// Keeps them there, and says where; throws Error if neither place takes them.
std::string keep_heads(const FoundHeads& found, const LoadedModel& model, const std::string& model_path);

// Finds them, with progress.
FoundHeads find_heads(const LoadedModel& model, const std::string& data_folder, const HeadSearch& search);

// For requests that ask them: those that are kept, else found now, once, and kept. What they are not good for is said on stderr.
EvaluatorHeads choose_heads(const LoadedModel& model, const std::string& model_path);

}  // namespace quire::cli
