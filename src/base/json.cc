#include "base/json.h"

#include <type_traits>

#include "base/error.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

// An ordered object looks through all its members before it takes one more: these are looks in a whole text, a fraction
// of a second. One object may have 10,000 members.
constexpr uint64_t kMostLooks = 50'000'000;

// What a value, a container and a member of an object take, as far as nlohmann's types and the allocator tell.
constexpr uint64_t kValueBytes = 16, kContainerBytes = 64, kStringBytes = 48, kMemberBytes = 96;

// Reads a text without keeping anything of it, and refuses what a tree of it would make expensive. (A callback of the
// parser could say as much, but makes it search the parent of every object that ends.)
template <class J>
class Survey : public nlohmann::json_sax<J> {
 public:
  using typename nlohmann::json_sax<J>::number_integer_t;
  using typename nlohmann::json_sax<J>::number_unsigned_t;
  using typename nlohmann::json_sax<J>::number_float_t;
  using typename nlohmann::json_sax<J>::string_t;
  using typename nlohmann::json_sax<J>::binary_t;

  Survey(const std::string& what, const JsonLimits& limits) : what_(what), limits_(limits) {}

  bool null() override { return take(0); }
  bool boolean(bool) override { return take(0); }
  bool number_integer(number_integer_t) override { return take(0); }
  bool number_unsigned(number_unsigned_t) override { return take(0); }
  bool number_float(number_float_t, const string_t&) override { return take(0); }
  bool string(string_t& text) override { return take(kStringBytes + text.size()); }
  bool binary(binary_t&) override { return take(0); }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    looks_ += members_.back()++;
    if (std::is_same_v<J, OrderedJson> && looks_ > kMostLooks)
      throw Error("{} has objects with too many members", what_);
    bytes_ += kMemberBytes + name.size();
    return true;
  }
  bool parse_error(size_t, const std::string&, const typename J::exception& error) override {
    throw Error("{} is not valid JSON: {}", what_, error.what());
  }

 private:
  bool take(uint64_t bytes) {
    bytes_ += kValueBytes + bytes;
    if (bytes_ > limits_.tree_bytes)
      throw Error("{} would take more than {} MB of memory to understand", what_, limits_.tree_bytes >> 20);
    return true;
  }
  bool open() {
    if (members_.size() >= limits_.depth) throw Error("{} nests deeper than {} levels", what_, limits_.depth);
    members_.push_back(0);
    return take(kContainerBytes);
  }
  bool close() {
    members_.pop_back();
    return true;
  }

  const std::string& what_;
  const JsonLimits& limits_;
  std::vector<uint64_t> members_;  // so far, of each object that is open; of arrays 0
  uint64_t looks_ = 0, bytes_ = 0;
};

template <class J>
J parse(std::string_view text, const std::string& what, const JsonLimits& limits) {
  Survey<J> survey(what, limits);
  J::sax_parse(text.begin(), text.end(), &survey);
  try {
    return J::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    throw Error("{} is not valid JSON: {}", what, error.what());
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  return parse<Json>(text, what, limits);
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  return parse<OrderedJson>(text, what, limits);
}

Json read_json_file(const std::string& path, size_t max_bytes) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > max_bytes) throw Error("{} is too large for a JSON file: {} bytes", path, bytes.size());
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace quire
