#pragma once

#include <span>
#include <utility>

#include "cli/model_options.h"
#include "ranks/ranks.h"

namespace quire::cli {

// Of a process that mpirun has started with others (run, serve): finds them. True for all but rank 0, once rank 0 has left: they have
// loaded their part of the model and done what it said, and there is nothing more to do. What goes wrong on one of them ends all.
bool has_followed(ModelOptions& options);

// Options of which some are not for a model that ranks divide, with whether they were given: the first is refused by its name.
void refuse_with_ranks(const ModelOptions& options, std::span<const std::pair<const char*, bool>> given);
// The same of those that ModelOptions has, and of the model. Throws before anything is loaded.
void check_divided(const ModelOptions& options, const ModelFile& file, const ModelSpec& spec);

// Rank 0, once it knows: what the others have to know before they load.
void tell_terms(Ranks& ranks, const ModelFile& file, const EngineOptions& engine, const Backend& backend,
                const std::string& kv);

// What ranks have handed each other, in a line; empty: there are none.
std::string describe_traffic(const ModelOptions& options);

}  // namespace quire::cli
