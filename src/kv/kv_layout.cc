#include "kv/kv_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace quire {

std::optional<KvFormat> kv_format_from_name(std::string_view wanted) {
  for (const KvFormat format : kKvFormats) {
    if (name(format) == wanted) return format;
  }
  return std::nullopt;
}

std::string_view name(KvFormat format) {
  switch (format) {
    case KvFormat::f32:
      return "f32";
    case KvFormat::f16:
      return "f16";
    case KvFormat::bf16:
      return "bf16";
    case KvFormat::int8:
      return "int8";
    case KvFormat::fp8:
      return "fp8";
    case KvFormat::q4:
      return "q4";
    case KvFormat::q4_plain:
      break;
  }
  return "q4_plain";
}

size_t kv_row_bytes(KvFormat format, size_t values) {
  switch (format) {
    case KvFormat::f32:
      return values * 4;
    case KvFormat::f16:
    case KvFormat::bf16:
      return values * 2;
    case KvFormat::int8:
    case KvFormat::fp8:
      return values + 2;
    case KvFormat::q4:
    case KvFormat::q4_plain:
      break;
  }
  return values / 2 + (values + kKvGroup - 1) / kKvGroup * 4;
}

bool KvGroupLayout::has_equal_cells() const {
  return std::ranges::all_of(layers, [&](const KvLayerLayout& layer) {
    const KvLayerShape &a = layer.shape, &b = layers.front().shape;
    return a.key_dim == b.key_dim && a.value_dim == b.value_dim && a.key_format == b.key_format &&
           a.value_format == b.value_format;
  });
}

size_t KvLayout::bytes_per_token() const {
  size_t bytes = 0;
  for (const KvGroupLayout& group : groups) bytes += group.bytes_per_token();
  return bytes;
}

KvLayout make_kv_layout(std::span<const KvLayerShape> layers, uint32_t page_tokens) {
  CHECK(page_tokens > 0);
  KvLayout layout;
  for (const KvLayerShape& shape : layers) {
    if (shape.shares_with) {
      CHECK(*shape.shares_with < layout.places.size());
      const KvLayout::Place place = layout.places[*shape.shares_with];
      const KvLayerShape& source = layout.groups[place.group].layers[place.slot].shape;
      CHECK(shape.kv_heads == source.kv_heads && shape.key_dim == source.key_dim &&
            shape.value_dim == source.value_dim && shape.window == source.window &&
            shape.page_tokens == source.page_tokens);
      layout.places.push_back(place);
      continue;
    }
    const KvPolicy policy{shape.window, shape.page_tokens > 0 ? shape.page_tokens : page_tokens};
    auto group = std::ranges::find_if(layout.groups, [&](const KvPolicy& g) { return g == policy; });
    if (group == layout.groups.end()) {
      layout.groups.push_back({policy, 0, {}});
      group = layout.groups.end() - 1;
    }
    for (const auto& [format, dim] :
         {std::pair(shape.key_format, shape.key_dim), std::pair(shape.value_format, shape.value_dim)}) {
      if (!is_float(format) && dim % 2 != 0)
        throw Error("KV format {} wants heads of an even size, not {}", name(format), dim);
    }
    KvLayerLayout layer{.shape = shape, .offset = group->page_bytes};
    layer.key_row_bytes = kv_row_bytes(shape.key_format, shape.key_dim);
    layer.value_row_bytes = kv_row_bytes(shape.value_format, shape.value_dim);
    layer.head_bytes = policy.page_tokens * (layer.key_row_bytes + layer.value_row_bytes);
    if (!group->layers.empty()) layer.first_cell = group->cells();
    group->page_bytes += shape.kv_heads * layer.head_bytes;
    layout.places.push_back({uint32_t(group - layout.groups.begin()), uint32_t(group->layers.size())});
    group->layers.push_back(layer);
  }
  layout.node_tokens = 1;
  for (const KvPolicy& group : layout.groups)
    layout.node_tokens = std::lcm(layout.node_tokens, group.page_tokens);
  for (uint32_t g = 0; g < layout.groups.size(); ++g) {
    for (uint32_t i = 0; i < layout.node_tokens / layout.groups[g].page_tokens; ++i)
      layout.node_pages.push_back({g, i});
  }
  return layout;
}

}  // namespace quire
