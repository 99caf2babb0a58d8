#include "kv/tiers/stored_page.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kPageMagic[8] = {'q', 'u', 'i', 'r', 'e', 'K', 'V', 'p'};
constexpr size_t kVersionAt = sizeof(kPageMagic), kPageAt = kVersionAt + 4, kSpaceAt = kPageAt + 4,
                 kPrefixAt = kSpaceAt + sizeof(StoreTag), kBytesAt = kPrefixAt + sizeof(StoreTag),
                 kCountAt = kBytesAt + 8, kTokensAt = kCountAt + 8;

template <class T>
void put(std::vector<std::byte>& head, size_t at, const T& value) {
  std::memcpy(head.data() + at, &value, sizeof(value));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Takes as long whatever the difference is.
bool same_tag(const std::byte* a, const StoreTag& b) {
  unsigned differs = 0;
  for (size_t i = 0; i < b.size(); ++i) differs |= std::to_integer<unsigned>(a[i] ^ b[i]);
  return differs == 0;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", unsigned(byte));
  return text;
}

}  // namespace

std::string stored_name(const PageAddress& page) {
  constexpr size_t kHalf = sizeof(StoreTag) / 2;
  return fmt::format("quire:{}:{}:{}:{}", kStoredPageVersion, hex(std::span(page.space).first(kHalf)),
                     hex(std::span(page.prefix).first(kHalf)), page.node_page);
}

size_t stored_size(const PageAddress& page) {
  return kTokensAt + page.tokens.size_bytes() + page.bytes + sizeof(StoreTag);
}

std::vector<std::byte> stored_head(const PageAddress& page) {
  std::vector<std::byte> head(kTokensAt + page.tokens.size_bytes());
  put(head, 0, kPageMagic);
  put(head, kVersionAt, kStoredPageVersion);
  put(head, kPageAt, page.node_page);
  put(head, kSpaceAt, page.space);
  put(head, kPrefixAt, page.prefix);
  put(head, kBytesAt, uint64_t(page.bytes));
  put(head, kCountAt, uint32_t(page.tokens.size()));
  std::memcpy(head.data() + kTokensAt, page.tokens.data(), page.tokens.size_bytes());
  return head;
}

StoreTag stored_tag(std::span<const std::byte> head, std::span<const std::byte> page, const PageMac& mac) {
  const std::span<const std::byte> parts[] = {head, page};
  return mac.of(parts);
}

std::string_view name(PageFault fault) {
  switch (fault) {
    case PageFault::none:
      return "none";
    case PageFault::length:
      return "length";
    case PageFault::foreign:
      return "foreign";
    case PageFault::tokens:
      return "tokens";
    case PageFault::tag:
      break;
  }
  return "tag";
}

PageFault read_stored_page(std::span<const std::byte> value, const PageAddress& wanted, const PageMac& mac,
                           std::span<const std::byte>& page) {
  const std::vector<std::byte> head = stored_head(wanted);
  const auto is_as_wanted = [&](size_t from, size_t to) {
    return std::memcmp(value.data() + from, head.data() + from, to - from) == 0;
  };
  if (value.size() < kTokensAt) return PageFault::length;
  if (!is_as_wanted(0, kPrefixAt)) return PageFault::foreign;
  if (value.size() != stored_size(wanted) || !is_as_wanted(kBytesAt, kTokensAt)) return PageFault::length;
  if (!is_as_wanted(kPrefixAt, kBytesAt) || !is_as_wanted(kTokensAt, head.size())) return PageFault::tokens;
  const std::span<const std::byte> there = value.subspan(head.size(), wanted.bytes);
  if (!same_tag(value.data() + head.size() + wanted.bytes, stored_tag(head, there, mac)))
    return PageFault::tag;
  page = there;
  return PageFault::none;
}

// ---- tags --------------------------------------------------------------------------------------------------------

PrefixTags::PrefixTags(const PageMac& mac, std::string_view identity, uint32_t node_tokens)
    : mac_(mac), node_tokens_(node_tokens) {
  const std::span<const std::byte> parts[] = {bytes_of("quire pages of "), bytes_of(identity)};
  space_ = mac_.of(parts);
}

StoreTag PrefixTags::after(const StoreTag& before, std::span<const TokenId> tokens) const {
  const std::span<const std::byte> parts[] = {bytes_of("quire tokens after "), before, std::as_bytes(tokens)};
  return mac_.of(parts);
}

const StoreTag& PrefixTags::of(std::span<const TokenId> tokens, CacheSalt salt, size_t nodes) {
  CHECK(nodes > 0 && nodes * node_tokens_ <= tokens.size());
  const std::span<const TokenId> wanted = tokens.first(nodes * node_tokens_);
  if (tags_.empty() || salt != salt_) {
    const uint64_t numbers[] = {salt.key, salt.text};
    const std::span<const std::byte> parts[] = {bytes_of("quire salt "), space_,
                                                std::as_bytes(std::span(numbers))};
    tags_.assign(1, mac_.of(parts));
    tokens_.clear();
    salt_ = salt;
  }
  const size_t same = size_t(std::ranges::mismatch(wanted, tokens_).in1 - wanted.begin()) / node_tokens_;
  if (same >= nodes) return tags_[nodes];
  tags_.resize(same + 1);
  for (size_t node = same; node < nodes; ++node)
    tags_.push_back(after(tags_.back(), wanted.subspan(node * node_tokens_, node_tokens_)));
  tokens_.assign(wanted.begin(), wanted.end());
  return tags_.back();
}

std::string HandOver::text() const {
  return fmt::format("1:{}:{}", tokens, hex(prefix));
}

std::optional<HandOver> HandOver::parse(std::string_view text) {
  if (!text.starts_with("1:")) return std::nullopt;
  text.remove_prefix(2);
  HandOver over;
  const char* const end = text.data() + text.size();
  const auto [after, problem] = std::from_chars(text.data(), end, over.tokens);
  if (problem != std::errc() || after == end || *after != ':') return std::nullopt;
  text.remove_prefix(size_t(after - text.data()) + 1);
  if (text.size() != 2 * over.prefix.size()) return std::nullopt;
  for (size_t i = 0; i < over.prefix.size(); ++i) {
    uint8_t byte = 0;
    const char* const digits = text.data() + 2 * i;
    const auto [last, wrong] = std::from_chars(digits, digits + 2, byte, 16);
    if (wrong != std::errc() || last != digits + 2) return std::nullopt;
    over.prefix[i] = std::byte(byte);
  }
  return over;
}

}  // namespace quire
