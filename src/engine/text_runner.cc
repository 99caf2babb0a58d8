#include "engine/text_runner.h"

#include <utility>

#include "base/check.h"

namespace quire {
namespace {

KvCache cache_for(const ModelSpec& spec, const KvFormats& formats, uint32_t tokens, uint32_t chunk) {
  const KvLayout layout = make_kv_layout(kv_shapes(spec, formats));
  return KvCache(layout, pages_for(layout, tokens, chunk, 1));
}

}  // namespace

TextRunner::TextRunner(const EngineModel& model, const KvFormats& formats, uint32_t tokens, uint32_t chunk,
                       Passed passed)
    : kv_(cache_for(*model.spec, formats, tokens, chunk)),
      runner_(model.runner_model(), kv_.layout(), kv_.pages_per_group()),
      table_(kv_.make_table()),
      passed_(passed) {}

StepInput TextRunner::begin(std::span<const TokenId> next, StepInput::Logits logits) {
  CHECK(kv_.reserve(table_, done_ + uint32_t(next.size())));
  kv_.begin_run(table_, done_, uint32_t(next.size()));
  StepInput input;
  input.add(next, done_, logits);
  const PageTable* tables[] = {&table_};
  input.tables = kv_.flatten(tables);
  return input;
}

StepOutput TextRunner::finish(StepInput input) {
  const uint32_t count = uint32_t(input.tokens.size());
  StepOutput output = runner_.collect(runner_.launch(std::move(input)));
  done_ += count;
  if (passed_ == Passed::goes) kv_.release_behind_window(table_, done_);
  return output;
}

StepOutput TextRunner::compute(std::span<const TokenId> next, Wanted wanted, std::vector<Tap> taps,
                               std::vector<float> values) {
  StepInput input =
      begin(next, wanted == Wanted::all_rows ? StepInput::Logits::all : StepInput::Logits::last);
  input.report = StepInput::Report::logits;
  input.taps = std::move(taps);
  input.values = std::move(values);
  return finish(std::move(input));
}

std::vector<float> TextRunner::sum_columns(std::span<const TokenId> next, std::vector<ColumnTap> columns,
                                           std::vector<float> values) {
  StepInput input = begin(next, StepInput::Logits::none);
  input.columns = std::move(columns);
  input.values = std::move(values);
  return finish(std::move(input)).values;
}

std::vector<float> TextRunner::expect(std::vector<Expectation> expectations, std::vector<float> values) {
  StepInput input;
  const PageTable* tables[] = {&table_};
  input.tables = kv_.flatten(tables);
  input.expectations = std::move(expectations);
  input.values = std::move(values);
  return runner_.collect(runner_.launch(std::move(input))).values;
}

std::vector<std::byte> TextRunner::bytes(const RowPlace& place) {
  const auto [group, slot] = layout().places[place.layer].front();
  const KvGroupLayout& pages = layout().groups[group];
  const KvLayerLayout& layer = pages.layers[slot];
  const uint32_t page = place.row / pages.page_tokens, row = place.row % pages.page_tokens;
  const bool is_key = place.which == Which::key;
  const size_t offset = is_key ? layer.key_offset(place.head, row) : layer.value_offset(place.head, row);
  std::vector<std::byte> bytes(is_key ? layer.key_row_bytes : layer.value_row_bytes);
  KvMoves moves;
  moves.list.push_back({.group = group,
                        .bytes = bytes.size(),
                        .from = table_.pages(group)[page]->id().value * uint64_t(pages.page_bytes) + offset,
                        .host_to = bytes.data()});
  runner_.make(moves);
  return bytes;
}

void TextRunner::restart() {
  kv_.release(table_, {}, 0, KvCache::Reason::forgotten);
  done_ = 0;
}

}  // namespace quire
