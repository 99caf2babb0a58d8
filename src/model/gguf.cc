#include "model/gguf.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "model/byte_reader.h"

namespace quire {
namespace {

constexpr uint32_t kMostGgufDimensions = 4;
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxAlignment = 1 << 20;

struct TensorType {
  uint32_t id;
  std::string_view name;
  std::optional<DType> dtype;  // none: known, but not supported
};

constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::f32},
    {1, "F16", DType::f16},
    {2, "Q4_0", DType::q4_0},
    {3, "Q4_1", DType::q4_1},
    {6, "Q5_0", DType::q5_0},
    {7, "Q5_1", DType::q5_1},
    {8, "Q8_0", DType::q8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", DType::q2_k},
    {11, "Q3_K", DType::q3_k},
    {12, "Q4_K", DType::q4_k},
    {13, "Q5_K", DType::q5_k},
    {14, "Q6_K", DType::q6_k},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", DType::iq2_xxs},
    {17, "IQ2_XS", DType::iq2_xs},
    {18, "IQ3_XXS", DType::iq3_xxs},
    {19, "IQ1_S", DType::iq1_s},
    {20, "IQ4_NL", DType::iq4_nl},
    {21, "IQ3_S", DType::iq3_s},
    {22, "IQ2_S", DType::iq2_s},
    {23, "IQ4_XS", DType::iq4_xs},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", DType::i32},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", DType::iq1_m},
    {30, "BF16", DType::bf16},
    {34, "TQ1_0", DType::tq1_0},
    {35, "TQ2_0", DType::tq2_0},
    {39, "MXFP4", DType::mxfp4},
    {40, "NVFP4", DType::nvfp4},
    {41, "Q1_0", DType::q1_0},
    {42, "Q2_0", DType::q2_0},
};

class Parser {
 public:
  Parser(std::span<const std::byte> file, const std::string& path)
      : path_(path), reader_(file, path), head_{Metadata(path), {}} {}

  GgufHead parse() {
    const auto [tensors, keys] = read_counts();
    for (uint64_t i = 0; i < keys; ++i) read_pair();
    const uint64_t alignment = read_alignment();
    head_.tensors.reserve(tensors);
    for (uint64_t i = 0; i < tensors; ++i) head_.tensors.push_back(read_tensor(alignment));
    place_tensors(alignment);
    return std::move(head_);
  }

 private:
  struct Counts {
    uint64_t tensors;
    uint64_t keys;
  };

  Counts read_counts() {
    if (reader_.left() < 4 || reader_.read<uint32_t>("the magic number") != kGgufMagic)
      throw Error("{} is not a GGUF file: it does not begin with \"GGUF\"", path_);
    const auto version = reader_.read<uint32_t>("the version");
    if ((version & 0xffff) == 0 && version != 0)
      throw Error("{} is a big-endian GGUF file, which is not supported", path_);
    if (version < 2 || version > kGgufVersion)
      throw Error("{} is of GGUF version {}; versions 2 and 3 are supported", path_, version);
    const auto tensors = reader_.read<uint64_t>("the number of tensors");
    const auto keys = reader_.read<uint64_t>("the number of keys");
    reader_.expect(keys, 8 + 4 + 1, "metadata keys");
    reader_.expect(tensors, 8 + 4 + 8 + 4 + 8, "tensors");
    if (keys > kMaxKeys) throw Error("{} has {} metadata keys, more than {}", path_, keys, kMaxKeys);
    if (tensors > kMaxTensors) throw Error("{} has {} tensors, more than {}", path_, tensors, kMaxTensors);
    return {tensors, keys};
  }

  void read_pair() {
    std::string key(reader_.read_string("a metadata key"));
    if (key.empty()) throw Error("{}: a metadata key is empty", path_);
    if (head_.metadata.has(key)) throw Error("{}: the metadata key {} is there twice", path_, in_quotes(key));
    const auto type = GgufValueType(reader_.read<uint32_t>("a value type"));
    MetadataValue value = type == GgufValueType::array ? read_array(key) : read_lone(key, type);
    head_.metadata.set(std::move(key), std::move(value));
  }

  MetadataValue read_lone(const std::string& key, GgufValueType type) {
    constexpr std::string_view kWhat = "a metadata value";
    switch (type) {
      case GgufValueType::u8:
        return uint64_t(reader_.read<uint8_t>(kWhat));
      case GgufValueType::u16:
        return uint64_t(reader_.read<uint16_t>(kWhat));
      case GgufValueType::u32:
        return uint64_t(reader_.read<uint32_t>(kWhat));
      case GgufValueType::u64:
        return uint64_t(reader_.read<uint64_t>(kWhat));
      case GgufValueType::i8:
        return int64_t(reader_.read<int8_t>(kWhat));
      case GgufValueType::i16:
        return int64_t(reader_.read<int16_t>(kWhat));
      case GgufValueType::i32:
        return int64_t(reader_.read<int32_t>(kWhat));
      case GgufValueType::i64:
        return int64_t(reader_.read<int64_t>(kWhat));
      case GgufValueType::f32:
        return double(reader_.read<float>(kWhat));
      case GgufValueType::f64:
        return reader_.read<double>(kWhat);
      case GgufValueType::boolean:
        return read_bool(key);
      case GgufValueType::string:
        return std::string(reader_.read_string(kWhat));
      case GgufValueType::array:
        break;
    }
    throw Error("{}: the metadata key {} has the unknown value type {}", path_, in_quotes(key),
                uint32_t(type));
  }

  MetadataValue read_array(const std::string& key) {
    const auto type = GgufValueType(reader_.read<uint32_t>("an array's type"));
    const auto count = reader_.read<uint64_t>("an array's length");
    switch (type) {
      case GgufValueType::u8:
        return read_numbers<uint8_t, uint64_t>(count);
      case GgufValueType::u16:
        return read_numbers<uint16_t, uint64_t>(count);
      case GgufValueType::u32:
        return read_numbers<uint32_t, uint64_t>(count);
      case GgufValueType::u64:
        return read_numbers<uint64_t, uint64_t>(count);
      case GgufValueType::i8:
        return read_numbers<int8_t, int64_t>(count);
      case GgufValueType::i16:
        return read_numbers<int16_t, int64_t>(count);
      case GgufValueType::i32:
        return read_numbers<int32_t, int64_t>(count);
      case GgufValueType::i64:
        return read_numbers<int64_t, int64_t>(count);
      case GgufValueType::f32:
        return read_numbers<float, double>(count);
      case GgufValueType::f64:
        return read_numbers<double, double>(count);
      case GgufValueType::boolean:
        return read_bools(key, count);
      case GgufValueType::string:
        return read_strings(count);
      case GgufValueType::array:
        throw Error("{}: the metadata key {} is an array of arrays, which is not supported", path_,
                    in_quotes(key));
    }
    throw Error("{}: the metadata key {} is an array of the unknown value type {}", path_, in_quotes(key),
                uint32_t(type));
  }

  bool read_bool(const std::string& key) {
    const auto value = reader_.read<uint8_t>("a truth value");
    if (value > 1)
      throw Error("{}: the metadata key {} has {} for true or false", path_, in_quotes(key), value);
    return value == 1;
  }

  template <class Stored, class Kept>
  MetadataValue read_numbers(uint64_t count) {
    reader_.expect(count, sizeof(Stored), "array elements");
    std::vector<Kept> values(count);
    for (Kept& value : values)
      value = Kept(+reader_.read<Stored>("an array element"));  // + : a byte is a number too
    return values;
  }

  MetadataValue read_bools(const std::string& key, uint64_t count) {
    reader_.expect(count, 1, "array elements");
    std::vector<bool> values(count);
    for (uint64_t i = 0; i < count; ++i) values[i] = read_bool(key);
    return values;
  }

  MetadataValue read_strings(uint64_t count) {
    reader_.expect(count, sizeof(uint64_t), "array elements");
    std::vector<std::string> values(count);
    for (std::string& value : values) value = reader_.read_string("an array element");
    return values;
  }

  uint64_t read_alignment() const {
    const uint64_t alignment = head_.metadata.maybe_number("general.alignment").value_or(kGgufAlignment);
    if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment)
      throw Error("{}: general.alignment is {}, not a power of two from 8 to {}", path_, alignment,
                  kMaxAlignment);
    return alignment;
  }

  // The offset is still the file's own: from the start of the data.
  GgufTensor read_tensor(uint64_t alignment) {
    GgufTensor tensor;
    TensorEntry& entry = tensor.entry;
    entry.name = reader_.read_string("a tensor's name");
    const std::string name = in_quotes(entry.name);
    if (entry.name.empty()) throw Error("{}: a tensor has no name", path_);
    const auto dimensions = reader_.read<uint32_t>("a tensor's number of dimensions");
    if (dimensions == 0 || dimensions > kMostGgufDimensions)
      throw Error("{}: tensor {} has {} dimensions; 1 to {} are supported", path_, name, dimensions,
                  kMostGgufDimensions);
    for (uint32_t i = 0; i < dimensions; ++i)
      entry.shape.push_back(reader_.read<uint64_t>("a tensor's shape"));
    std::reverse(entry.shape.begin(), entry.shape.end());  // GGUF lists the innermost first
    entry.dtype = read_type(name);
    entry.bytes = measure(entry, name);
    tensor.offset = reader_.read<uint64_t>("a tensor's offset");
    if (tensor.offset % alignment != 0)
      throw Error("{}: tensor {} begins at {}, which is not a multiple of {}", path_, name, tensor.offset,
                  alignment);
    return tensor;
  }

  DType read_type(const std::string& name) {
    const auto id = reader_.read<uint32_t>("a tensor's type");
    const auto* type = std::ranges::find(kTensorTypes, id, &TensorType::id);
    if (type == std::end(kTensorTypes))
      throw Error("{}: tensor {} is of the unknown type {}", path_, name, id);
    if (!type->dtype)
      throw Error("{}: tensor {} is of type {}, which is not supported", path_, name, type->name);
    return *type->dtype;
  }

  size_t measure(const TensorEntry& entry, const std::string& name) const {
    const DTypeTraits& format = traits(entry.dtype);
    if (entry.shape.back() % format.block_values != 0)
      throw Error("{}: rows of tensor {} have {} values, which do not divide into {} blocks of {}", path_,
                  name, entry.shape.back(), format.name, format.block_values);
    uint64_t values = 1;
    for (const uint64_t size : entry.shape) {
      // 2^56 values of any type fit in 64 bits of bytes.
      if (size == 0 || __builtin_mul_overflow(values, size, &values) || values >> 56 != 0)
        throw Error("{}: tensor {} has the impossible shape [{}]", path_, name, fmt::join(entry.shape, ", "));
    }
    return values / format.block_values * format.block_bytes;
  }

  void place_tensors(uint64_t alignment) {
    const uint64_t end = reader_.position() + reader_.left();
    const uint64_t data = (reader_.position() + alignment - 1) / alignment * alignment;
    std::vector<GgufTensor*> by_offset;
    for (GgufTensor& tensor : head_.tensors) {
      if (data > end || tensor.offset > end - data || tensor.entry.bytes > end - data - tensor.offset)
        throw Error(
            "{} is cut short or damaged: tensor {} has {} bytes at {} of the data, and the file ends at {}",
            path_, in_quotes(tensor.entry.name), tensor.entry.bytes, tensor.offset, end);
      tensor.offset += data;
      by_offset.push_back(&tensor);
    }
    std::ranges::sort(by_offset, {}, &GgufTensor::offset);
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const GgufTensor& before = *by_offset[i - 1];
      if (before.offset + before.entry.bytes > by_offset[i]->offset)
        throw Error("{}: tensors {} and {} overlap", path_, in_quotes(before.entry.name),
                    in_quotes(by_offset[i]->entry.name));
    }
  }

  const std::string& path_;
  ByteReader reader_;
  GgufHead head_;
};

std::string split_path(std::string_view prefix, uint64_t number, uint64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, number, count);
}

}  // namespace

uint32_t gguf_type_id(DType dtype) {
  const auto* type = std::ranges::find(kTensorTypes, std::optional(dtype), &TensorType::dtype);
  CHECK(type != std::end(kTensorTypes));
  return type->id;
}

GgufHead parse_gguf(std::span<const std::byte> file, const std::string& path) {
  return Parser(file, path).parse();
}

GgufFile::GgufFile(const std::string& path) : ModelFile(path) {
  MappedFile file(path);
  GgufHead head = parse_gguf(file.bytes(), path);
  metadata_ = std::move(head.metadata);
  append(std::move(file), std::move(head));
  if (const uint64_t count = metadata_.maybe_number("split.count").value_or(0); count > 1)
    append_splits(count);
}

void GgufFile::append(MappedFile file, GgufHead head) {
  for (GgufTensor& tensor : head.tensors) {
    contents_.push_back(file.bytes().subspan(tensor.offset, tensor.entry.bytes));
    add_tensor(std::move(tensor.entry));
  }
  files_.push_back(std::move(file));
}

void GgufFile::append_splits(uint64_t count) {
  const uint64_t number = metadata_.number("split.no");
  const std::string ending = split_path("", number + 1, count);
  if (count > 99999 || !path_.ends_with(ending))
    throw Error("{} is file {} of {} of a split model, so its name should end in \"{}\"", path_, number + 1,
                count, ending);
  const std::string prefix = path_.substr(0, path_.size() - ending.size());
  if (number != 0)
    throw Error("{} is file {} of {} of a split model; open the first, {}", path_, number + 1, count,
                split_path(prefix, 1, count));
  for (uint64_t i = 1; i < count; ++i) {
    MappedFile file(split_path(prefix, i + 1, count));
    GgufHead head = parse_gguf(file.bytes(), file.path());
    if (head.metadata.number("split.no") != i || head.metadata.number("split.count") != count)
      throw Error("{} says it is file {} of {} of a split model, and its name says otherwise", file.path(),
                  head.metadata.number("split.no") + 1, head.metadata.number("split.count"));
    append(std::move(file), std::move(head));
  }
  const auto promised = metadata_.maybe_number("split.tensors.count");
  if (promised && *promised != tensors().size())
    throw Error("{}: the split model should have {} tensors and has {}", path_, *promised, tensors().size());
  for (const char* key : {"split.no", "split.count", "split.tensors.count"}) metadata_.erase(key);
}

TensorData GgufFile::load(const TensorEntry& entry) const {
  return {contents_[index_of(entry)], nullptr};
}

std::vector<std::span<const std::byte>> GgufFile::stored(const TensorEntry& entry) const {
  return {contents_[index_of(entry)]};
}

}  // namespace quire
