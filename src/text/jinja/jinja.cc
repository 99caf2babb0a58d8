#include "text/jinja/jinja.h"

#include "base/error.h"
#include "text/jinja/parser.h"

namespace quire::jinja {

Template::Template(std::string_view source) : block_(std::make_shared<const Block>(parse(source))) {}

MarkedText Template::render(const Variables& variables, const Limits& limits) const {
  Interpreter interpreter(limits, variables);
  try {
    return interpreter.render(*block_);
  } catch (const Raised& raised) {
    throw Error("{}", raised.what());
  } catch (const Failure& failure) {
    throw Error("chat template, line {}: {}", interpreter.line(), failure.what());
  }
}

}  // namespace quire::jinja
