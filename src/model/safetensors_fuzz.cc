// Any bytes are either a safetensors file whose every tensor lies inside it, or an Error.
#include <cstdint>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::BoundedWork work(size);
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const auto& [name, entry] : quire::parse_safetensors(file, "fuzz")) {
      CHECK(entry.begin <= size && entry.bytes <= size - entry.begin);
      uint64_t values = 1;
      for (const uint64_t extent : entry.shape) values *= extent;
      CHECK(values == 0 ? entry.bytes == 0 : entry.bytes % values == 0);
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
