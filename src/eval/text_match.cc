#include "eval/text_match.h"

#include <algorithm>

namespace quire {
namespace {

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '\'';
}

std::vector<std::string> without_article(std::vector<std::string> words) {
  if (words.size() > 1 && (words[0] == "a" || words[0] == "an" || words[0] == "the"))
    words.erase(words.begin());
  return words;
}

}  // namespace

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (char c : text) {
    if (!in_word(c)) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    words.back() += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  }
  return words;
}

bool same_answer(std::string_view a, std::string_view b) {
  return without_article(words_of(a)) == without_article(words_of(b));
}

bool says_answer(std::string_view expected, std::string_view answer) {
  const std::vector<std::string> part = without_article(words_of(expected)), words = words_of(answer);
  return !part.empty() && !std::ranges::search(words, part).empty();
}

std::set<Trigram> trigrams_of(std::string_view text) {
  const std::vector<std::string> words = words_of(text);
  std::set<Trigram> trigrams;
  for (size_t i = 0; i + 2 < words.size(); ++i) trigrams.insert({words[i], words[i + 1], words[i + 2]});
  return trigrams;
}

}  // namespace quire
