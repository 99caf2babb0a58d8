#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/marked_text.h"
#include "text/tokenizer_spec.h"

namespace quire {

// A text cut into pieces. Ranges are in order and do not overlap; what lies between them was removed.
struct Pieces {
  std::string text;
  std::vector<ByteRange> ranges;
  bool at_start = true;  // the text is the start of what the caller gave, not what follows an added token

  std::string_view operator[](size_t i) const {
    return std::string_view(text).substr(ranges[i].begin, ranges[i].end - ranges[i].begin);
  }
};

// Cuts a normalized text into the pieces the model encodes one by one. Immutable; any thread may use it.
class Pretokenizer {
 public:
  explicit Pretokenizer(std::vector<PretokenizerStep> steps);
  Pretokenizer(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  Pieces split(std::string text, bool at_start) const;  // REQUIRES: valid UTF-8

 private:
  struct Compiled;
  std::vector<PretokenizerStep> steps_;
  std::vector<std::unique_ptr<const Compiled>>
      compiled_;  // one per step, null where there is nothing to compile
};

}  // namespace quire
