#pragma once

#include <string>

#include "backend/backend.h"
#include "model/model_file.h"
#include "model/model_spec.h"

namespace quire {

// Why a device's kernels cannot compute a model, told from the head of its file: a sentence for a person, or nothing. Blocks that
// are the host's are not asked about.
std::string refusal_of(const ModelFile& file, const ModelSpec& spec, const BackendTraits& device);

}  // namespace quire
