#include "text/utf8.h"

namespace quire {

CodePoint code_point_at(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[offset + i]); };
  const uint32_t length = utf8_length(text[offset]);
  switch (length) {
    case 1:
      return {byte(0), 1};
    case 2:
      return {char32_t((byte(0) & 0x1F) << 6 | (byte(1) & 0x3F)), 2};
    case 3:
      return {char32_t((byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)), 3};
    default:
      return {char32_t((byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                       (byte(3) & 0x3F)),
              4};
  }
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

BrokenUtf8 find_broken_utf8(std::string_view text, size_t offset) {
  while (offset < text.size()) {
    const auto lead = static_cast<unsigned char>(text[offset]);
    if (lead < 0x80) {
      ++offset;
      continue;
    }
    if (lead < 0xC2 || lead > 0xF4) return {offset, 1};
    const uint32_t length = utf8_length(text[offset]);
    for (uint32_t i = 1; i < length; ++i) {
      if (offset + i == text.size()) return {offset, 0};
      const auto next = static_cast<unsigned char>(text[offset + i]);
      unsigned char low = 0x80, high = 0xBF;
      if (i == 1) {  // overlong forms, surrogates, beyond U+10FFFF
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
      }
      if (next < low || next > high) return {offset, i};
    }
    offset += length;
  }
  return {text.size(), 0};
}

bool is_valid_utf8(std::string_view text) {
  return find_broken_utf8(text).offset == text.size();
}

std::string replace_broken_utf8(std::string_view text) {
  Utf8Stream stream;
  std::string out = stream.push(text);
  return out += stream.finish();
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_.append(bytes);
    pending_.clear();
    bytes = joined;
  }
  std::string out;
  out.reserve(bytes.size());
  size_t done = 0;
  while (done < bytes.size()) {
    const BrokenUtf8 broken = find_broken_utf8(bytes, done);
    out.append(bytes.substr(done, broken.offset - done));
    done = broken.offset;
    if (done == bytes.size()) break;
    if (broken.bad_bytes == 0) {
      pending_ = bytes.substr(done);
      break;
    }
    out.append(kReplacementChar);
    done += broken.bad_bytes;
  }
  return out;
}

std::string Utf8Stream::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? std::string(kReplacementChar) : std::string();
}

}  // namespace quire
