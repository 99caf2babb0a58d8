// Any bytes as a regular expression: an Error is fine, a crash or a long wait is not. What it compiles to is asked a little.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bounded_work.h"
#include "base/error.h"
#include "grammar/grammar_compiler.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::grammar;
  const quire::BoundedWork work(size, {.seconds = 4, .seconds_per_byte = 2e-3, .bytes = size_t(600) << 20});
  try {
    GrammarCompiler compiler({"a", "b", "0", " ", "ab", "\xC3", "\xA9", "é", "\n"});
    Constraint constraint(compiler.compile({GrammarSource::Kind::regex, std::string(data, data + size)}));
    for (const quire::TokenId token : {0u, 1u, 4u, 2u, 3u, 7u, 5u}) {
      const auto mask = constraint.mask();
      if (constraint.advance(token) != has_token(*mask, token)) __builtin_trap();
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
