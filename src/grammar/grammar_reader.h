#pragma once

#include <string_view>

#include "grammar/rules.h"

namespace quire::grammar {

// A grammar as llama.cpp writes them, from `root` on: root ::= "yes" | "no". Throws Error with a sentence and the line.
Rules read_gbnf(std::string_view text);

// A grammar as Lark writes them, from `start` on. Terminals may end wherever they can, the longest or not. Templates,
// look-around and priorities are refused. Throws Error with a sentence and the line.
Rules read_lark(std::string_view text);

// Either, by how it defines its rules.
Rules read_grammar(std::string_view text);

}  // namespace quire::grammar
