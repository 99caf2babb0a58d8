#pragma once

#include <string>

#include "base/json.h"
#include "engine/engine.h"

namespace quire::cli {

// The figures of an answer, for a person: a line or two, with its newline.
std::string answer_line(const Answer& answer, const Engine& engine);

// How much of its text it kept no row of: a line, or nothing.
std::string forgotten_line(const Answer& answer);

// The object `run --json` prints.
OrderedJson answer_json(const Answer& answer, const Engine& engine, const std::string& kv_format);

}  // namespace quire::cli
