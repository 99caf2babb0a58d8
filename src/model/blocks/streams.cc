#include "model/blocks/streams.h"

namespace quire {
namespace {

// What both blocks of a layer route by.
std::vector<Role> router_roles(const StreamsSpec& spec, uint64_t dim, uint8_t reads) {
  std::vector<Role> roles = {
      {.name = "stream router", .tensor = "altup_router.weight", .shape = {spec.count, dim}, .reads = reads},
      vector_role("stream router norm", "altup_router_norm.weight", dim, Presence::required)};
  roles.back().factor = 1.0f / float(dim);
  return roles;
}

Role coefficients_role(const char* tensor, uint64_t rows, uint64_t count) {
  return {.name = "stream coefficients", .tensor = tensor, .shape = {rows, count}, .kind = RoleKind::vector};
}

enum : size_t {
  kRouter,
  kRouterNorm,
  kCoefficients,
  kScale,
  kPostNorm,
  kOwnRoles
};  // of both, as far as they go
enum : uint8_t { kNormedRows, kRoutedRows, kCorrectedRows, kInputOut, kOwnRows };  // scratch

// How the streams of a token are mixed is read from the stream.
void route(const StreamsSpec& spec, const BlockStep& step) {
  const Norm norm{spec.norm.kind, spec.norm.epsilon, step.weights[kRouterNorm], {}};
  step.backend.norm_quantize({.stream = step.in.f32,
                              .branch = {},
                              .branch_gate = {},
                              .norm = &norm,
                              .rows = {},
                              .out = step.scratch[kNormedRows]});
  const Projection router[] = {{step.weights[kRouter], {}, step.scratch[kRoutedRows].f32}};
  step.backend.project({step.scratch[kNormedRows], router});
}

class PredictBlock : public Block {
 public:
  PredictBlock(const StreamsSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override {
    std::vector<Role> roles = router_roles(spec_, dim_, kNormedRows);
    roles.push_back(
        coefficients_role("altup_predict_coef.weight", uint64_t(spec_.count) * spec_.count, spec_.count));
    return roles;
  }
  std::vector<size_t> scratch() const override { return {dim_, spec_.count}; }
  void forward(const BlockStep& step) const override {
    route(spec_, step);
    step.backend.mix_streams({.what = MixStreamsParams::What::predict,
                              .stream = step.in.f32,
                              .streams = step.streams,
                              .count = spec_.count,
                              .routed = step.scratch[kRoutedRows].f32,
                              .coefficients = step.weights[kCoefficients],
                              .out = step.out});
  }

 private:
  StreamsSpec spec_;
  uint64_t dim_;
};

class CorrectBlock : public Block {
 public:
  CorrectBlock(const StreamsSpec& spec, uint32_t dim)
      : spec_(spec), dim_(dim), input_(make_block(spec.input, dim)) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    std::vector<size_t> widths = {dim_, spec_.count, dim_, dim_};
    const std::vector<size_t> inner = input_->scratch();
    widths.insert(widths.end(), inner.begin(), inner.end());
    return widths;
  }
  void forward(const BlockStep& step) const override;

 private:
  StreamsSpec spec_;
  uint64_t dim_;
  BlockPtr input_;
};

std::vector<Role> CorrectBlock::roles() const {
  std::vector<Role> roles = router_roles(spec_, dim_, kNormedRows);
  roles.push_back(coefficients_role("altup_correct_coef.weight", spec_.count, spec_.count));
  roles.push_back(vector_role("stream scale", "altup_correct_scale.weight", dim_, Presence::required));
  roles.push_back(vector_role("input norm", "post_norm.weight", dim_, Presence::required));
  for (Role& role : input_->roles()) {
    role.reads = role.reads == Role::kInput ? uint8_t(kCorrectedRows) : uint8_t(role.reads + kOwnRows);
    roles.push_back(std::move(role));
  }
  return roles;
}

void CorrectBlock::forward(const BlockStep& step) const {
  route(spec_, step);
  step.backend.mix_streams({.what = MixStreamsParams::What::correct,
                            .stream = step.in.f32,
                            .streams = step.streams,
                            .count = spec_.count,
                            .routed = step.scratch[kRoutedRows].f32,
                            .coefficients = step.weights[kCoefficients],
                            .scale = step.weights[kScale],
                            .out = step.out,
                            .corrected = step.scratch[kCorrectedRows]});
  const Rows made = step.scratch[kInputOut].f32;
  input_->forward({.backend = step.backend,
                   .layer = step.layer,
                   .in = step.scratch[kCorrectedRows],
                   .out = made,
                   .out_gate = {},
                   .layer_input = step.layer_input,
                   .weights = step.weights.subspan(kOwnRoles),
                   .scratch = step.scratch.subspan(kOwnRows),
                   .angles = step.angles,
                   .kv = step.kv,
                   .batch = step.batch,
                   .taps = step.taps});
  const Norm norm{spec_.norm.kind, spec_.norm.epsilon, step.weights[kPostNorm], {}};
  for (uint32_t s = 1; s < spec_.count; ++s) {
    step.backend.norm_quantize({.stream = step.streams.columns(s * dim_, dim_),
                                .branch = made,
                                .branch_gate = {},
                                .branch_norm = &norm,
                                .rows = {},
                                .out = {}});
  }
}

class LowRankBlock : public Block {
 public:
  LowRankBlock(const LowRankSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override {
    return {{.name = "low rank in", .tensor = "laurel_l.weight", .shape = {spec_.rank, dim_}},
            {.name = "low rank out",
             .tensor = "laurel_r.weight",
             .shape = {dim_, spec_.rank},
             .reads = kSmallRows},
            vector_role("low rank norm", "laurel_post_norm.weight", dim_, Presence::required)};
  }
  std::vector<size_t> scratch() const override { return {spec_.rank, dim_}; }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t { kLeft, kRight, kNorm };     // roles
  enum : uint8_t { kSmallRows, kLargeRows };  // scratch

  LowRankSpec spec_;
  uint64_t dim_;
};

void LowRankBlock::forward(const BlockStep& step) const {
  const Projection left[] = {{step.weights[kLeft], {}, step.scratch[kSmallRows].f32}};
  step.backend.project({step.in, left});
  step.backend.activate({.gate = step.scratch[kSmallRows].f32,
                         .up = {},
                         .function = {.kind = Nonlinearity::product},
                         .out = step.scratch[kSmallRows]});
  const Projection right[] = {{step.weights[kRight], {}, step.scratch[kLargeRows].f32}};
  step.backend.project({step.scratch[kSmallRows], right});
  const Norm none, norm{spec_.norm.kind, spec_.norm.epsilon, step.weights[kNorm], {}};
  step.backend.norm_quantize({.stream = step.in.f32,
                              .branch = {},
                              .branch_gate = {},
                              .norm = &none,
                              .rows = {},
                              .out = {.f32 = step.out, .forms = {}}});
  step.backend.norm_quantize({.stream = step.out,
                              .branch = step.scratch[kLargeRows].f32,
                              .branch_gate = {},
                              .branch_norm = &norm,
                              .rows = {},
                              .out = {}});
}

}  // namespace

BlockPtr make_predict_block(const StreamsSpec& spec, uint32_t dim) {
  return std::make_shared<PredictBlock>(spec, dim);
}

BlockPtr make_correct_block(const StreamsSpec& spec, uint32_t dim) {
  return std::make_shared<CorrectBlock>(spec, dim);
}

BlockPtr make_block(const LowRankSpec& spec, uint32_t dim) {
  return std::make_shared<LowRankBlock>(spec, dim);
}

}  // namespace quire
