#include "model/convert.h"

#include <algorithm>
#include <utility>
#include <vector>

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

void convert(const ModelFile& file, const TensorEntry& from, DType to, ThreadPool& pool, GgufWriter& writer) {
  const TensorData data = file.load(from);
  if (from.dtype == to) {
    writer.append(data.bytes);
    return;
  }
  const size_t rows = rows_of(from);
  const size_t cols = from.shape.back();
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
        quantize_row(to, values, converted.data() + row * out_bytes);
      }
    });
    writer.append(converted);
  }
}

}  // namespace

size_t convert_to_gguf(const ModelFile& file, const TypeMix& mix, const std::string& out,
                       ConvertOptions options, ThreadPool& pool) {
  options.metadata.set("general.file_type", uint64_t(mix.file_type()));
  options.metadata.set("general.quantization_version", uint64_t(2));
  const bool tied = file.find("output.weight") == nullptr;
  std::vector<TensorEntry> entries;
  size_t total = 0;
  for (const TensorEntry& tensor : file.tensors()) {
    TensorEntry entry = tensor;
    entry.dtype = mix.type_for(tensor, options.layers, tied);
    entry.bytes = rows_of(tensor) * row_bytes(entry.dtype, tensor.shape.back());
    total += entry.bytes;
    entries.push_back(std::move(entry));
  }
  GgufWriter writer(out, options.metadata, entries);
  size_t done = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    convert(file, file.tensors()[i], entries[i].dtype, pool, writer);
    done += entries[i].bytes;
    if (options.progress) options.progress(done, total);
  }
  writer.finish();
  return total;
}

}  // namespace quire
