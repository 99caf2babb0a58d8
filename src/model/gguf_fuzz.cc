// Any bytes are either a GGUF file whose every tensor lies inside it, or an Error.
#include <cstdint>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "model/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::BoundedWork work(size);
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const quire::GgufHead head = quire::parse_gguf(file, "fuzz");
    unsigned sum = 0;
    for (const quire::GgufTensor& tensor : head.tensors) {
      CHECK(tensor.offset <= size && tensor.entry.bytes <= size - tensor.offset && tensor.entry.bytes > 0);
      sum += unsigned(file[tensor.offset]) + unsigned(file[tensor.offset + tensor.entry.bytes - 1]);
    }
    return sum == ~0u ? 1 : 0;
  } catch (const quire::Error&) {
    return 0;
  }
}
