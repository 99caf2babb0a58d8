#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

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
constexpr bool is_rotated(KvFormat format) {
  return format == KvFormat::q4;
}

// What one layer wants cached: said by the model, once, before any page exists.
struct KvLayerShape {
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  uint32_t window = 0;  // how many positions, its own included, a token sees; 0: all
  KvFormat key_format = KvFormat::f16;
  KvFormat value_format = KvFormat::f16;
  // An earlier layer whose rows it reads; it stores none, and all the rest must be as there.
  std::optional<uint32_t> shares_with = {};
};

// Where one layer's rows sit inside a page: KV head by KV head, each its key rows and then its value rows.
struct KvLayerLayout {
  KvLayerShape shape;
  size_t offset = 0;  // of the layer in the page
  size_t key_row_bytes = 0;
  size_t value_row_bytes = 0;
  size_t head_bytes = 0;    // one head's keys and values of a whole page
  uint32_t first_cell = 0;  // heads of the layers before it in the page

  size_t key_offset(uint32_t head, uint32_t row) const {
    return offset + head * head_bytes + row * key_row_bytes;
  }
  size_t value_offset(uint32_t head, uint32_t row, uint32_t page_tokens) const {
    return offset + head * head_bytes + page_tokens * key_row_bytes + row * value_row_bytes;
  }
};

// A layer group: layers whose tokens live equally long, and so share pages. A page holds `page_tokens` tokens
// of all of them, contiguous: the unit that is shared, copied, evicted, stored and sent. It has the same
// bytes on every backend.
struct KvGroupLayout {
  uint32_t page_tokens = 0;
  uint32_t window = 0;  // 0: everything is kept
  size_t page_bytes = 0;
  std::vector<KvLayerLayout> layers;

  size_t bytes_per_token() const { return page_bytes / page_tokens; }
  // A page is made of cells, one for each head of each layer.
  uint32_t cells() const { return layers.back().first_cell + layers.back().shape.kv_heads; }
  // All cells are alike: any of them can hold the rows of any head.
  bool has_equal_cells() const;
};

// The groups of a model, and where each of its layers is found in them.
struct KvLayout {
  struct Place {
    uint32_t group = 0;
    uint32_t slot = 0;  // in KvGroupLayout::layers
  };
  std::vector<KvGroupLayout> groups;
  std::vector<Place> places;  // by layer of the model; one that shares has its source's

  // Of a token that every layer still sees.
  size_t bytes_per_token() const;
};

inline constexpr uint32_t kPageTokens = 32;

// One group for the layers that see everything, and one per window width.
KvLayout make_kv_layout(std::span<const KvLayerShape> layers, uint32_t page_tokens = kPageTokens);

}  // namespace quire
