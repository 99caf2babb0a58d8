#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quire {

static_assert(std::endian::native == std::endian::little, "model files are little-endian and read in place");

// Walks over bytes from outside; throws Error, naming the file, where they end too early.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

  template <class T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  // A length of 64 bits, then as many bytes. The view is into the file.
  std::string_view read_string(std::string_view what) {
    const auto bytes = take(read<uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > left())
      throw Error("{} is cut short or damaged: {} at byte {} needs {} bytes and {} are left", path_, what,
                  position_, count, left());
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  // Before memory is taken for `count` elements: could the rest of the file hold so many?
  void expect(uint64_t count, size_t least_bytes_each, std::string_view what) const {
    if (count > left() / least_bytes_each)
      throw Error("{} is cut short or damaged: it promises {} {} and has {} bytes left", path_, count, what,
                  left());
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  size_t position_ = 0;
};

}  // namespace quire
