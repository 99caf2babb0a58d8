#pragma once

#include <string>

#include "model/model_file.h"
#include "model/model_spec.h"

namespace quire {

// Tells models apart by what they compute, wherever their files are: a hash of the metadata, of every tensor's name,
// type and shape, and of samples of its bytes. Two quantizations, two trainings or two vocabularies of a model differ.
// A change of a few bytes between the samples goes unnoticed: reading all of a large file would take longer than
// most prompts.
std::string model_identity(const ModelFile& file);

// Of how the model turns positions into numbers, which may depend on the context that it was loaded for.
std::string positions_identity(const ModelSpec& spec);

}  // namespace quire
