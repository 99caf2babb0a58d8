#pragma once

#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// The words of a text, in lower case: runs of ASCII letters, digits and apostrophes.
std::vector<std::string> words_of(std::string_view text);

// Whether two short answers are the same, whatever their case, punctuation and leading article.
bool same_answer(std::string_view a, std::string_view b);

// Whether an answer says what is expected, among whatever else. Something must be expected.
bool says_answer(std::string_view expected, std::string_view answer);

// Every three words that stand together in a text.
using Trigram = std::array<std::string, 3>;
std::set<Trigram> trigrams_of(std::string_view text);

}  // namespace quire
