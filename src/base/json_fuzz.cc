// Any bytes are either JSON, which says the same when it is written and read again, or an Error.
#include <cstddef>
#include <cstdint>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "base/json.h"

namespace {

template <class Parse>
void check_round_trip(std::string_view bytes, Parse parse) {
  const std::string text = parse(bytes).dump();
  CHECK(parse(text).dump() == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const quire::BoundedWork work(size);
  const auto parse_ordered = [](std::string_view bytes) { return quire::parse_ordered_json(bytes, "fuzz"); };
  const auto parse = [](std::string_view bytes) { return quire::parse_json(bytes, "fuzz"); };
  bool ordered = false;
  try {
    check_round_trip(text, parse_ordered);
    ordered = true;
  } catch (const quire::Error&) {
  }
  try {
    check_round_trip(text, parse);
  } catch (const quire::Error&) {
    CHECK(!ordered);  // what keeps its order is refused more often, never less
  }
  return 0;
}
