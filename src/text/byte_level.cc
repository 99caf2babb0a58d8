#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr uint32_t kChars = 256 + 68;  // 68 bytes have no printable character of their own

struct Tables {
  std::array<char32_t, 256> char_of{};
  std::array<int16_t, kChars> byte_of{};
};

constexpr Tables make_tables() {
  Tables tables;
  for (auto& byte : tables.byte_of) byte = -1;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t c = printable ? char32_t(byte) : next++;
    tables.char_of[byte] = c;
    tables.byte_of[c] = int16_t(byte);
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

void append_bytes_as_chars(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(out, kTables.char_of[static_cast<unsigned char>(byte)]);
}

std::optional<std::string> chars_to_bytes(std::string_view chars) {
  std::string bytes;
  bytes.reserve(chars.size());
  for (size_t i = 0; i < chars.size();) {
    const CodePoint c = code_point_at(chars, i);
    if (c.value >= kChars || kTables.byte_of[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kTables.byte_of[c.value]));
    i += c.bytes;
  }
  return bytes;
}

}  // namespace quire
