#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/cuda_yardstick.h"
#include "backend/cuda/gather.h"
#include "backend/cuda/side_copies.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

// A stream belongs to the device that is current when it is made.
int selected(int device) {
  CUDA_CHECK(cudaSetDevice(device));
  return device;
}

constexpr uint32_t kMostUsedExperts = 32;  // a lane of a warp has one of a token's
constexpr uint32_t kRecordedTokens = 256;  // kernels of larger steps take longer than what is between them

}  // namespace
CudaBackend::CudaBackend(int device, Launches launches) : device_(selected(device)), launches_(launches) {
  capability_ = compute_capability();
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  name_ = properties.name;
  tile_counter_ = DeviceBuffer(sizeof(uint32_t));
  tile_counter_.fill(0);
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream());
  for (const Pending& one : pending_) cudaEventDestroy(one.event);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void CudaBackend::use_device() const {
  CUDA_CHECK(cudaSetDevice(device_));
}

BackendTraits CudaBackend::traits() const {
  return {.device = fmt::format("cuda:{}", device_),
          .description = name_,
          .kernels = fmt::format("cuda{}", capability_),
          .threads = 0,
          .pages = KvFormat::bf16,
          .attention = ActivationForm::bf16,
          .pipeline = 2,
          .memory = MemoryKind::device,
          .limits = {.head_dim = kMostHeadDim,
                     .head_dim_multiple = 8,
                     .heads_per_kv = kMostGroup,
                     .dim_multiple = 4,
                     .experts = std::min(kMostExperts, kMostSortedExperts),
                     .experts_used = kMostUsedExperts,
                     .expert_width_multiple = 8,
                     .mixed_experts = false,
                     .vocabulary = Sampler::kMostVocabulary,
                     .unequal_heads = false,
                     .chunks = false,
                     .slopes = false,
                     .scaled_inputs = false,
                     .state_keys = kMostStateKeys,
                     .convolution_span = kMostSpan,
                     .latent_dim = kMostLatentDim,
                     .latent_heads = kMostLatentGroup,
                     .chosen_rows = false,
                     .all_gates = false,
                     .side_streams = false,
                     .compressed_rows = false,
                     .experts_by_token = false,
                     .rotated_keys = false,
                     .column_taps = false,
                     .own_gates = false}};
}

size_t CudaBackend::available_memory() const {
  use_device();
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

size_t CudaBackend::total_memory() const {
  use_device();
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return total;
}

std::unique_ptr<Yardstick> CudaBackend::make_yardstick(const YardstickOptions& options) const {
  use_device();
  return std::make_unique<CudaYardstick>(device_, options);
}

// ---- memory and order

Buffer CudaBackend::allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  use_device();
  void* memory = allocate_on_device(bytes);
  CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, stream()));
  return Buffer(static_cast<std::byte*>(memory), bytes, MemoryKind::device,
                [](std::byte* gone) { cudaFree(gone); });
}

void CudaBackend::copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return;
  use_device();
  flush();
  graphs_.start();
  const bool overlap = to < from + bytes && from < to + bytes;
  if (overlap) {
    const auto between = std::make_shared<DeviceBuffer>(bytes);
    held_.push_back(between);
    CUDA_CHECK(cudaMemcpyAsync(between->data(), from, bytes, cudaMemcpyDefault, stream()));
    from = between->as<std::byte>();
  }
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
}

cudaEvent_t CudaBackend::take_event() {
  if (events_.empty()) {
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  const cudaEvent_t event = events_.back();
  events_.pop_back();
  return event;
}

Backend::Mark CudaBackend::mark() {
  flush();
  graphs_.start();
  take_tapped();
  if (is_marked_) return asked_;
  use_device();
  pending_.push_back({++asked_, take_event(), std::exchange(then_, {}), std::exchange(held_, {})});
  CUDA_CHECK(cudaEventRecord(pending_.back().event, stream_.get()));
  is_marked_ = true;
  return asked_;
}

void CudaBackend::wait(Mark mark) {
  use_device();
  while (!pending_.empty() && pending_.front().mark <= mark) {
    const Pending one = std::move(pending_.front());
    pending_.pop_front();
    const cudaError_t result = cudaEventSynchronize(one.event);
    events_.push_back(one.event);
    CUDA_CHECK(result);
    for (const auto& then : one.then) then();
  }
}

Buffer CudaBackend::allocate_host(size_t bytes) {
  use_device();
  return SideCopies::allocate(bytes);
}

SideCopies& CudaBackend::aside() {
  use_device();
  if (aside_ == nullptr) aside_ = std::make_unique<SideCopies>();
  return *aside_;
}

Backend::AsideMark CudaBackend::copy_aside(std::span<const ByteCopy> copies) {
  flush();
  graphs_.start();
  return aside().start(copies, stream());
}

void CudaBackend::order_after_aside(AsideMark mark) {
  flush();
  graphs_.start();
  aside().order_after(mark, stream());
}

std::optional<double> CudaBackend::aside_seconds(AsideMark mark) {
  return aside().seconds(mark);
}

void CudaBackend::wait_aside(AsideMark mark) {
  aside().wait(mark);
}

void CudaBackend::expect_weights(size_t bytes) {
  use_device();
  weights_.expect(bytes);
}

Weight CudaBackend::prepare(const Weight& weight, const WeightUse& use) {
  if (!weight) return weight;
  use_device();
  if (use.kind == WeightUse::product)
    limits_.rows = std::max(limits_.rows, 2 * uint32_t(weight.view.rows / use.stacked));
  return weights_.add(weight, use, stream());
}

void CudaBackend::prepare_gated(Weight& gate, Weight& up, const WeightUse& use) {
  use_device();
  limits_.rows = std::max(limits_.rows, 2 * uint32_t(gate.view.rows / use.stacked));
  weights_.add_gated(gate, up, use, stream());
}

size_t CudaBackend::prepared_bytes(const MatrixView& weight, const WeightUse& use) const {
  return weights_.bytes_for(weight, use);
}

size_t CudaBackend::activation_bytes(ActivationForm form, size_t width) const {
  CHECK(form == ActivationForm::bf16);
  return cuda::activation_bytes(1, uint32_t(width));
}

// ---- the step

void CudaBackend::feed_drawn(std::span<TokenId>, std::span<const DrawnToken> drawn,
                             std::span<const SampleResult>) {
  drawn_.assign(drawn.begin(), drawn.end());
}

void CudaBackend::begin_step(const BatchView& batch, std::span<const KvGroupView> kv) {
  use_device();
  flush();
  graphs_.start();
  folded_ = nullptr;  // the memory it was in may be another's now
  batch_ = batch;
  kv_ = kv;
  const auto tokens = uint32_t(batch.tokens.size());
  if (products_ == nullptr || tokens > limits_.tokens) {
    wait_for_stream();
    weights_.done();
    products_ = nullptr;  // until there is one for all of them: there may not be memory for it
    limits_.tokens = std::max(limits_.tokens, tokens);
    products_ = std::make_unique<ProductWorkspace>(limits_);
  }
  send_step();
  if (!drawn_.empty()) {
    gather_drawn(upload_.at(drawn_places_), uint32_t(drawn_.size()), sampler_->outcomes(), upload_.at(ids_),
                 stream());
    drawn_.clear();
  }
  if (launches_ == Launches::recorded && tokens <= kRecordedTokens) graphs_.record();
}

void CudaBackend::forget_step() {
  product_.reset();
  norm_.reset();
  gated_.reset();
  folded_ = nullptr;
  tapped_ = {};
  drawn_.clear();
  graphs_.forget();
}

void CudaBackend::send_step() {
  upload_.clear();
  ids_ = upload_.add(batch_.tokens);
  positions_ = upload_.add(batch_.positions);
  logit_rows_ = upload_.add(batch_.logit_rows);
  drawn_places_ = upload_.add(drawn_);
  groups_.clear();
  for (const KvGroupView& view : kv_)
    groups_.push_back(view.layout->is_state ? add_states(view) : add_tables(view));
  for (AttentionWork& work : attention_) work = plan(work.kind);
  upload_.send(pinned_, stream());
  held_.push_back(upload_.source());
}

CudaBackend::GroupPlaces CudaBackend::add_tables(const KvGroupView& view) {
  GroupPlaces places;
  places.page_ids = upload_.add(view.page_ids);
  std::vector<uint32_t> rows, tables, token_places;
  const uint32_t page_tokens = view.layout->page_tokens;
  for (uint32_t t = 0; t < batch_.tokens.size(); ++t) {
    const uint32_t run = batch_.run_of_token[t], row = view.group_row(run, batch_.runs[run].row_of(t));
    const size_t at = view.table_begin[run] + row / page_tokens;
    // Heads with unequal rows have no pages here; who comes to them refuses.
    const uint32_t page = at < view.page_ids.size() ? view.page_ids[at] : 0;
    rows.push_back(row);
    tables.push_back(view.table_begin[run]);
    token_places.push_back(page * page_tokens + row % page_tokens);
  }
  places.token_rows = upload_.add(rows);
  places.token_tables = upload_.add(tables);
  places.token_places = upload_.add(token_places);
  return places;
}

CudaBackend::AttentionWork CudaBackend::plan(const AttentionKind& kind) {
  std::vector<AttentionRun> runs;
  const KvGroupView& view = kv_[kind.group];
  for (size_t r = 0; r < batch_.runs.size(); ++r) {
    const TokenRun& run = batch_.runs[r];
    runs.push_back({.token = run.begin,
                    .tokens = run.count,
                    .row = view.group_row(uint32_t(r), run.row),
                    .table = view.table_begin[r]});
  }
  const AttentionPlan plan = plan_attention(runs, kind.shape, kind.fast ? Merging::in_place : Merging::apart);
  return {.kind = kind,
          .tiles = upload_.add(plan.tiles),
          .few = upload_units(plan.few),
          .parts = upload_units(plan.parts)};
}

CudaBackend::AttentionUnitsWork CudaBackend::upload_units(const AttentionUnits& units) {
  return {.units = upload_.add(units.units),
          .merges = upload_.add(units.merges),
          .places = units.places,
          .columns = units.columns};
}

const CudaBackend::AttentionWork& CudaBackend::work_for(const AttentionKind& kind) {
  for (const AttentionWork& work : attention_) {
    if (work.kind == kind) return work;
  }
  attention_.push_back({.kind = kind, .tiles = {}, .few = {}, .parts = {}});
  wait_for_stream();  // the lists move
  send_step();
  return attention_.back();
}

DeviceTokens CudaBackend::device_tokens() const {
  return {upload_.at(ids_), upload_.at(positions_), uint32_t(batch_.tokens.size())};
}

size_t CudaBackend::group_index(const KvView& kv) const {
  const size_t index = size_t(kv.group - kv_.data());
  CHECK(index < kv_.size());
  return index;
}

ActivationBlock CudaBackend::block_of(const Activation& activation) const {
  auto* data = reinterpret_cast<uint8_t*>(activation.data[size_t(ActivationForm::bf16)]);
  return {data, uint32_t(activation.f32.rows), uint32_t(activation.f32.width)};
}

}  // namespace quire::cuda
