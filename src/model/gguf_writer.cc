#include "model/gguf_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "base/error.h"
#include "model/gguf.h"

namespace quire {
namespace {

// The head as bytes: small enough to be built in memory.
class HeadBytes {
 public:
  const std::string& bytes() const { return bytes_; }

  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  void put_string(std::string_view text) {
    put(uint64_t(text.size()));
    bytes_ += text;
  }

  void put_value(const MetadataValue& value) {
    std::visit([&](const auto& held) { put_typed(held); }, value);
  }

 private:
  template <class Narrow, class Wide>
  static bool fits(Wide value) {
    return value >= std::numeric_limits<Narrow>::min() && value <= std::numeric_limits<Narrow>::max();
  }

  void put_type(GgufValueType type) { put(uint32_t(type)); }

  void put_typed(uint64_t value) {
    if (fits<uint32_t>(value)) return put_as<uint32_t>(GgufValueType::u32, value);
    put_as<uint64_t>(GgufValueType::u64, value);
  }
  void put_typed(int64_t value) {
    if (fits<int32_t>(value)) return put_as<int32_t>(GgufValueType::i32, value);
    put_as<int64_t>(GgufValueType::i64, value);
  }
  void put_typed(double value) { put_as<float>(GgufValueType::f32, value); }
  void put_typed(bool value) { put_as<uint8_t>(GgufValueType::boolean, value); }
  void put_typed(const std::string& value) {
    put_type(GgufValueType::string);
    put_string(value);
  }

  void put_typed(const std::vector<uint64_t>& values) {
    if (std::ranges::all_of(values, fits<uint32_t, uint64_t>))
      return put_all<uint32_t>(GgufValueType::u32, values);
    put_all<uint64_t>(GgufValueType::u64, values);
  }
  void put_typed(const std::vector<int64_t>& values) {
    if (std::ranges::all_of(values, fits<int32_t, int64_t>))
      return put_all<int32_t>(GgufValueType::i32, values);
    put_all<int64_t>(GgufValueType::i64, values);
  }
  void put_typed(const std::vector<double>& values) { put_all<float>(GgufValueType::f32, values); }
  void put_typed(const std::vector<bool>& values) { put_all<uint8_t>(GgufValueType::boolean, values); }
  void put_typed(const std::vector<std::string>& values) {
    put_array_head(GgufValueType::string, values.size());
    for (const std::string& value : values) put_string(value);
  }

  template <class Stored, class Held>
  void put_as(GgufValueType type, Held value) {
    put_type(type);
    put(Stored(value));
  }

  void put_array_head(GgufValueType type, size_t count) {
    put_type(GgufValueType::array);
    put_type(type);
    put(uint64_t(count));
  }

  template <class Stored, class Values>
  void put_all(GgufValueType type, const Values& values) {
    put_array_head(type, values.size());
    for (const auto value : values) put(Stored(value));
  }

  std::string bytes_;
};

uint64_t align(uint64_t position, uint64_t alignment) {
  return (position + alignment - 1) / alignment * alignment;
}

std::string head_bytes(const Metadata& metadata, std::span<const TensorEntry> tensors, uint64_t alignment) {
  HeadBytes head;
  head.put(kGgufMagic);
  head.put(kGgufVersion);
  head.put(uint64_t(tensors.size()));
  head.put(uint64_t(metadata.all().size()));
  for (const auto& [key, value] : metadata.all()) {
    head.put_string(key);
    head.put_value(value);
  }
  uint64_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    head.put_string(tensor.name);
    head.put(uint32_t(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;)
      head.put(uint64_t(tensor.shape[i]));  // the innermost first
    head.put(gguf_type_id(tensor.dtype));
    head.put(offset);
    offset = align(offset + tensor.bytes, alignment);
  }
  return head.bytes();
}

}  // namespace

GgufWriter::GgufWriter(const std::string& path, const Metadata& metadata,
                       std::span<const TensorEntry> tensors)
    : path_(path),
      partial_path_(path + ".partial"),
      alignment_(metadata.maybe_number("general.alignment").value_or(kGgufAlignment)) {
  file_.reset(std::fopen(partial_path_.c_str(), "wb"));
  if (!file_) throw Error("cannot write {}: {}", partial_path_, std::strerror(errno));
  for (const TensorEntry& tensor : tensors) sizes_.push_back(tensor.bytes);
  const std::string head = head_bytes(metadata, tensors, alignment_);
  write(head.data(), head.size());
  pad();
}

GgufWriter::~GgufWriter() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;  // what could not be finished is not worth a second error
  std::filesystem::remove(partial_path_, ignored);
}

void GgufWriter::append(std::span<const std::byte> bytes) {
  CHECK(current_ < sizes_.size() && bytes.size() <= sizes_[current_] - written_);
  write(bytes.data(), bytes.size());
  written_ += bytes.size();
  if (written_ < sizes_[current_]) return;
  pad();
  ++current_;
  written_ = 0;
}

void GgufWriter::finish() {
  CHECK(current_ == sizes_.size());
  if (std::fclose(file_.release()) != 0) {
    const int error = errno;
    std::filesystem::remove(partial_path_);
    throw Error("cannot write {}: {}", partial_path_, std::strerror(error));
  }
  std::error_code error;
  std::filesystem::rename(partial_path_, path_, error);
  if (error) throw Error("cannot rename {} to {}: {}", partial_path_, path_, error.message());
}

void GgufWriter::write(const void* data, size_t bytes) {
  if (std::fwrite(data, 1, bytes, file_.get()) != bytes)
    throw Error("cannot write {}: {}", partial_path_, std::strerror(errno));
  position_ += bytes;
}

void GgufWriter::pad() {
  const std::string zeros(align(position_, alignment_) - position_, '\0');
  write(zeros.data(), zeros.size());
}

void write_gguf(const std::string& path, const ModelFile& model) {
  GgufWriter writer(path, model.metadata(), model.tensors());
  for (const TensorEntry& tensor : model.tensors()) writer.append(model.load(tensor).bytes);
  writer.finish();
}

}  // namespace quire
