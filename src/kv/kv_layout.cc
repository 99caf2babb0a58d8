#include "kv/kv_layout.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

std::optional<KvFormat> kv_format_from_name(std::string_view name) {
  if (name == "f32") return KvFormat::f32;
  if (name == "f16") return KvFormat::f16;
  if (name == "bf16") return KvFormat::bf16;
  return std::nullopt;
}

std::string_view name(KvFormat format) {
  switch (format) {
    case KvFormat::f32:
      return "f32";
    case KvFormat::f16:
      return "f16";
    case KvFormat::bf16:
      break;
  }
  return "bf16";
}

size_t kv_row_bytes(KvFormat format, size_t values) {
  return values * (format == KvFormat::f32 ? 4 : 2);
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
    auto group = std::find_if(layout.groups.begin(), layout.groups.end(),
                              [&](const KvGroupLayout& g) { return g.window == shape.window; });
    if (group == layout.groups.end()) {
      layout.groups.push_back(
          {.page_tokens = page_tokens, .window = shape.window, .page_bytes = 0, .layers = {}});
      group = layout.groups.end() - 1;
    }
    KvLayerLayout layer{.shape = shape, .offset = group->page_bytes};
    layer.key_row_bytes = kv_row_bytes(shape.key_format, shape.key_dim);
    layer.value_row_bytes = kv_row_bytes(shape.value_format, shape.value_dim);
    layer.head_bytes = page_tokens * (layer.key_row_bytes + layer.value_row_bytes);
    group->page_bytes += shape.kv_heads * layer.head_bytes;
    layout.places.push_back({uint32_t(group - layout.groups.begin()), uint32_t(group->layers.size())});
    group->layers.push_back(layer);
  }
  return layout;
}

}  // namespace quire
