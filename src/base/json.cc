#include "base/json.h"

#include <type_traits>

#include "base/error.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

constexpr int kMaxDepth = 128;
// An ordered object looks through all its members before it takes one more: these are looks in a whole text, a fraction
// of a second. One object may have 10,000 members.
constexpr uint64_t kMaxLooks = 50'000'000;

template <class J>
J parse(std::string_view text, const std::string& what) {
  uint64_t members[kMaxDepth + 2] = {};  // so far, of the object that is open at each depth
  uint64_t looks = 0;
  const auto limit = [&](int depth, typename J::parse_event_t event, J&) {
    if (depth > kMaxDepth) throw Error("{} nests deeper than {} levels", what, kMaxDepth);
    if (event == J::parse_event_t::object_start) members[depth + 1] = 0;
    if (event == J::parse_event_t::key) looks += members[depth]++;
    if (std::is_same_v<J, OrderedJson> && looks > kMaxLooks)
      throw Error("{} has objects with too many members", what);
    return true;
  };
  try {
    return J::parse(text.begin(), text.end(), limit);
  } catch (const nlohmann::json::exception& error) {
    throw Error("{} is not valid JSON: {}", what, error.what());
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what) {
  return parse<Json>(text, what);
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& what) {
  return parse<OrderedJson>(text, what);
}

Json read_json_file(const std::string& path, size_t max_bytes) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > max_bytes) throw Error("{} is too large for a JSON file: {} bytes", path, bytes.size());
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace quire
