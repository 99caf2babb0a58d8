#include "engine/importance_meter.h"

#include <algorithm>

#include "base/check.h"
#include "engine/text_runner.h"

namespace quire {
namespace {

// The matrices of all blocks, with places for their sums one after the other.
std::vector<ColumnTap> taps_of(const Weights& weights) {
  std::vector<ColumnTap> taps;
  size_t at = 0;
  for (size_t b = 0; b < weights.blocks.size(); ++b) {
    const BlockWeights& block = weights.blocks[b];
    for (size_t r = 0; r < block.roles.size(); ++r) {
      const Role& role = block.roles[r];
      if (role.kind != RoleKind::product || !block.weights[r]) continue;
      if (role.reads == Role::kInside && !role.is_stack()) continue;
      taps.push_back({.block = uint32_t(b),
                      .role = uint32_t(r),
                      .matrices = uint32_t(role.stacked()),
                      .columns = uint32_t(role.shape.back()),
                      .at = at});
      at += taps.back().size();
    }
  }
  return taps;
}

}  // namespace

Importance measure_importance(const EngineModel& model, std::span<const TokenId> tokens,
                              const LossOptions& options, const std::function<void(size_t)>& progress) {
  CHECK(options.part_tokens >= 1 && options.prefill_chunk >= 1);
  const std::vector<ColumnTap> taps = taps_of(*model.weights);
  const size_t size = taps.empty() ? 0 : taps.back().at + taps.back().size();
  const uint32_t chunk = std::min(options.prefill_chunk, options.part_tokens);
  TextRunner runner(model, options.kv_formats, options.part_tokens, chunk);
  std::vector<double> sums(size);
  for (size_t begin = 0; begin < tokens.size(); begin += options.part_tokens) {
    const auto part = tokens.subspan(begin, std::min<size_t>(options.part_tokens, tokens.size() - begin));
    runner.restart();
    for (size_t done = 0; done < part.size(); done = runner.done()) {
      const auto next = part.subspan(done, std::min<size_t>(chunk, part.size() - done));
      const std::vector<float> values = runner.sum_columns(next, taps, std::vector<float>(size));
      for (size_t i = 0; i < size; ++i) sums[i] += double(values[i]);
      if (progress) progress(begin + runner.done());
    }
  }
  Importance importance(model.weights->file->path());
  for (const ColumnTap& tap : taps) {
    const Role& role = model.weights->blocks[tap.block].roles[tap.role];
    const std::string& tensor = is_part(role, *model.weights->file) ? role.part.tensor : role.tensor;
    const auto first = sums.begin() + ptrdiff_t(tap.at), middle = first + ptrdiff_t(tap.squares());
    const auto end = first + ptrdiff_t(tap.size());
    if (std::all_of(middle, end, [](double tokens) { return tokens == 0; })) continue;
    importance.set(tensor, {{first, middle}, {middle, end}});
  }
  return importance;
}

}  // namespace quire
