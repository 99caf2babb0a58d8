#pragma once

#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/model_spec.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "ranks/column_gather.h"

namespace quire {

// What a step reads and writes beside tokens and logits, in the host's memory: [tokens, dim] each, or nothing.
struct HiddenStates {
  std::span<const float> before = {};  // for a model that joins: what another made of the token before each
  std::span<float> after = {};         // what this one makes of each token, normed, as its head reads it
};

// Embedding, the blocks one after the other, head: whatever the blocks are. Prefill, decode and draft verification are the same call over runs
// of tokens; only shapes differ. Where two blocks that follow each other are of different sides of the backend, the residual
// stream crosses. Engine thread only.
class Decoder {
 public:
  // All of them must outlive the decoder. `ranks`: with whom it computes a model that is divided.
  Decoder(const ModelSpec& spec, const Weights& weights, Backend& backend, Ranks* ranks = nullptr);

  // The largest step to come: nothing is allocated then.
  void reserve(size_t tokens, size_t logit_rows);

  static constexpr size_t kAllLayers = ~size_t(0);

  // Computes every token of the batch, writes its keys and values to the pages of `kv` (one view per layer
  // group of `layout`), and returns the logits of batch.logit_rows: valid until the next call. With fewer `layers` than all there
  // are, only the first so many, and no logits. Of several ranks the first alone has them whole.
  Rows forward(const BatchView& batch, const KvLayout& layout, std::span<const KvGroupView> kv,
               const Taps& taps = {}, size_t layers = kAllLayers, const HiddenStates& hidden = {});
  // What queries to come are expected to make of rows that are stored.
  void expect(const Expectation& expectation, const KvLayout& layout, std::span<const KvGroupView> kv,
              std::span<float> values);

  // Of the device's side.
  size_t workspace_bytes() const { return device_.bytes(); }

 private:
  // How far a step has come.
  struct Pass {
    const BatchView& batch;
    std::span<const KvGroupView> kv;
    Side side;                     // whose stream is the newest
    bool begun[2] = {};            // by side
    NormQuantizeParams norm = {};  // what the next block begins with: the last one's branch is to be added
  };
  Workspace& workspace(Side side) { return side == Side::host ? *host_ : device_; }
  void begin(Pass& pass);
  // Reads what each layer has of its own, once the embedding is there.
  void read_layer_inputs(const Pass& pass);
  // Adds what the last block made to the stream, where nothing is to be normed then.
  void add_branch(Pass& pass);
  // Makes the other streams of the embedding; and the stream of all that they have become.
  void open_streams(const Pass& pass);
  void close_streams(Pass& pass);
  // The same of streams that are connected.
  void open_connected(const Pass& pass);
  void close_connected(Pass& pass);
  Rows layer_input(const Workspace& w, size_t layer) const;
  // Where the columns are summed up that the block's products read, by role; and does so, of those whose rows are there still.
  std::span<const ColumnSums> sums_of(size_t block, const Taps& taps);
  void tap_columns(size_t block, std::span<const ColumnSums> sums);
  // Makes the stream of the embedding and what was made of the tokens before.
  void join(const Pass& pass, std::span<const float> before);
  void tell_hidden(Pass& pass, std::span<float> to);
  void cross(Pass& pass, Side to);

  const ModelSpec& spec_;
  const Weights& weights_;
  Backend& backend_;
  Workspace device_;
  std::optional<Workspace> host_;       // nothing: all blocks are the device's
  Backend::Mark crossed_ = 0;           // the device has read the host's stream
  std::optional<ColumnGather> gather_;  // nothing: it computes alone
  std::vector<KvView> streams_;         // of the layer that is computed
  std::vector<ColumnSums> sums_;        // of the block that is
};

}  // namespace quire
