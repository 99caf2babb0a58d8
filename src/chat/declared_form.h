#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "chat/declared_content.h"
#include "chat/loose_value.h"
#include "text/pattern.h"

namespace quire {

// What opens or closes a field: one of some literals, or a pattern.
struct DeclaredMark {
  std::vector<std::string> literals = {};  // the longest first
  std::optional<Pattern> pattern = {};

  // Whether it stands at `at`, as Pattern::match_at; what takes too long does not. Nothing longer than a bound counts.
  Match at(std::string_view text, size_t at, bool last, Pattern::Found& found, bool& too_much) const;
  bool may_begin_with(char byte) const;
};

struct DeclaredField {
  enum class Kind : uint8_t { content, reasoning, calls };
  Kind kind = Kind::content;
  std::optional<DeclaredMark> open = {},
                              close = {};  // no open: the field that text belongs to which no other has
  DeclaredContent content = {};
  std::string join = "\n";  // between texts of the same field
  OrderedJson transform = {};
  bool transform_each = false;
};

// The response_template that a model brings, as Transformers 5 has them (tokenizer_config.json): how its answers are read, declared
// by who trained it. Immutable; any thread may use it.
struct DeclaredForm {
  std::vector<DeclaredField> fields;
  int32_t leftover = -1;                  // the field that has no open; -1: such text is nobody's
  DeclaredMark start;                     // behind its last place in the prompt the answer begins
  std::vector<std::string> spelled = {};  // what its marks look like, to find the special tokens in them

  // The texts that end a call, if they are no patterns.
  std::vector<std::string> call_ends() const;
  // What of an answer `tail`, the end of the prompt, holds already. REQUIRES: it is valid UTF-8.
  std::string begun(std::string_view tail) const;
};

// Throws Error with a sentence if it cannot be understood, or says what answers here have no place for.
DeclaredForm read_declared_form(const std::string& json);

}  // namespace quire
