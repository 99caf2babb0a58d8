#include "kv/layout/kv_layout.h"

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
  if (values == 0) return 0;  // as keys that are their values alone
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

namespace {

void check_format(KvFormat format, uint32_t dim) {
  if (!is_float(format) && dim % 2 != 0)
    throw Error("KV format {} wants heads of an even size, not {}", name(format), dim);
}

KvLayout::Place shared_place(const KvLayout& layout, const KvStream& stream, size_t index) {
  CHECK(*stream.shares_with < layout.places.size() && index < layout.places[*stream.shares_with].size());
  const KvLayout::Place place = layout.places[*stream.shares_with][index];
  const KvStream& source = layout.at(place).shape;
  CHECK(stream.kv_heads == source.kv_heads && stream.key_dim == source.key_dim &&
        stream.value_dim == source.value_dim && stream.key_goes_on == source.key_goes_on &&
        stream.window == source.window && stream.page_tokens == source.page_tokens &&
        stream.stride == source.stride && stream.side == source.side);
  return place;
}

// After all that is in its group's pages already.
KvLayout::Place add_stream(KvLayout& layout, KvStream stream, uint32_t page_tokens) {
  KvPolicy policy{stream.window, stream.page_tokens > 0 ? stream.page_tokens : page_tokens, stream.state,
                  stream.side};
  if (stream.state) {
    policy.page_tokens = stream.stride = layout.node_tokens;
    policy.window = stream.window = 2;  // the token before
  }
  auto group = std::ranges::find_if(layout.groups, [&](const KvPolicy& g) { return g == policy; });
  if (group == layout.groups.end()) {
    layout.groups.push_back({policy, 0, {}});
    group = layout.groups.end() - 1;
  }
  check_format(stream.key_format, stream.key_dim);
  check_format(stream.value_format, stream.value_dim);
  CHECK(stream.stride > 0 && policy.page_tokens % stream.stride == 0);
  KvLayerLayout added{
      .shape = stream, .offset = group->page_bytes, .page_rows = policy.page_tokens / stream.stride};
  added.key_row_bytes = kv_row_bytes(stream.key_format, stream.key_dim);
  if (stream.value_dim > 0) added.value_row_bytes = kv_row_bytes(stream.value_format, stream.value_dim);
  added.head_bytes = added.page_rows * (added.key_row_bytes + added.value_row_bytes);
  if (!group->layers.empty()) added.first_cell = group->cells();
  group->page_bytes += stream.kv_heads * added.head_bytes;
  group->layers.push_back(added);
  return {uint32_t(group - layout.groups.begin()), uint32_t(group->layers.size() - 1)};
}

// States follow the others: what has nothing else has the usual pages.
uint32_t node_tokens_of(std::span<const KvLayer> layers, uint32_t page_tokens) {
  uint32_t tokens = 0;
  for (const KvLayer& layer : layers) {
    for (const KvStream& stream : layer) {
      if (stream.state || stream.shares_with) continue;
      const uint32_t own = stream.page_tokens > 0 ? stream.page_tokens : page_tokens;
      tokens = tokens == 0 ? own : std::lcm(tokens, own);
    }
  }
  return tokens == 0 ? page_tokens : tokens;
}

}  // namespace

KvLayout make_kv_layout(std::span<const KvLayer> layers, uint32_t page_tokens) {
  CHECK(page_tokens > 0);
  KvLayout layout;
  layout.node_tokens = node_tokens_of(layers, page_tokens);
  for (const KvLayer& layer : layers) {
    std::vector<KvLayout::Place> places;
    for (const KvStream& stream : layer) {
      places.push_back(stream.shares_with ? shared_place(layout, stream, places.size())
                                          : add_stream(layout, stream, page_tokens));
    }
    layout.places.push_back(std::move(places));
  }
  for (uint32_t g = 0; g < layout.groups.size(); ++g) {
    if (layout.groups[g].is_state) layout.states = g;
    for (uint32_t i = 0; i < layout.node_tokens / layout.groups[g].page_tokens; ++i)
      layout.node_pages.push_back({g, i});
  }
  return layout;
}

KvLayout make_kv_layout(std::span<const KvStream> layers, uint32_t page_tokens) {
  std::vector<KvLayer> each;
  for (const KvStream& stream : layers) each.push_back({stream});
  return make_kv_layout(each, page_tokens);
}

}  // namespace quire
