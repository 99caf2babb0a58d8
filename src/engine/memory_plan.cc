#include "engine/memory_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "model/layer_blocks.h"
#include "model/placement.h"
#include "model/product_type.h"

namespace quire {
namespace {

constexpr std::string_view kEmbedding = "token_embd.weight";
constexpr size_t kProgramBytes = size_t(24) << 20;   // code, libraries, allocator
constexpr size_t kBytesPerToken = 400;               // of the vocabulary: its text, merges and tables
constexpr size_t kBytesPerThread = size_t(6) << 20;  // unpacked panels, attention's sums, a stack

// Attention on a device divides long contexts among its multiprocessors, and leaves of each piece of them the sums of its queries: of
// more than that where a token has more heads that read the same rows.
constexpr size_t kPieceRows = 512, kPieceQueries = 16, kMostPartRows = size_t(1) << 18;

// Of a tensor as the backend keeps it, which may be in more bits than the file has.
size_t kept_bytes(const TensorEntry& tensor, WeightUse::Kind kind, const Backend& backend) {
  size_t rows = 1;  // the shape begins with the outermost
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  const size_t matrices = tensor.shape.size() > 2 ? tensor.shape[0] : 1;
  const DType dtype = kind == WeightUse::product ? product_type(tensor.dtype) : tensor.dtype;
  const size_t prepared =
      backend.prepared_bytes({nullptr, dtype, rows, tensor.shape.back()}, {kind, matrices});
  if (prepared > 0) return prepared;
  return dtype == tensor.dtype ? tensor.bytes : rows * row_bytes(dtype, tensor.shape.back());
}

// Who keeps which tensor of a file.
class TensorSides {
 public:
  explicit TensorSides(const ModelSpec& spec) {
    if (!is_split(spec)) return;
    for (const LayerBlock& block : layer_blocks(spec)) {
      if (block.side != Side::host) continue;
      for (const Role& role : block.roles()) on_host_.insert({role.tensor, role.part.tensor});
      for (const std::string& norm : {block.pre_norm, block.post_norm})
        on_host_.insert({norm + ".weight", norm + ".bias"});
    }
    if (spec.layers.front().sides.mixer == Side::host)
      on_host_.insert({std::string(kEmbedding), "position_embd.weight"});
  }

  Side of(const std::string& tensor) const { return on_host_.contains(tensor) ? Side::host : Side::device; }

 private:
  std::set<std::string> on_host_;
};

// What a rank has of the tensors of a file that are divided, from 0 to 1.
class TensorShares {
 public:
  explicit TensorShares(const ModelSpec& spec) {
    if (spec.place.is_alone()) return;
    for (const Role& role : all_roles(spec)) {
      if (role.share.whole == 0) continue;
      const double share = double(role.shape.front()) / double(role.share.whole);
      for (const std::string& tensor : {role.tensor, role.part.tensor})
        if (!tensor.empty()) shares_[tensor] = std::max(shares_[tensor], share);
    }
    head_ = double(rows_of(spec.vocab, spec.place).count) / spec.vocab;
  }

  size_t of(const std::string& tensor, size_t bytes) const {
    const auto found = shares_.find(tensor);
    return found == shares_.end() ? bytes : size_t(found->second * double(bytes));
  }
  size_t of_head(size_t bytes) const { return size_t(head_ * double(bytes)); }

 private:
  std::map<std::string, double> shares_;
  double head_ = 1;
};

size_t weight_bytes(const ModelFile& file, const ModelSpec& spec, const Backend& backend, Side side) {
  const TensorSides sides(spec);
  const TensorShares shares(spec);
  size_t bytes = 0, largest = 0, tied_head = 0;
  bool has_head = false;
  for (const TensorEntry& tensor : file.tensors()) {
    const bool is_matrix = tensor.shape.size() >= 2, is_embedding = tensor.name == kEmbedding;
    if (is_embedding && side == Side::device)
      tied_head = shares.of_head(kept_bytes(tensor, WeightUse::product, backend.side(side)));
    has_head |= tensor.name == "output.weight";
    if (tensor.name == kLayerTable) continue;  // a few of its rows are read, of the mapped file
    if (sides.of(tensor.name) != side) continue;
    const WeightUse::Kind use = is_embedding ? WeightUse::table
                                : is_matrix  ? WeightUse::product
                                             : WeightUse::vector;
    bytes += shares.of(tensor.name, kept_bytes(tensor, use, backend.side(side)));
    largest = std::max(largest, shares.of(tensor.name, tensor.bytes));
  }
  // An embedding that is the head too is kept packed for the one and as it is for the other.
  return bytes + largest + (has_head ? 0 : tied_head);
}

// Of one token in all rows that the blocks of a side work with.
size_t row_bytes(const ModelSpec& spec, Side side) {
  size_t mixer_width = 0, mlp_width = 0;  // of the widest layer
  size_t lent_width = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.sides.mixer == side) {
      const auto count = [&](const BlockPtr& block) {
        const std::vector<size_t> rows = block->scratch();
        mixer_width = std::max(mixer_width, std::accumulate(rows.begin(), rows.end(), size_t(0)));
        lent_width = std::max(lent_width, block->lent_rows());
      };
      count(block_of(layer.mixer, spec.dim));
      if (layer.beside) count(make_block(*layer.beside, spec.dim));
    }
    if (layer.sides.mlp != side) continue;
    if (const auto* dense = std::get_if<DenseMlpSpec>(&layer.mlp))
      mlp_width = std::max<size_t>(mlp_width, dense->width);
    if (const auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp))
      mlp_width = std::max(mlp_width, size_t(experts->width) * experts->used);
    if (const auto* both = std::get_if<ParallelMlpSpec>(&layer.mlp))
      mlp_width = std::max(
          mlp_width, both->dense.width + size_t(both->experts.width) * both->experts.used + 5 * spec.dim);
  }
  // In f32, and a third more for the inputs that are quantized as well.
  const size_t inputs = spec.layer_inputs.width * spec.layers.size();
  const size_t streams = spec.hyper         ? 3 * spec.hyper->count * size_t(spec.dim)
                         : spec.streams > 1 ? spec.streams * size_t(spec.dim)
                                            : 0;
  return 6 * (4 * spec.dim + mixer_width + 3 * mlp_width) +
         (2 * inputs + streams + lent_width) * sizeof(float);
}

// For those sums, of the layer that needs most.
size_t attention_sum_bytes(const ModelSpec& spec, const KvLayout& layout, std::span<const uint32_t> pages,
                           uint32_t sequences) {
  size_t most = 0, latent_heads = 0;
  for (const LayerSpec& layer : spec.layers)
    if (const auto* latent = std::get_if<LatentSpec>(&layer.mixer))
      latent_heads = std::max<size_t>(latent_heads, latent->attention.heads);
  for (size_t g = 0; g < pages.size(); ++g) {
    const KvGroupLayout& group = layout.groups[g];
    if (group.is_state) continue;
    const size_t pieces = size_t(pages[g]) * group.page_tokens / kPieceRows + 2 * size_t(sequences);
    for (const KvLayerLayout& layer : group.layers) {
      const size_t queries = layer.shape.key_goes_on ? std::max(latent_heads, kPieceQueries) : kPieceQueries;
      const size_t rows = pieces * layer.shape.kv_heads * queries;
      most = std::max(most,
                      (rows + std::min(rows, kMostPartRows)) * (layer.shape.value_dim + 4) * sizeof(float));
    }
  }
  return most;
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

size_t kv_bytes_on(Side side, const KvLayout& layout, std::span<const uint32_t> pages_per_group) {
  size_t bytes = 0;
  for (size_t g = 0; g < pages_per_group.size(); ++g) {
    if (layout.groups[g].side == side) bytes += pages_per_group[g] * layout.groups[g].page_bytes;
  }
  return bytes;
}

MemoryPlan plan_memory(const ModelFile& file, const ModelSpec& spec, const EngineOptions& options,
                       const Backend& backend, Side side) {
  MemoryPlan plan{.weights = weight_bytes(file, spec, backend, side)};
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats), options.page_tokens);
  const uint32_t chunk = std::min(options.prefill_chunk, options.context);
  const std::vector<uint32_t> pages = kv_pages(layout, options);
  plan.kv = kv_bytes_on(side, layout, pages);
  const size_t rows = options.kv_cache ? size_t(chunk) + options.max_sequences : options.context;
  plan.scratch = kProgramBytes + kBytesPerToken * spec.vocab +
                 kBytesPerThread * backend.side(side).traits().threads + rows * row_bytes(spec, side);
  if (side == Side::device)
    plan.scratch += size_t(options.max_sequences) * spec.vocab * (sizeof(float) + 4 * sizeof(float));
  if (backend.side(side).traits().memory == MemoryKind::device)
    plan.scratch += attention_sum_bytes(spec, layout, pages, options.max_sequences);
  return plan;
}

size_t lasting_bytes_per_token(const KvLayout& layout) {
  size_t lasting = 0;
  bool compressed = false;
  for (const KvGroupLayout& group : layout.groups) {
    if (group.is_state || !group.keeps_all()) continue;
    lasting += group.bytes_per_token();
    for (const KvLayerLayout& layer : group.layers) compressed |= layer.shape.stride > 1;
  }
  return compressed ? lasting : layout.bytes_per_token();
}

KvRoom kv_room(const ModelSpec& spec, const KvFormats& formats, uint32_t context, size_t bytes) {
  const KvLayout layout = make_kv_layout(kv_shapes(spec, formats));
  const uint32_t chunk = std::min(EngineOptions{}.prefill_chunk, context);
  KvRoom room{.bytes_per_token = lasting_bytes_per_token(layout),
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
