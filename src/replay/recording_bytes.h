#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {

// Numbers, lists and texts one after the other; lists and texts have their length in front.
class RecordingWriter {
 public:
  const std::vector<std::byte>& bytes() const { return bytes_; }

  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  template <class T>
  requires std::is_arithmetic_v<T>
  void number(T value) { raw(std::as_bytes(std::span(&value, 1))); }
  template <class T>
  void numbers(const std::vector<T>& values) {
    number(uint32_t(values.size()));
    raw(std::as_bytes(std::span(values)));
  }
  void text(const std::string& text) {
    number(uint32_t(text.size()));
    raw(std::as_bytes(std::span(text)));
  }

 private:
  std::vector<std::byte> bytes_;
};

// Reads them from bytes that anybody may have written. Throws Error where they are not what they should be; takes no more
// memory than there are bytes.
class RecordingReader {
 public:
  explicit RecordingReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  // One byte below `end`.
  size_t choice(size_t end) {
    const auto value = number<uint8_t>();
    if (value >= end) throw Error("{} is none of {} possibilities", value, end);
    return value;
  }
  // The length of a list whose elements take at least so many bytes each.
  uint32_t count(size_t element_bytes) {
    const auto count = number<uint32_t>();
    if (count > bytes_.size() / element_bytes) throw Error("a list of {} goes beyond the end", count);
    return count;
  }
  template <class T>
  std::vector<T> numbers() {
    std::vector<T> values(count(sizeof(T)));
    const std::span<const std::byte> bytes = take(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::string text() {
    const std::span<const std::byte> bytes = take(count(1));
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!is_valid_utf8(text)) throw Error("a text is not UTF-8");
    return text;
  }
  void end() const {
    if (!bytes_.empty()) throw Error("{} bytes too many", bytes_.size());
  }

 private:
  std::span<const std::byte> take(size_t count) {
    if (count > bytes_.size()) throw Error("it ends too early");
    const std::span<const std::byte> taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace quire
