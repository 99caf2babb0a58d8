#pragma once

#include <memory>
#include <string_view>

#include "text/jinja/eval.h"
#include "text/jinja/heap.h"
#include "text/marked_text.h"

namespace quire::jinja {

// A Jinja template, parsed, with the settings that Transformers gives to chat templates: trim_blocks and
// lstrip_blocks, break and continue, the generation tag, raise_exception, strftime_now, lists and dicts that
// cannot be changed. Immutable; any thread may render it.
class Template {
 public:
  explicit Template(std::string_view source);  // throws Error, naming the line

  // Throws Error: with the template's own message as it is if it raises one, else naming the line.
  MarkedText render(const Variables& variables, const Limits& limits = {}) const;

 private:
  std::shared_ptr<const Block> block_;
};

}  // namespace quire::jinja
