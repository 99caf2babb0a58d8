#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul/panel_outliers.h"
#include "base/thread_pool.h"

namespace quire {

// The operations on a CPU: each is one or two parallel loops over rows or tokens, whose bodies are the
// kernels of one instruction set. Every output element has one owner, so results do not depend on the number
// of threads.
class CpuBackend : public Backend {
 public:
  CpuBackend(CpuKernels kernels, uint32_t threads);

  const CpuKernels& kernels() const { return kernels_; }
  uint32_t threads() const { return pool_.size(); }

  BackendTraits traits() const override;
  size_t available_memory() const override;
  std::unique_ptr<Yardstick> make_yardstick(const YardstickOptions& options) const override;
  Buffer allocate(size_t bytes) override;
  Weight prepare(const Weight& weight, const WeightUse& use) override;
  size_t prepared_bytes(const MatrixView& weight, const WeightUse& use) const override;
  ActivationForm form_for(DType weight) const override { return kernels_.form[size_t(weight)]; }
  size_t activation_bytes(ActivationForm form, size_t width) const override;
  void begin_step(const BatchView& batch, std::span<const KvGroupView>) override { batch_ = batch; }

  void embed(const EmbedParams& params) override;
  void norm_quantize(const NormQuantizeParams& params) override;
  void project(const ProjectParams& params) override;
  void activate(const ActivateParams& params) override;
  void rope_table(const RopeTableParams& params) override;
  void rope_store(const RopeStoreParams& params) override;
  void rotate_keys(const RotateKeysParams& params) override;
  void attend(const AttendParams& params) override;
  void tap(const Tap& tap, const AttendParams& attend, std::span<float> values) override;
  void tap_columns(const Rows& rows, std::span<const uint32_t> matrices, const ColumnSums& sums) override;
  void expected_scores(const ExpectedScoresParams& params) override;
  void split_heads(const SplitHeadsParams& params) override;
  void convolve(const ConvolveParams& params) override;
  void delta_net(const DeltaNetParams& params) override;
  void state_space(const StateSpaceParams& params) override;
  void selective_scan(const SelectiveScanParams& params) override;
  void project_heads(const ProjectHeadsParams& params) override;
  void choose_rows(const ChooseRowsParams& params) override;
  void choose_blocks(const ChooseBlocksParams& params) override;
  void rotate_heads(const RotateHeadsParams& params) override;
  void compress_rows(const CompressRowsParams& params) override;
  void connect_streams(const ConnectStreamsParams& params) override;
  void mix_streams(const MixStreamsParams& params) override;
  void cut_below(const Rows& rows, float spread) override;
  void route_experts(const RouteExpertsParams& params) override;
  void project_experts(const ProjectExpertsParams& params) override;
  void logits(const LogitsParams& params) override;
  void sample(std::span<const SampleParams> params, std::span<SampleResult> results) override;

 private:
  // Where one token looks from so many heads: [heads, rows up to its own].
  Rows attention_shares(const AttendParams& params, uint32_t token, uint32_t first_head, uint32_t heads);
  // Their queries: [heads, key_dim].
  Rows unturned_queries(const AttendParams& params, uint32_t token, uint32_t first_head, uint32_t heads);
  Rows tap_rows(size_t rows, size_t width);

  // One matrix product of a parallel loop over the rows of several.
  struct Product {
    MatrixView weight;
    const std::byte* panels = nullptr;
    float scale = 1;
    const float* bias = nullptr;
    const std::byte* in = nullptr;
    size_t in_stride = 0;
    const std::byte* in_tiles = nullptr;  // see InputFormat
    size_t tokens = 0;
    float* out = nullptr;
    size_t out_stride = 0;
  };
  // Rows and tokens of a product that a thread takes at a time.
  struct ProductBlock {
    const Product* product;
    size_t row_begin, row_end;
    size_t token, tokens;
  };
  // A recurrence over all runs: value head h is in columns [h * values, ...) of its rows, key head k in [k * keys, ...).
  struct Recurring {
    Recurrence kind;
    size_t heads, key_heads;
    size_t keys, values;  // of a head
    KeyOrder order = KeyOrder::grouped;
    KvView state;  // [keys, values] of each head
    RecurrenceArgs
        first;  // where head 0 of the batch's first token is; of selective the rates as the file has them, [values, keys]
  };
  void recur(const Recurring& what);
  // Some values of one head through one run; some channels of a convolution.
  void recur_values(const Recurring& what, uint32_t run, uint32_t head, size_t first) const;
  void convolve_channels(const ConvolveParams& params, uint32_t run, size_t first) const;
  void open_gates(const DeltaNetParams& params, uint32_t token);
  void run(std::span<Product> products);
  // Packs what the kernels want in tiles, each input once.
  void pack_inputs(std::span<Product> products);
  std::vector<ProductBlock> blocks_of(std::span<const Product> products) const;
  void multiply(const ProductBlock& block);
  // The panels of matrix `index` of a stack, or null.
  const std::byte* panels_of(const Weight& weight, size_t rows, size_t index) const;
  Product product(const Activation& in, const Weight& weight, const Weight& bias, const Rows& out) const;
  void quantize(const Activation& activation, size_t row) const;
  // Columns [col, col + count) only; `col` is a multiple of every group.
  void quantize_part(const Activation& activation, size_t row, size_t col, size_t count) const;

  CpuKernels kernels_;
  CpuKernels
      unpacked_;  // for weights that are not in panels: bit-equal to the others, but for bf16 in matrix instructions
  Buffer input_tiles_;     // of the products that run; grown on demand
  OutlierLists outliers_;  // of the products that run
  ThreadPool pool_;
  BatchView batch_;

  // Of a recurrence, by token; of decays that have one, the rate of each.
  std::vector<float> decays_, betas_, rates_;
  std::vector<float> tapped_;  // what `tap` joins; grown on demand
  // Keys that taps of one attention have read, as floats: its tokens look at the same ones. Forgotten with the next attention.
  struct TappedKeys {
    struct Head {
      uint32_t rows = 0;          // the first so many are there
      std::vector<float> values;  // [rows, width]
    };
    const void* layer = nullptr;  // null: of none
    uint32_t run = 0;
    size_t width = 0;
    std::vector<Head> heads;

    void begin(const void* of_layer, uint32_t of_run, size_t row_width, uint32_t kv_heads);
  };
  TappedKeys tapped_keys_;

  std::vector<std::byte> head_rows_;  // what project_heads multiplies; grown on demand

  // What project_experts gathers: rows sorted by expert. Grown on demand.
  struct ExpertScratch {
    std::vector<std::byte> in;
    std::vector<float> in_rows, gate, up, down;
    std::vector<std::byte> hidden;
  };
  ExpertScratch experts_;
};

}  // namespace quire
