#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/side.h"

namespace quire {

// How a cached key or value row is stored: floats one after the other, or codes and then their scales.
//
//   int8      int8_t codes[n]; f16 scale
//   fp8       e4m3 codes[n]; f16 scale
//   q4        codes of four bits, two to a byte; then of each kKvGroup values {f16 scale, f16 least}. The row is turned by a
//             Hadamard matrix first, which spreads outliers over all of it; queries or sums are turned to match.
//   q4_plain  the same without the turn: to see what it is good for
enum class KvFormat : uint8_t { f32, f16, bf16, int8, fp8, q4, q4_plain };
inline constexpr KvFormat kKvFormats[] = {KvFormat::f32, KvFormat::f16, KvFormat::bf16,    KvFormat::int8,
                                          KvFormat::fp8, KvFormat::q4,  KvFormat::q4_plain};
inline constexpr size_t kKvGroup = 32;  // values of a q4 row that share a scale; the last may be fewer

std::optional<KvFormat> kv_format_from_name(std::string_view name);
std::string_view name(KvFormat format);
// REQUIRES: an even number of values in q4.
size_t kv_row_bytes(KvFormat format, size_t values);
constexpr bool is_float(KvFormat format) {
  return format == KvFormat::f32 || format == KvFormat::f16 || format == KvFormat::bf16;
}
constexpr bool is_turned(KvFormat format) {
  return format == KvFormat::q4;
}

// How long rows are wanted, and in what portions they are kept. Layers of one policy share their pages.
struct KvPolicy {
  uint32_t window = 0;  // how many positions, its own included, a token sees; 0: all
  uint32_t page_tokens = 0;
  // A page has what the last token of a node, or of a run, left, and nothing of those before: few nodes have one.
  bool is_state = false;
  Side side = Side::device;  // in whose memory the pages are

  bool operator==(const KvPolicy&) const = default;
  bool keeps_all() const { return window == 0; }
  // The first row that the token of this row sees, and the page that it is in.
  uint32_t first_seen(uint32_t row) const { return keeps_all() || row < window ? 0 : row + 1 - window; }
  uint32_t first_page_seen(uint32_t row) const { return first_seen(row) / page_tokens; }
  uint32_t pages_covering(size_t tokens) const { return uint32_t((tokens + page_tokens - 1) / page_tokens); }
};

// One kind of row that a layer wants cached: said by the model, once, before any page exists. Each head has a key for every
// token and a value beside it, or the key alone: rows whose beginning is their value, keys of an index, whatever the
// layer reads back itself.
struct KvStream {
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;    // 0: there are no values
  uint32_t window = 0;       // how many positions, its own included, a token sees; 0: all
  uint32_t page_tokens = 0;  // of its pages; 0: as many as is usual
  KvFormat key_format = KvFormat::f16;
  KvFormat value_format = KvFormat::f16;
  // A key is its row and then that of its value: what is stored once is both. Such are latent rows, of which the key's own is what
  // is rotated.
  bool key_goes_on = false;
  // Tokens to a row. It is written with the last of them, from what other streams have kept: so a sequence can be
  // continued anywhere.
  uint32_t stride = 1;
  // One row that every token rewrites: it finds it as the token before left it. There is one in a page; a run reads one page
  // and leaves others (KvView::state_before, state_left), and what can be found later is what the cache chose to keep: at the
  // end of a node, or of a sequence. Its window, its stride and its pages follow from that.
  bool state = false;
  bool own_format = false;   // its formats are part of the model, whatever is chosen for keys and values
  Side side = Side::device;  // whoever computes the layer has its pages
  // An earlier layer whose rows it reads; it stores none, and all the rest must be as there.
  std::optional<uint32_t> shares_with = {};

  uint32_t query_dim() const { return key_goes_on ? key_dim + value_dim : key_dim; }  // of one query head
};
using KvLayerShape = KvStream;  // to those who attend to one
// All that a layer wants cached.
using KvLayer = std::vector<KvStream>;

// Where the rows of one stream of one layer sit inside a page: KV head by KV head, each its key rows and then its value
// rows.
struct KvLayerLayout {
  KvStream shape;
  size_t offset = 0;       // in the page
  uint32_t page_rows = 0;  // of each head
  size_t key_row_bytes = 0;
  size_t value_row_bytes = 0;
  size_t head_bytes = 0;    // one head's keys and values of a whole page
  uint32_t first_cell = 0;  // heads of the streams before it in the page

  size_t key_offset(uint32_t head, uint32_t row) const {
    return offset + head * head_bytes + row * key_row_bytes;
  }
  size_t value_offset(uint32_t head, uint32_t row) const {
    return offset + head * head_bytes + page_rows * key_row_bytes + row * value_row_bytes;
  }
};

// A layer group: streams of one policy, of any layers. A page holds `page_tokens` tokens of all of them, contiguous: the unit
// that is shared, copied, evicted, stored and sent. It has the same bytes on every backend.
struct KvGroupLayout : KvPolicy {
  size_t page_bytes = 0;
  std::vector<KvLayerLayout> layers;  // one for each stream

  // A state costs what it costs however many tokens there are.
  size_t bytes_per_token() const { return is_state ? 0 : page_bytes / page_tokens; }
  // A page is made of cells, one for each head of each stream.
  uint32_t cells() const { return layers.back().first_cell + layers.back().shape.kv_heads; }
  // All cells are alike: any of them can hold the rows of any head.
  bool has_equal_cells() const;
};

// The groups of a model, and where the streams of each of its layers are found in them. What can be found by its tokens is a tree of nodes
// (PrefixIndex): each is as many tokens as fill whole pages in every group, and has all those pages.
struct KvLayout {
  struct Place {
    uint32_t group = 0;
    uint32_t slot = 0;  // in KvGroupLayout::layers
  };
  std::vector<KvGroupLayout> groups;
  std::vector<std::vector<Place>>
      places;  // by layer of the model, then stream; one that shares has its source's
  struct NodePage {
    uint32_t group = 0;
    uint32_t index = 0;  // of those that the group has of a node
  };
  std::vector<NodePage> node_pages;  // of one node, group by group
  uint32_t node_tokens = 0;          // the least common multiple of all page_tokens
  std::optional<uint32_t> states;    // the group of all states, if there are any: a page of it is one state

  const KvLayerLayout& at(const Place& place) const { return groups[place.group].layers[place.slot]; }
  bool has_states() const { return states.has_value(); }
  size_t state_bytes() const { return states ? groups[*states].page_bytes : 0; }
  size_t node_page_bytes(uint32_t page) const { return groups[node_pages[page].group].page_bytes; }
  // Where a page of a node that has so many before it is in its sequence.
  uint32_t page_index(uint32_t page, uint32_t depth) const {
    const NodePage& place = node_pages[page];
    return depth * (node_tokens / groups[place.group].page_tokens) + place.index;
  }
  // Whether it has any of the node's first `tokens`.
  bool reaches(uint32_t page, size_t tokens) const {
    const NodePage& place = node_pages[page];
    return size_t(place.index) * groups[place.group].page_tokens < tokens;
  }

  // Of a token that every layer still sees.
  size_t bytes_per_token() const;
};

inline constexpr uint32_t kPageTokens = 32;

// One group for each policy. `page_tokens`: of the layers that do not say.
KvLayout make_kv_layout(std::span<const KvLayer> layers, uint32_t page_tokens = kPageTokens);
// Of layers that have one stream each.
KvLayout make_kv_layout(std::span<const KvStream> layers, uint32_t page_tokens = kPageTokens);

}  // namespace quire
