#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/expr_pool.h"

namespace quire::grammar {

// A set of characters: ranges in order that do not touch. Surrogates are no characters.
class CodePoints {
 public:
  static constexpr uint32_t kLast = 0x10FFFF;

  CodePoints() = default;
  CodePoints(uint32_t first, uint32_t last) { add(first, last); }
  static CodePoints all() { return {0, kLast}; }

  void add(uint32_t first, uint32_t last);
  void add(const CodePoints& other);
  CodePoints complement() const;
  CodePoints without(const CodePoints& other) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<std::pair<uint32_t, uint32_t>>& ranges() const { return ranges_; }
  bool operator==(const CodePoints&) const = default;

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

// One character of the set, in UTF-8.
ExprId utf8_of(ExprPool& pool, const CodePoints& set);

// How a character may be spelled inside a JSON string. `one`: as itself where it can be, else by its short escape, else by \u00XX:
// so that two texts are the same only if they are spelled the same. `any`: every spelling.
enum class JsonSpelling : uint8_t { one, any };
ExprId json_of(ExprPool& pool, const CodePoints& set);
// Any character.
ExprId json_char(ExprPool& pool, JsonSpelling spelling);

// A text with its quotes, as `one` spells it. REQUIRES: it is valid UTF-8.
std::string json_text(std::string_view text);

}  // namespace quire::grammar
