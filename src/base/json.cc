#include "base/json.h"

#include "base/error.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

constexpr int kMaxDepth = 128;

template <class J>
J parse(std::string_view text, const std::string& what) {
  const auto limit_depth = [&](int depth, typename J::parse_event_t, J&) {
    if (depth > kMaxDepth) throw Error("{} nests deeper than {} levels", what, kMaxDepth);
    return true;
  };
  try {
    return J::parse(text.begin(), text.end(), limit_depth);
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
