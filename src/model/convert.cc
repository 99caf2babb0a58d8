#include "model/convert.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/gguf_writer.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

// Rows that are converted at once: bounds the memory a large tensor needs.
constexpr size_t kRowsAtOnce = 4096;

size_t rows_of(const TensorEntry& tensor) {
  size_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows;
}

// The importance of a tensor's matrices. Experts that no token chose have that of the others, on average.
std::vector<std::vector<float>> importance_of(const Importance* importance, const TensorEntry& tensor) {
  std::vector<std::vector<float>> known(tensor.shape.size() == 3 ? tensor.shape.front() : 1);
  if (importance == nullptr) return known;
  std::vector<float> sum(tensor.shape.back());
  size_t count = 0;
  for (size_t i = 0; i < known.size(); ++i) {
    known[i] = importance->of(tensor, i);
    count += known[i].empty() ? 0 : 1;
    for (size_t c = 0; c < known[i].size(); ++c) sum[c] += known[i][c];
  }
  if (count == 0 || count == known.size()) return known;
  for (float& value : sum) value /= float(count);
  for (std::vector<float>& one : known) {
    if (one.empty()) one = sum;
  }
  return known;
}

void convert(const ModelFile& file, const TensorEntry& from, DType to,
             const std::vector<std::vector<float>>& importance, ThreadPool& pool, GgufWriter& writer) {
  const TensorData data = file.load(from);
  if (from.dtype == to) {
    writer.append(data.bytes);
    return;
  }
  const size_t rows = rows_of(from);
  const size_t cols = from.shape.back();
  const std::vector<float> scales = file.scales_of(from);
  const size_t in_bytes = row_bytes(from.dtype, cols);
  const size_t out_bytes = row_bytes(to, cols);
  std::vector<std::byte> converted;
  for (size_t first = 0; first < rows; first += kRowsAtOnce) {
    const size_t count = std::min(kRowsAtOnce, rows - first);
    converted.resize(count * out_bytes);
    pool.parallel_for(count, 16, [&](size_t begin, size_t end) {
      std::vector<float> values(cols);
      for (size_t row = begin; row < end; ++row) {
        dequantize_row(from.dtype, data.bytes.data() + (first + row) * in_bytes, values);
        for (size_t i = 0; !scales.empty() && i < cols; ++i)
          values[i] *= scales[(first + row) / (rows / scales.size())];
        quantize_row(to, values, converted.data() + row * out_bytes,
                     importance[(first + row) / (rows / importance.size())]);
      }
    });
    writer.append(converted);
  }
}

}  // namespace

Converted convert_to_gguf(const ModelFile& file, const TypeMix& mix, const std::string& out,
                          ConvertOptions options, ThreadPool& pool) {
  options.metadata.set("general.file_type", uint64_t(mix.file_type()));
  options.metadata.set("general.quantization_version", uint64_t(2));
  if (options.importance != nullptr &&
      std::ranges::none_of(options.importance->entries(),
                           [&](const auto& entry) { return file.find(entry.first) != nullptr; }))
    throw Error("{} tells of no tensor that {} has", options.importance->path(), file.path());
  const bool tied = file.find("output.weight") == nullptr;
  std::set<const TensorEntry*> absorbed;  // scales beside what becomes another type
  for (const TensorEntry& tensor : file.tensors()) {
    if (mix.type_for(tensor, options.layers, tied) != tensor.dtype) absorbed.insert(file.scale_of(tensor));
  }
  std::vector<TensorEntry> entries;
  std::vector<const TensorEntry*> sources;
  Converted result;
  for (const TensorEntry& tensor : file.tensors()) {
    if (absorbed.contains(&tensor)) continue;
    sources.push_back(&tensor);
    TensorEntry entry = tensor;
    entry.dtype = mix.type_for(tensor, options.layers, tied);
    entry.bytes = rows_of(tensor) * row_bytes(entry.dtype, tensor.shape.back());
    if (needs_importance(entry.dtype) && importance_of(options.importance, tensor).front().empty()) {
      if (options.importance == nullptr)
        throw Error(
            "{} as {} is worthless unless it is known which columns matter: quire imatrix finds out, and "
            "--imatrix tells",
            in_quotes(tensor.name), traits(entry.dtype).name);
      entry.dtype = DType::q3_k;  // blocks of 256 too
      entry.bytes = rows_of(tensor) * row_bytes(entry.dtype, tensor.shape.back());
    }
    result.bytes += entry.bytes;
    entries.push_back(std::move(entry));
  }
  GgufWriter writer(out, options.metadata, entries);
  size_t done = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry& from = *sources[i];
    const auto importance = importance_of(options.importance, from);
    const bool is_rounded = traits(entries[i].dtype).block_values > 1 && from.dtype != entries[i].dtype;
    result.matrices += is_rounded ? 1 : 0;
    result.unknown += is_rounded && importance.front().empty() ? 1 : 0;
    convert(file, from, entries[i].dtype, importance, pool, writer);
    done += entries[i].bytes;
    if (options.progress) options.progress(done, result.bytes);
  }
  writer.finish();
  return result;
}

}  // namespace quire
