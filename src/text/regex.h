#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/marked_text.h"
#include "text/tokenizer_spec.h"

namespace quire {

// A regular expression as tokenizer files write it: Oniguruma's Ruby flavour over Unicode text.
// Immutable; any thread may use it.
class Regex {
 public:
  explicit Regex(const std::string& pattern);  // throws Error if it does not compile
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends every match, leftmost first, without overlap; empty ones too, but not right after another match.
  // REQUIRES: `text` is valid UTF-8. Throws Error if the pattern exceeds its bounds of steps or time.
  void find_all(std::string_view text, std::vector<ByteRange>& matches) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

// How long a text of so many bytes may become. No real tokenizer comes near; a hostile one would fill memory.
inline size_t max_grown_bytes(size_t bytes) {
  return 4096 + 64 * bytes;
}

// `content` in place of each match. Throws Error if that makes the text far too long. `regex` is the pattern
// compiled, or null if it is plain text. REQUIRES: pattern.text is not empty.
std::string replace_all(std::string_view text, const TextPattern& pattern, const Regex* regex,
                        std::string_view content);

// The same pattern in PCRE2's flavour. What differs: white space and word characters, \h, \u, intersections
// of classes, `{n,m}+`, options. Throws Error for what cannot be said there.
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace quire
