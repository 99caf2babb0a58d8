// Any bytes are either a file of importance whose sums are sums, or an Error.
#include <cstdint>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "model/importance.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::BoundedWork work(size);
  try {
    const quire::Importance importance =
        quire::Importance::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    for (const auto& [name, entry] : importance.entries()) {
      CHECK(!entry.tokens.empty() && entry.squares.size() % entry.tokens.size() == 0);
      quire::TensorEntry tensor;
      tensor.name = name;
      tensor.shape = {entry.tokens.size(), 1, entry.columns()};
      CHECK(importance.of(tensor, entry.tokens.size() - 1).size() <= entry.columns());
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
