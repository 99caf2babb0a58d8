#include <fmt/format.h>

#include "cli/explain/view.h"
#include "text/detokenizer.h"

namespace quire::cli {
namespace {

// Where each character of valid UTF-8 begins, and where the text ends.
std::vector<size_t> character_starts(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  }
  starts.push_back(text.size());
  return starts;
}

// C0, DEL and, in two bytes, C1.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return character.size() == 2 && first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::string exact_count(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string count_text(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; value >= 99999.5 && unit < 5; ++unit) value /= 1000;
  return exact_count(value) + (unit > 0 ? std::string(" ") + kUnits[unit] : "");
}

std::string token_text(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  Detokenizer detokenizer(tokenizer, Tokenizer::Special::keep);
  std::string text;
  for (TokenId token : tokens) text += detokenizer.push(token);
  text += detokenizer.finish();
  const std::vector<size_t> starts = character_starts(text);
  std::string shown;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const std::string character = text.substr(starts[i], starts[i + 1] - starts[i]);
    shown += character == "\n" ? "\\n" : character == "\t" ? "\\t" : is_control(character) ? "·" : character;
  }
  return shown;
}

std::string shortened(const std::string& text, size_t width) {
  const std::vector<size_t> starts = character_starts(text);
  const size_t count = starts.size() - 1;
  if (count <= width) return text;
  const size_t head = (width - 1) / 2, tail = width - 1 - head;
  return text.substr(0, starts[head]) + "…" + text.substr(starts[count - tail]);
}

std::string padded(const std::string& text, size_t width) {
  const size_t count = character_starts(text).size() - 1;
  return text + std::string(count < width ? width - count : 0, ' ');
}

}  // namespace quire::cli
