#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire {

// Byte-level vocabularies spell each byte as one printable character: printable Latin-1 bytes stand for
// themselves, the others for U+0100 and up. This is GPT-2's table.
void append_bytes_as_chars(std::string& out, std::string_view bytes);

// The other way; nothing if a character of `chars` stands for no byte. REQUIRES: `chars` is valid UTF-8.
std::optional<std::string> chars_to_bytes(std::string_view chars);

// GPT-2's way to cut a text into words.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace quire
