#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "chat/argument_types.h"
#include "chat/loose_value.h"
#include "chat/response_template.h"

namespace quire {

struct ParsedCall {
  std::string name;
  OrderedJson arguments;  // an object
};

// Whether `text` is a call in that form, from its first byte to its last, or may become one. Some forms hold several calls.
// `after_section_open`: the section has begun before the text.
struct CallText {
  std::string_view text;
  bool after_section_open = false;
};
Match match_call(const CallForm& form, CallText text, const ArgumentTypes& types,
                 std::vector<ParsedCall>& calls);

// What a text that may be such a call begins with; empty for one that is nothing but its arguments.
std::string call_trigger(const CallForm& form, bool after_section_open);

// Follows a call as it comes: where it may end. Cheap, and never misses an end.
class CallEnd {
 public:
  explicit CallEnd(const CallForm& form);
  void push(char c);
  // `text`: all that was pushed.
  bool may_be_here(std::string_view text) const;

 private:
  std::string last_word_;  // of what closes the call; empty: its brackets say where it ends
  bool single_quotes_ = false;
  char quote_ = '\0';  // of the string that it is in
  bool escaped_ = false, closed_ = false;
  uint64_t depth_ = 0;
};

}  // namespace quire
