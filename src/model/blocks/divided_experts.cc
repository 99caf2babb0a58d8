#include "model/blocks/divided_experts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ranks/column_gather.h"

namespace quire {
namespace {

constexpr size_t kMostGatheredBytes = size_t(512) << 20;  // at a time, if one rank has all that is chosen

class DividedExpertsBlock : public Block {
 public:
  DividedExpertsBlock(const ExpertMlpSpec& spec, uint32_t dim, RankPlace place)
      : spec_(spec), place_(place), own_(share_of(spec.count, 1, place)), whole_(make_block(spec, dim)) {
    CHECK(spec.latent == 0);
    const std::vector<Role> all = whole_->roles();
    const auto find = [&](const char* name) {
      const auto found = std::ranges::find(all, name, &Role::name);
      CHECK(found != all.end());
      return size_t(found - all.begin());
    };
    router_ = find("router");
    router_bias_ = find("router bias");
    choice_bias_ = find("choice bias");
    share_scales_ = find("share scales");
    by_token_ = find("experts of tokens");
    gate_ = find("gate of experts");
    up_ = find("up of experts");
    down_ = find("down of experts");
    gate_bias_ = find("gate biases");
    up_bias_ = find("up biases");
    down_bias_ = find("down biases");
  }

  std::vector<Role> roles() const override {
    std::vector<Role> roles = whole_->roles();
    for (const size_t role : {gate_, up_, down_, gate_bias_, up_bias_, down_bias_}) {
      roles[role] = divided(std::move(roles[role]), own_);
      // Of those that a token chooses so many are here, on average.
      roles[role].used = std::max(1u, uint32_t(spec_.used * own_.count / spec_.count));
    }
    return roles;
  }
  std::vector<size_t> scratch() const override { return whole_->scratch(); }
  void forward(const BlockStep& step) const override;

 private:
  // The choices of some tokens: whose experts they are, and what own ones make of them.
  struct Part {
    std::span<const uint32_t> chosen;  // [tokens, used]
    std::span<const float> shares;
    Rows in, out;  // [tokens, dim]
  };
  void compute(const BlockStep& step, const Part& part) const;
  uint32_t rank_of(uint32_t expert) const;

  ExpertMlpSpec spec_;
  RankPlace place_;
  RowShare own_;  // of the experts
  BlockPtr whole_;
  size_t router_, router_bias_, choice_bias_, share_scales_, by_token_;  // roles
  size_t gate_, up_, down_, gate_bias_, up_bias_, down_bias_;
};

uint32_t DividedExpertsBlock::rank_of(uint32_t expert) const {
  uint32_t rank = 0;
  while (expert >= share_of(spec_.count, 1, {rank, place_.of}).end()) ++rank;
  return rank;
}

void DividedExpertsBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const size_t tokens = step.in.f32.rows, used = spec_.used;
  const std::span chosen(reinterpret_cast<uint32_t*>(step.scratch[0].f32.data), tokens * used);
  const std::span shares(step.scratch[1].f32.data, tokens * used);
  step.backend.route_experts({.in = step.router_in == nullptr ? step.in : *step.router_in,
                              .router = w[router_],
                              .bias = w[router_bias_],
                              .choice_bias = w[choice_bias_],
                              .share_scales = w[share_scales_],
                              .by_token = w[by_token_],
                              .routing = spec_.routing,
                              .used = spec_.used,
                              .experts = chosen,
                              .shares = shares});
  const size_t at_once =
      std::max<size_t>(1, kMostGatheredBytes / (place_.of * used * step.out.width * sizeof(float)));
  for (size_t first = 0; first < tokens; first += at_once) {
    const size_t count = std::min(at_once, tokens - first);
    const auto rows = [&](const Rows& all) { return Rows{all.row(first), count, all.width, all.stride}; };
    compute(step, {chosen.subspan(first * used, count * used), shares.subspan(first * used, count * used),
                   rows(step.in.f32), rows(step.out)});
  }
}

void DividedExpertsBlock::compute(const BlockStep& step, const Part& part) const {
  const auto& w = step.weights;
  const size_t used = spec_.used, dim = part.out.width, in_dim = part.in.width;
  // What is made stands rank by rank, of each in the order of the choices: everybody knows where. All have room for as many.
  std::vector<size_t> counts(place_.of), places(part.chosen.size());
  std::vector<uint32_t> ranks(part.chosen.size()), own;
  std::vector<float> own_shares, in;
  for (size_t i = 0; i < part.chosen.size(); ++i) {
    ranks[i] = rank_of(part.chosen[i]);
    places[i] = counts[ranks[i]]++;
    if (ranks[i] != place_.rank) continue;
    own.push_back(part.chosen[i] - uint32_t(own_.begin));
    // The share of an output is multiplied when all are added up.
    own_shares.push_back(spec_.share_use == ShareUse::of_inputs ? part.shares[i] : 1.0f);
    const float* row = part.in.row(i / used);
    in.insert(in.end(), row, row + in_dim);
  }
  const size_t most = std::ranges::max(counts), piece = most * dim;
  std::vector<float> made(place_.of * piece);
  if (!own.empty()) {
    step.backend.project_experts({.in = {.f32 = {in.data(), own.size(), in_dim, in_dim}, .forms = {}},
                                  .experts = own,
                                  .shares = own_shares,
                                  .share_use = spec_.share_use,
                                  .used = 1,
                                  .expert_width = spec_.width,
                                  .gate = w[gate_],
                                  .up = w[up_],
                                  .down = w[down_],
                                  .gate_bias = w[gate_bias_],
                                  .up_bias = w[up_bias_],
                                  .down_bias = w[down_bias_],
                                  .function = spec_.gate,
                                  .out = {made.data() + place_.rank * piece, own.size(), dim, dim}});
  }
  step.gather->gather({made.data(), 1, made.size(), made.size()}, piece);
  for (size_t t = 0; t < part.out.rows; ++t) {
    float* out = part.out.row(t);
    std::fill_n(out, dim, 0.0f);
    for (size_t i = t * used; i < (t + 1) * used; ++i) {
      const float* row = made.data() + ranks[i] * piece + places[i] * dim;
      const float share = spec_.share_use == ShareUse::of_outputs ? part.shares[i] : 1.0f;
      for (size_t c = 0; c < dim; ++c) out[c] += share * row[c];
    }
  }
}

}  // namespace

BlockPtr make_divided_experts(const ExpertMlpSpec& spec, uint32_t dim, RankPlace place) {
  return std::make_shared<DividedExpertsBlock>(spec, dim, place);
}

}  // namespace quire
