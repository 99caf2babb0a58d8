#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace quire {

// By id: the bytes that a token adds to a text in whose middle it stands; empty if it is special, or no token. Joined together they
// are the text before what is not UTF-8 in it is replaced.
std::vector<std::string> token_bytes(const Tokenizer& tokenizer);

}  // namespace quire
