#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/matmul/experts.h"
#include "backend/cuda/matmul/products.h"
#include "backend/cuda/operations.h"
#include "backend/cuda/pinned_memory.h"
#include "backend/cuda/recurrent/recurrent.h"
#include "backend/cuda/sampling/sampler.h"
#include "backend/cuda/step_graphs.h"
#include "backend/cuda/step_upload.h"

namespace quire::cuda {

class SideCopies;

// The operations on one of NVIDIA's GPUs: kernels in one stream, in the order in which they are asked for. Activations are bf16,
// sums f32. Nothing is waited for but by `wait`, the first step of a new size, and draws that the device cannot make.
class CudaBackend : public Backend {
 public:
  // How the kernels of a step of few tokens are started: recorded first and started as one graph, or as they are asked for.
  enum class Launches { recorded, one_by_one };
  // REQUIRES: list_cuda_devices has that number and no refusal.
  explicit CudaBackend(int device, Launches launches = Launches::recorded);
  ~CudaBackend() override;

  BackendTraits traits() const override;
  size_t available_memory() const override;
  size_t total_memory() const override;
  std::unique_ptr<Yardstick> make_yardstick(const YardstickOptions& options) const override;
  Buffer allocate(size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, size_t bytes) override;
  Mark mark() override;
  void wait(Mark mark) override;
  Buffer allocate_host(size_t bytes) override;
  AsideMark copy_aside(std::span<const ByteCopy> copies) override;
  void order_after_aside(AsideMark mark) override;
  std::optional<double> aside_seconds(AsideMark mark) override;
  void wait_aside(AsideMark mark) override;
  void expect_weights(size_t bytes) override;
  Weight prepare(const Weight& weight, const WeightUse& use) override;
  void prepare_gated(Weight& gate, Weight& up, const WeightUse& use) override;
  size_t prepared_bytes(const MatrixView& weight, const WeightUse& use) const override;
  ActivationForm form_for(DType) const override { return ActivationForm::bf16; }
  size_t activation_bytes(ActivationForm form, size_t width) const override;

  void feed_drawn(std::span<TokenId> tokens, std::span<const DrawnToken> drawn,
                  std::span<const SampleResult> results) override;
  void begin_step(const BatchView& batch, std::span<const KvGroupView> kv) override;
  void forget_step() override;
  void embed(const EmbedParams& params) override;
  void norm_quantize(const NormQuantizeParams& params) override;
  void project(const ProjectParams& params) override;
  void activate(const ActivateParams& params) override;
  void rope_table(const RopeTableParams& params) override;
  void rope_store(const RopeStoreParams& params) override;
  void attend(const AttendParams& params) override;
  void project_heads(const ProjectHeadsParams& params) override;
  void tap(const Tap& tap, const AttendParams& attend, std::span<float> values) override;
  void expected_scores(const ExpectedScoresParams& params) override;
  void split_heads(const SplitHeadsParams& params) override;
  void convolve(const ConvolveParams& params) override;
  void delta_net(const DeltaNetParams& params) override;
  void state_space(const StateSpaceParams& params) override;
  void selective_scan(const SelectiveScanParams& params) override;
  void route_experts(const RouteExpertsParams& params) override;
  void project_experts(const ProjectExpertsParams& params) override;
  void logits(const LogitsParams& params) override;
  void sample(std::span<const SampleParams> params, std::span<SampleResult> results) override;

 protected:
  static const float* vector_of(const Weight& weight) { return weight ? weight.vector() : nullptr; }
  // A layer group's tables in the step's upload; of states the lower ones.
  struct GroupPlaces {
    StepUpload::Place<uint32_t> page_ids, token_rows, token_tables, token_places;
    StepUpload::Place<uint32_t> state_begins, state_rows;
  };
  // Who computes which rows of the attention of layers that are alike.
  struct AttentionKind {
    size_t group;  // of layers
    AttentionShape shape;
    bool fast;
    bool operator==(const AttentionKind& other) const {
      return group == other.group && fast == other.fast && shape.kv_heads == other.shape.kv_heads &&
             shape.group == other.shape.group && shape.window == other.shape.window;
    }
  };
  struct AttentionUnitsWork {
    StepUpload::Place<DecodeUnit> units;
    StepUpload::Place<uint32_t> merges;
    uint32_t places = 0;  // of partial sums
    uint32_t columns = 0;
  };
  struct AttentionWork {
    AttentionKind kind;
    StepUpload::Place<PrefillTile> tiles;
    AttentionUnitsWork few, parts;
  };
  // What the host has to do once the device has come so far.
  struct Pending {
    Mark mark;
    cudaEvent_t event;
    std::vector<std::function<void()>> then;
    std::vector<std::shared_ptr<const void>> held;
  };

  // A product that was asked for and not started.
  struct WaitingProduct {
    Projection one;
    ActivationBlock in;
    TokenScales scales;
  };
  struct WaitingGate {
    Projection gate;
    Weight up_bias;
    ActivationBlock in;
    TokenScales scales;
  };

  // For whoever puts something into it.
  cudaStream_t stream() {
    is_marked_ = false;
    return stream_.get();
  }
  // Starts what waits.
  void flush();
  void fold();
  void launch_product(const WaitingProduct& waiting);
  // Some products of the same rows, as one if their weights lie one after the other.
  void project_together(std::span<const Projection> list, const ActivationBlock& in,
                        const TokenScales& scales);
  void add_to_residual(const WaitingProduct& waiting, const AddToResidual& output);
  void launch_norm(const NormQuantizeParams& params);
  DeviceAddNorm device_add_norm(const NormQuantizeParams& params) const;
  DeviceRopeStore device_rope_store(const RopeStoreParams& params) const;  // but for where queries go
  void take_tapped();
  TokenScales scales_of(const ActivationBlock& in) const;
  void use_device() const;
  // All that was asked for so far has happened.
  void wait_for_stream() {
    graphs_.start();
    stream_.wait();
  }
  void send_step();
  GroupPlaces add_tables(const KvGroupView& view);
  GroupPlaces add_states(const KvGroupView& view);
  StatePages states_of(const KvView& view) const;
  // One state for all runs and heads, from each run's first token to its last.
  void recur(DeviceRecurrence recurrence, const KvView& state, const Rows& out);
  AttentionWork plan(const AttentionKind& kind);
  AttentionUnitsWork upload_units(const AttentionUnits& units);
  DecodeWork on_device(const AttentionUnitsWork& work) const;
  const AttentionWork& work_for(const AttentionKind& kind);
  AttentionParams attention_params(const AttendParams& params) const;
  size_t group_index(const KvView& kv) const;
  DeviceTokens device_tokens() const;
  ActivationBlock block_of(const Activation& activation) const;
  // Where numbers go that nobody wants rounded.
  static Rows floats_of(const Activation& activation) {
    return activation.data[size_t(ActivationForm::bf16)] == nullptr ? activation.f32 : Rows{};
  }
  // Memory that grows when more of it is wanted than before, and then waits.
  template <class T>
  T* scratch(DeviceBuffer& buffer, size_t count) {
    if (buffer.bytes() < count * sizeof(T)) {
      wait_for_stream();
      buffer = DeviceBuffer();
      buffer = DeviceBuffer(count * sizeof(T) * 5 / 4);
    }
    return buffer.as<T>();
  }
  // The same, of zeros that kernels leave as they were.
  uint32_t* counters(DeviceBuffer& buffer, size_t count) {
    const size_t before = buffer.bytes();
    uint32_t* result = scratch<uint32_t>(buffer, count);
    if (buffer.bytes() != before) buffer.fill(0);
    return result;
  }
  void later(std::function<void()> then) { then_.push_back(std::move(then)); }
  cudaEvent_t take_event();

  int device_;
  Launches launches_;
  int capability_ = 0;
  std::string name_;
  Stream stream_;
  StepGraphs graphs_{stream_.get()};
  PinnedMemory pinned_;
  DeviceWeights weights_;
  std::unique_ptr<ProductWorkspace> products_;
  ProductWorkspace::Limits limits_ = {0, 0};
  std::shared_ptr<Sampler> sampler_;
  std::unique_ptr<ExpertWorkspace> experts_;
  DeviceBuffer partials_, tile_counter_, merge_counters_, query_, squares_, router_scores_, tap_values_,
      tap_scratch_, decays_, betas_, plain_experts_, head_room_;
  std::unordered_map<const float*, DeviceBuffer> frequencies_;  // by the host's list

  // The step.
  BatchView batch_;
  std::span<const KvGroupView> kv_;
  StepUpload upload_;
  StepUpload::Place<uint32_t> ids_, positions_, logit_rows_;
  StepUpload::Place<DrawnToken> drawn_places_;
  StepUpload::Place<TokenRun> runs_;  // these two where there are states
  StepUpload::Place<RunPiece> pieces_;
  std::vector<GroupPlaces> groups_;
  std::vector<AttentionWork> attention_;  // of all kinds that were met so far
  std::vector<DrawnToken> drawn_;
  std::span<float> tapped_;  // what taps join
  Rows logits_;              // what `logits` wrote last

  // What waits: a product, and a norm of what it adds; or a gate and its up.
  std::optional<WaitingProduct> product_;
  std::optional<NormQuantizeParams> norm_;
  std::optional<WaitingGate> gated_;
  const uint8_t* folded_ = nullptr;  // activations whose norm is the business of whoever multiplies them
  TokenScales folded_scales_;

  // The order.
  Mark asked_ = 0;
  bool is_marked_ = true;  // nothing was asked for since
  std::vector<std::function<void()>> then_;
  std::vector<std::shared_ptr<const void>> held_;
  std::deque<Pending> pending_;
  std::vector<cudaEvent_t> events_;  // to be used again

  SideCopies& aside();
  std::unique_ptr<SideCopies> aside_;  // null: nobody has asked for any
};

}  // namespace quire::cuda
