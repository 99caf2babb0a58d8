#include "base/json.h"

#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

constexpr int kMaxDepth = 128;
// Objects that keep their order look at all their members when one is added: 10,000 members of one take half so many
// looks, a million would take hours.
constexpr uint64_t kMaxLooks = 100'000'000;

template <class J>
J parse(std::string_view text, const std::string& what) {
  using Event = typename J::parse_event_t;
  uint64_t looks = 0;
  std::vector<uint64_t> members;  // of the objects that are open
  const auto limit = [&](int depth, Event event, J&) {
    if (depth > kMaxDepth) throw Error("{} nests deeper than {} levels", what, kMaxDepth);
    if constexpr (std::is_same_v<J, OrderedJson>) {
      if (event == Event::object_start) members.push_back(0);
      if (event == Event::object_end) members.pop_back();
      if (event == Event::key) looks += members.back()++;
      if (looks > kMaxLooks) throw Error("{} has objects with too many members", what);
    }
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
