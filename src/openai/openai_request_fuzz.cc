// Any bytes as the body of a request: an ApiError, or an ask that the engine takes.
#include <cstddef>
#include <cstdint>

#include "base/bounded_work.h"
#include "openai/any_body.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::byte_model();  // is made once, for all
  const quire::BoundedWork work(size);
  quire::understand({reinterpret_cast<const char*>(data), size});
  return 0;
}
