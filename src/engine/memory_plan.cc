#include "engine/memory_plan.h"

#include <algorithm>
#include <functional>

#include "model/layer_blocks.h"

namespace quire {
namespace {

constexpr size_t kProgramBytes = size_t(24) << 20;   // code, libraries, allocator
constexpr size_t kBytesPerToken = 400;               // of the vocabulary: its text, merges and tables
constexpr size_t kBytesPerThread = size_t(6) << 20;  // unpacked panels, attention's sums, a stack

// Of a tensor as the backend keeps it, which may be in more bits than the file has.
size_t kept_bytes(const TensorEntry& tensor, WeightUse::Kind kind, const Backend& backend) {
  size_t rows = 1;  // the shape begins with the outermost
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  const size_t matrices = tensor.shape.size() > 2 ? tensor.shape[0] : 1;
  const size_t prepared =
      backend.prepared_bytes({nullptr, tensor.dtype, rows, tensor.shape.back()}, {kind, matrices});
  return prepared == 0 ? tensor.bytes : prepared;
}

}  // namespace

std::vector<uint32_t> kv_pages(const KvLayout& layout, const EngineOptions& options) {
  const uint32_t chunk = std::min(options.prefill_chunk, options.context);
  if (options.kv_bytes > 0) {
    const auto pages_with = [&](size_t state_bytes) {
      return pages_within(layout, options.kv_bytes, chunk, options.max_sequences, state_bytes);
    };
    const std::vector<uint32_t> pages = pages_with(options.state_bytes);
    const std::vector<uint32_t> least = pages_for(layout, options.context, chunk, 1);
    if (!layout.has_states() || options.state_bytes > 0 ||
        std::ranges::equal(least, pages, std::less_equal()))
      return pages;
    return pages_with(kStatesHeld * layout.state_bytes());  // a long text before states that may be of use
  }
  std::vector<uint32_t> pages = pages_for(layout, options.context, chunk, options.max_sequences);
  if (!layout.has_states()) return pages;
  uint32_t& states = pages[*layout.states];
  states = options.state_bytes > 0
               ? std::max(kStatesHeld, uint32_t(options.state_bytes / layout.state_bytes()))
               : states + kStatesKept;
  return pages;
}

MemoryPlan plan_memory(const ModelFile& file, const ModelSpec& spec, const EngineOptions& options,
                       const Backend& backend) {
  MemoryPlan plan;
  size_t largest = 0, embedding = 0;
  bool has_head = false;
  for (const TensorEntry& tensor : file.tensors()) {
    const bool is_matrix = tensor.shape.size() >= 2;
    const bool is_embedding = tensor.name == "token_embd.weight";
    const size_t packed = kept_bytes(tensor, is_matrix ? WeightUse::product : WeightUse::vector, backend);
    plan.weights += is_embedding ? kept_bytes(tensor, WeightUse::table, backend) : packed;
    largest = std::max(largest, tensor.bytes);
    if (is_embedding) embedding = packed;
    has_head |= tensor.name == "output.weight";
  }
  // An embedding that is the head too is kept packed for the one and as it is for the other.
  plan.weights += largest + (has_head ? 0 : embedding);

  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats), options.page_tokens);
  const uint32_t chunk = std::min(options.prefill_chunk, options.context);
  plan.kv = kv_bytes(layout, kv_pages(layout, options));

  const size_t rows = options.kv_cache ? size_t(chunk) + options.max_sequences : options.context;
  size_t mixer_width = 0, mlp_width = 0;  // of the widest layer
  for (const LayerSpec& layer : spec.layers) {
    size_t width = 0;
    for (const size_t rows : block_of(layer.mixer, spec.dim)->scratch()) width += rows;
    mixer_width = std::max(mixer_width, width);
    if (const auto* dense = std::get_if<DenseMlpSpec>(&layer.mlp))
      mlp_width = std::max<size_t>(mlp_width, dense->width);
    if (const auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp))
      mlp_width = std::max(mlp_width, size_t(experts->width) * experts->used);
  }
  // In f32, and a third more for the inputs that are quantized as well.
  const size_t row_bytes = 6 * (4 * spec.dim + mixer_width + 3 * mlp_width);
  plan.scratch = kProgramBytes + kBytesPerToken * spec.vocab + kBytesPerThread * backend.traits().threads +
                 rows * row_bytes +
                 size_t(options.max_sequences) * spec.vocab * (sizeof(float) + 4 * sizeof(float));
  return plan;
}

KvRoom kv_room(const ModelSpec& spec, const KvFormats& formats, uint32_t context, size_t bytes) {
  const KvLayout layout = make_kv_layout(kv_shapes(spec, formats));
  const uint32_t chunk = std::min(EngineOptions{}.prefill_chunk, context);
  KvRoom room{.bytes_per_token = layout.bytes_per_token(),
              .sequence_bytes = kv_bytes(layout, pages_for(layout, context, chunk, 1))};
  room.sequences = double(bytes) / double(room.sequence_bytes);
  const std::vector<uint32_t> pages =
      pages_within(layout, bytes, chunk, uint32_t(std::min(room.sequences, 4096.0)));
  for (size_t g = 0; g < pages.size(); ++g)
    room.tokens = std::max(room.tokens, uint64_t(pages[g]) * layout.groups[g].page_tokens);
  // Whole sequences take less where a window has let go of what is behind it.
  room.tokens = std::max(room.tokens, uint64_t(room.sequences) * context);
  return room;
}

}  // namespace quire
