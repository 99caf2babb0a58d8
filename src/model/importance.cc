#include "model/importance.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "model/byte_reader.h"
#include "model/gguf.h"
#include "model/gguf_writer.h"

namespace quire {
namespace {

constexpr std::string_view kSquares = ".in_sum2", kTokens = ".counts";
constexpr float kLeast = 1e-3f;  // of the mean

uint64_t matrices_of(const TensorEntry& tensor) {
  return tensor.shape.size() == 3 ? tensor.shape.front() : 1;
}

void check_entry(const std::string& path, const std::string& name, const Importance::Entry& entry) {
  const auto is_sum = [](float value) { return std::isfinite(value) && value >= 0; };
  if (entry.tokens.empty() || entry.squares.empty() || entry.squares.size() % entry.tokens.size() != 0)
    throw Error("{}: {} has {} sums for {} matrices", path, in_quotes(name), entry.squares.size(),
                entry.tokens.size());
  if (!std::ranges::all_of(entry.squares, is_sum) || !std::ranges::all_of(entry.tokens, is_sum))
    throw Error("{}: {} holds numbers that are no sums of squares", path, in_quotes(name));
}

std::vector<float> floats(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// Entries of {length, name, calls, count, values}, all of 32 bits; values are means times calls. What follows is for people.
void parse_old(std::span<const std::byte> file, const std::string& path, Importance& importance) {
  ByteReader reader(file, path);
  const auto count = [&](const char* what) {
    const int32_t value = reader.read<int32_t>(what);
    if (value < 1) throw Error("{}: {} is {}: not a file of importance", path, what, value);
    return uint64_t(value);
  };
  const uint64_t entries = count("the number of entries");
  reader.expect(entries, 16, "entries");
  for (uint64_t i = 0; i < entries; ++i) {
    const auto name = reader.take(count("the length of a name"), "a name");
    const float calls = float(reader.read<int32_t>("the number of calls"));
    const uint64_t values = count("the number of values");
    reader.expect(values, sizeof(float), "values");
    importance.set({reinterpret_cast<const char*>(name.data()), name.size()},
                   {floats(reader.take(values * sizeof(float), "values")), {std::max(calls, 1.0f)}});
  }
}

void parse_new(std::span<const std::byte> file, const std::string& path, Importance& importance) {
  const GgufHead head = parse_gguf(file, path);
  if (head.metadata.maybe_text("general.type").value_or("") != "imatrix")
    throw Error("{} is not a file of importance: general.type is not 'imatrix'", path);
  std::map<std::string, const GgufTensor*, std::less<>> by_name;
  for (const GgufTensor& tensor : head.tensors) by_name.emplace(tensor.entry.name, &tensor);
  const auto values = [&](const GgufTensor& tensor) {
    if (tensor.entry.dtype != DType::f32)
      throw Error("{}: {} is not of f32", path, in_quotes(tensor.entry.name));
    return floats(file.subspan(tensor.offset, tensor.entry.bytes));
  };
  for (const auto& [name, tensor] : by_name) {
    if (!name.ends_with(kSquares)) continue;
    const std::string owner = name.substr(0, name.size() - kSquares.size());
    const auto tokens = by_name.find(owner + std::string(kTokens));
    if (tokens == by_name.end()) throw Error("{}: {} has no counts", path, in_quotes(name));
    importance.set(owner, {values(*tensor), values(*tokens->second)});
  }
}

}  // namespace

void Importance::set(std::string tensor, Entry entry) {
  check_entry(path_, tensor, entry);
  entries_.insert_or_assign(std::move(tensor), std::move(entry));
}

Importance Importance::parse(std::span<const std::byte> file, const std::string& path) {
  Importance importance(path);
  const bool is_gguf =
      file.size() >= sizeof(kGgufMagic) && std::memcmp(file.data(), &kGgufMagic, sizeof(kGgufMagic)) == 0;
  is_gguf ? parse_new(file, path, importance) : parse_old(file, path, importance);
  if (importance.entries_.empty()) throw Error("{} tells of no tensor", path);
  return importance;
}

Importance Importance::read(const std::string& path) {
  const MappedFile file(path);
  return parse(file.bytes(), path);
}

void Importance::write(const std::string& path, const std::string& text, uint64_t parts,
                       uint64_t part_tokens) const {
  Metadata metadata(path);
  metadata.set("general.type", std::string("imatrix"));
  metadata.set("imatrix.datasets", std::vector<std::string>{text});
  metadata.set("imatrix.chunk_count", parts);
  metadata.set("imatrix.chunk_size", part_tokens);
  std::vector<TensorEntry> tensors;
  for (const auto& [name, entry] : entries_) {
    const uint64_t matrices = entry.tokens.size(), columns = entry.columns();
    tensors.push_back(
        {name + std::string(kSquares), DType::f32, {matrices, columns}, matrices * columns * sizeof(float)});
    tensors.push_back({name + std::string(kTokens), DType::f32, {matrices, 1}, matrices * sizeof(float)});
  }
  GgufWriter writer(path, metadata, tensors);
  for (const auto& [name, entry] : entries_) {
    writer.append(std::as_bytes(std::span(entry.squares)));
    writer.append(std::as_bytes(std::span(entry.tokens)));
  }
  writer.finish();
}

std::vector<float> Importance::of(const TensorEntry& tensor, uint64_t matrix) const {
  const auto found = entries_.find(tensor.name);
  if (found == entries_.end()) return {};
  const Entry& entry = found->second;
  const uint64_t columns = tensor.shape.back(), matrices = matrices_of(tensor);
  // The older kind does not say how many matrices there are; the sums of all may be one after the other, or be one.
  const bool together = entry.tokens.size() == 1;
  const uint64_t parts = entry.squares.size() / columns;
  if (entry.squares.size() % columns != 0 || (parts != 1 && parts != matrices) ||
      (!together && entry.tokens.size() != parts))
    throw Error("{}: {} has {} sums, and the model's has {} matrices of {} columns", path_,
                in_quotes(tensor.name), entry.squares.size(), matrices, columns);
  const uint64_t part = parts == 1 ? 0 : matrix;
  if (entry.tokens[together ? 0 : part] == 0) return {};
  std::vector<float> squares(columns);
  std::copy_n(entry.squares.begin() + ptrdiff_t(part * columns), columns, squares.begin());
  double sum = 0;
  for (const float value : squares) sum += double(value);
  const double mean = sum / double(columns);
  if (!(mean > 0)) return {};
  for (float& value : squares) value = std::max(float(double(value) / mean), kLeast);
  return squares;
}

}  // namespace quire
