#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/id.h"
#include "kv/prefix/cache_salt.h"
#include "kv/tiers/page_store.h"

namespace quire {

// One page as a store has it. All numbers are little-endian.
//
//   char magic[8]; u32 version; u32 page of its node; u8 space[32]; u8 prefix[32]; u64 bytes; u32 tokens; u32 0;
//   u32 token[tokens]; u8 page[bytes]; u8 tag[32]
//
// `space` is the tag of whose pages they are: the model, its format, its kernels. `prefix` is that of all tokens up to the node's
// end under their salt, made from the one before and the node's own tokens, which are there as well. The tag at the end goes over
// all before it. Every byte but those of the page is known to whoever asks for it, and compared.
inline constexpr uint32_t kStoredPageVersion = 1;

struct PageAddress {
  StoreTag space = {}, prefix = {};
  uint32_t node_page = 0;
  std::span<const TokenId> tokens = {};  // of its node
  size_t bytes = 0;                      // of the page
};

// Its name in the store: "quire:1:SPACE:PREFIX:PAGE", of each tag its first half.
std::string stored_name(const PageAddress& page);

size_t stored_size(const PageAddress& page);
// What comes before the page's bytes.
std::vector<std::byte> stored_head(const PageAddress& page);
StoreTag stored_tag(std::span<const std::byte> head, std::span<const std::byte> page, const PageMac& mac);

// What is wrong with a value.
enum class PageFault : uint8_t {
  none,
  length,   // it has more or fewer bytes
  foreign,  // it is no page, or one of another model, format or place
  tokens,   // it is of other tokens, or under another salt
  tag,      // somebody made it who does not know the key, or it was damaged
};
inline constexpr size_t kPageFaults = size_t(PageFault::tag) + 1;
std::string_view name(PageFault fault);

// Any bytes. With `none`, `page` is the page in them.
PageFault read_stored_page(std::span<const std::byte> value, const PageAddress& wanted, const PageMac& mac,
                           std::span<const std::byte>& page);

// A prompt as it is asked for by name.
struct PromptKey {
  std::vector<TokenId> tokens;
  CacheSalt salt;
};

// The tags of prompts, node by node. It remembers the last one's, as the next is often the same and goes on. One thread.
class PrefixTags {
 public:
  // `identity`: as kv_snapshot.h describes it. The tags' maker must outlive it.
  PrefixTags(const PageMac& mac, std::string_view identity, uint32_t node_tokens);

  const StoreTag& space() const { return space_; }
  // Of the node that ends with the first `nodes` times node_tokens of these. REQUIRES: there are as many, and one or more.
  const StoreTag& of(std::span<const TokenId> tokens, CacheSalt salt, size_t nodes);

 private:
  StoreTag after(const StoreTag& before, std::span<const TokenId> tokens) const;

  const PageMac& mac_;
  uint32_t node_tokens_;
  StoreTag space_;
  CacheSalt salt_;
  std::vector<TokenId> tokens_;  // whose tags these are
  std::vector<StoreTag> tags_;   // that of no tokens first
};

// What a server that has computed a prompt tells the one that goes on with it: that the pages of its first `tokens` are in the store, under
// this tag. "1:TOKENS:TAG" in hexadecimal digits. It says nothing to who cannot make the tag itself, and is believed by nobody else.
struct HandOver {
  uint32_t tokens = 0;
  StoreTag prefix = {};

  std::string text() const;
  // Nothing: it is not one.
  static std::optional<HandOver> parse(std::string_view text);
};

}  // namespace quire
