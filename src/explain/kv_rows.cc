#include "explain/kv_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "model/decoder.h"
#include "tensor/float16.h"

namespace quire {
namespace {

size_t value_bytes(KvFormat format) {
  return format == KvFormat::f32 ? 4 : 2;
}

float value_at(KvFormat format, const std::byte* at) {
  if (format == KvFormat::f32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return format == KvFormat::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

RowChanges changes_between(KvFormat format, const KvRows& a, const KvRows& b, uint32_t first, uint32_t end) {
  RowChanges changes{.first = first, .key = {}, .value = {}};
  for (uint32_t layer = 0; layer < a.layers(); ++layer) {
    for (auto [which, list] :
         {std::pair(KvRows::Which::key, &changes.key), std::pair(KvRows::Which::value, &changes.value)}) {
      std::vector<RowChange>& rows = list->emplace_back();
      for (uint32_t position = first; position < end; ++position) {
        rows.push_back(
            compare_rows(format, a.bytes(which, layer, position), b.bytes(which, layer, position)));
      }
    }
  }
  return changes;
}

}  // namespace

KvRows::KvRows(const EngineModel& model, KvFormat format, std::span<const TokenId> tokens)
    : tokens_(uint32_t(tokens.size())),
      // With chunks as long as the text, a window's pages hold all of it.
      runner_(model, format, tokens_, tokens_, TextRunner::Passed::stays) {
  for (const LayerSpec& layer : model.spec->layers) (void)layer.gqa();  // says so where there are no rows
  runner_.compute(tokens, TextRunner::Wanted::last_row);
}

std::vector<std::byte> KvRows::bytes(Which which, uint32_t layer, uint32_t position) const {
  const KvLayerLayout& rows = runner_.layout().at(runner_.layout().places[layer].front());
  std::vector<std::byte> row;
  for (uint32_t head = 0; head < rows.shape.kv_heads; ++head) {
    const std::vector<std::byte> one = runner_.bytes(
        {layer, head, position, which == Which::key ? TextRunner::Which::key : TextRunner::Which::value});
    row.insert(row.end(), one.begin(), one.end());
  }
  return row;
}

RowChange compare_rows(KvFormat format, std::span<const std::byte> a, std::span<const std::byte> b) {
  CHECK(is_float(format) && a.size() == b.size());
  RowChange change;
  change.changed = std::memcmp(a.data(), b.data(), a.size()) != 0;
  if (!change.changed) return change;
  double difference = 0, length = 0;
  for (size_t i = 0; i < a.size(); i += value_bytes(format)) {
    const double was = value_at(format, a.data() + i), is = value_at(format, b.data() + i);
    difference += (was - is) * (was - is);
    length += was * was;
  }
  change.relative = length > 0 ? std::sqrt(difference / length) : 0;
  return change;
}

RowChanges::Layer RowChanges::layer(uint32_t index) const {
  Layer sum;
  sum.rows = uint32_t(key[index].size());
  for (const RowChange& row : key[index]) {
    sum.keys_changed += row.changed;
    sum.largest_key = std::max(sum.largest_key, row.relative);
  }
  for (const RowChange& row : value[index]) {
    sum.values_changed += row.changed;
    sum.largest_value = std::max(sum.largest_value, row.relative);
  }
  return sum;
}

CacheProof prove_cache(const EngineModel& model, KvFormat format, std::span<const TokenId> prompt) {
  CHECK(prompt.size() >= 2 && model.spec->vocab > 1);
  const uint32_t tokens = uint32_t(prompt.size()), vocab = model.spec->vocab;
  CacheProof proof;
  // Any token will do; one that the text has already is at least not a strange one.
  proof.appended = prompt[1];
  proof.replaced = prompt[0];
  proof.replacement = prompt[1] != prompt[0] ? prompt[1] : (prompt[0] + 1) % vocab;

  const KvRows rows(model, format, prompt);
  std::vector<TokenId> other(prompt.begin(), prompt.end());
  other.push_back(proof.appended);
  proof.after_append = changes_between(format, rows, KvRows(model, format, other), 0, tokens);
  other.pop_back();
  other.front() = proof.replacement;
  proof.after_change = changes_between(format, rows, KvRows(model, format, other), 1, tokens);
  return proof;
}

}  // namespace quire
