#include "model/blocks/hyper_connection.h"

namespace quire {
namespace {

class ConnectionBlock : public Block {
 public:
  ConnectionBlock(const HyperSpec& spec, uint32_t dim, const std::string& tensor,
                  const std::string& norm_tensor, const NormSpec& norm)
      : spec_(spec), dim_(dim), tensor_(tensor), norm_tensor_(norm_tensor), norm_(norm) {}

  std::vector<Role> roles() const override {
    return {{.name = "connection",
             .tensor = tensor_ + "_fn.weight",
             .shape = {spec_.routed(), spec_.count * dim_},
             .reads = kAllRows},
            vector_role("connection scale", tensor_ + "_scale.weight", 3, Presence::required),
            vector_role("connection base", tensor_ + "_base.weight", spec_.routed(), Presence::required),
            vector_role("norm", norm_tensor_ + ".weight", dim_, Presence::required)};
  }
  std::vector<size_t> scratch() const override { return {spec_.count * dim_, spec_.routed(), dim_}; }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t { kConnection, kScale, kBase, kNorm };   // roles
  enum : uint8_t { kAllRows, kRoutedRows, kMixedRows };  // scratch

  HyperSpec spec_;
  uint64_t dim_;
  std::string tensor_, norm_tensor_;
  NormSpec norm_;
};

// What it reads is what was made, and what it adds takes that away again: so the next block's results stand alone.
void ConnectionBlock::forward(const BlockStep& step) const {
  using What = ConnectStreamsParams::What;
  const Rows made = step.in.f32, mixed = step.scratch[kMixedRows].f32;
  step.backend.connect_streams(
      {.what = What::give, .stream = made, .streams = step.streams, .count = spec_.count});
  const Norm of_all{.kind = spec_.norm.kind, .epsilon = spec_.norm.epsilon, .weight = {}, .bias = {}};
  step.backend.norm_quantize({.stream = step.streams.columns(0, spec_.count * dim_),
                              .branch = {},
                              .branch_gate = {},
                              .norm = &of_all,
                              .rows = {},
                              .out = step.scratch[kAllRows]});
  const Projection routed[] = {{step.weights[kConnection], {}, step.scratch[kRoutedRows].f32}};
  step.backend.project({step.scratch[kAllRows], routed});
  step.backend.connect_streams({.what = What::take,
                                .stream = mixed,
                                .streams = step.streams,
                                .count = spec_.count,
                                .iterations = spec_.iterations,
                                .epsilon = spec_.epsilon,
                                .routed = step.scratch[kRoutedRows].f32,
                                .scale = step.weights[kScale],
                                .base = step.weights[kBase]});
  const Norm none, own{norm_.kind, norm_.epsilon, step.weights[kNorm], {}};
  step.backend.norm_quantize({.stream = made,
                              .branch = {},
                              .branch_gate = {},
                              .norm = &none,
                              .rows = {},
                              .out = {.f32 = step.out, .forms = {}}});
  step.backend.norm_quantize(
      {.stream = mixed, .branch = {}, .branch_gate = {}, .norm = &own, .rows = {}, .out = step.in});
}

}  // namespace

BlockPtr make_connection_block(const HyperSpec& spec, uint32_t dim, const std::string& tensor,
                               const std::string& norm_tensor, const NormSpec& norm) {
  return std::make_shared<ConnectionBlock>(spec, dim, tensor, norm_tensor, norm);
}

}  // namespace quire
