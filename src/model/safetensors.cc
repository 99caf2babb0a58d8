#include "model/safetensors.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "model/byte_reader.h"
#include "model/model_file.h"

namespace quire {
namespace {

constexpr uint64_t kMaxHeadBytes = 100'000'000;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kMaxDepth = 8;

struct NamedType {
  std::string_view name;
  SafetensorsType type;
  uint64_t bytes;
};

constexpr NamedType kTypes[] = {
    {"F32", SafetensorsType::f32, 4},         {"F16", SafetensorsType::f16, 2},
    {"BF16", SafetensorsType::bf16, 2},       {"F8_E4M3", SafetensorsType::f8_e4m3, 1},
    {"F8_E5M2", SafetensorsType::f8_e5m2, 1}, {"F8_E8M0", SafetensorsType::f8_e8m0, 1},
    {"U8", SafetensorsType::u8, 1},           {"I8", SafetensorsType::i8, 1},
    {"I32", SafetensorsType::i32, 4},         {"I64", SafetensorsType::i64, 8},
    {"BOOL", SafetensorsType::other, 1},      {"I16", SafetensorsType::other, 2},
    {"U16", SafetensorsType::other, 2},       {"U32", SafetensorsType::i32, 4},
    {"U64", SafetensorsType::other, 8},       {"F64", SafetensorsType::other, 8},
};

// Collects the names of the head's members, and sees that none is there twice: which of the two would count?
class NamesOnce : public nlohmann::json_sax<Json> {
 public:
  explicit NamesOnce(const std::string& path) : path_(path) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return ++depth_ > 0; }
  bool start_array(size_t) override { return ++depth_ > 0; }
  bool end_object() override { return depth_-- > 0; }
  bool end_array() override { return depth_-- > 0; }
  bool key(string_t& name) override {
    if (depth_ == 1 && !names_.insert(name).second)
      throw Error("{}: two tensors are named {}", path_, in_quotes(name));
    return true;
  }
  // The parser that comes after this one tells what is wrong.
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  const std::string& path_;
  std::unordered_set<std::string> names_;
  uint32_t depth_ = 0;
};

Json parse_head(std::string_view text, const std::string& path) {
  NamesOnce names(path);
  Json::sax_parse(text.begin(), text.end(), &names);
  return parse_json(text, fmt::format("{} is damaged: its head", path), {.depth = kMaxDepth});
}

// An array of whole numbers under `key`.
std::vector<uint64_t> read_numbers(const Json& tensor, const char* key, size_t most,
                                   const std::string& where) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array() || found->size() > most)
    throw Error("{} has no array \"{}\" of at most {} numbers", where, key, most);
  std::vector<uint64_t> numbers;
  for (const Json& number : *found) {
    if (!number.is_number_unsigned())
      throw Error("{} has something else than whole numbers in \"{}\"", where, key);
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

SafetensorsEntry read_entry(const Json& tensor, const std::string& where, uint64_t data, uint64_t end) {
  if (!tensor.is_object()) throw Error("{} is not described by an object", where);
  const auto dtype = tensor.find("dtype");
  if (dtype == tensor.end() || !dtype->is_string()) throw Error("{} has no \"dtype\"", where);
  const auto& type_name = dtype->get_ref<const std::string&>();
  const auto* type = std::ranges::find(kTypes, type_name, &NamedType::name);
  if (type == std::end(kTypes)) throw Error("{} is of the unknown type {}", where, in_quotes(type_name));

  SafetensorsEntry entry{type->type, type_name, read_numbers(tensor, "shape", kMaxDimensions, where), 0,
                         type->bytes};
  for (const uint64_t size : entry.shape)
    if (__builtin_mul_overflow(entry.bytes, size, &entry.bytes))
      throw Error("{} has the impossible shape [{}]", where, fmt::join(entry.shape, ", "));

  const auto offsets = read_numbers(tensor, "data_offsets", 2, where);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > end - data)
    throw Error("{} has the bytes [{}], and the file has {} bytes of data", where, fmt::join(offsets, ", "),
                end - data);
  if (offsets[1] - offsets[0] != entry.bytes)
    throw Error("{} has {} bytes, and its shape [{}] of {} needs {}", where, offsets[1] - offsets[0],
                fmt::join(entry.shape, ", "), type_name, entry.bytes);
  entry.begin = data + offsets[0];
  return entry;
}

void check_overlap(const SafetensorsIndex& index, const std::string& path) {
  std::vector<const SafetensorsIndex::value_type*> order;
  for (const auto& named : index)
    if (named.second.bytes > 0) order.push_back(&named);
  std::ranges::sort(order, {}, [](const auto* named) { return named->second.begin; });
  for (size_t i = 1; i < order.size(); ++i) {
    const auto& before = *order[i - 1];
    if (before.second.begin + before.second.bytes > order[i]->second.begin)
      throw Error("{}: tensors {} and {} overlap", path, in_quotes(before.first), in_quotes(order[i]->first));
  }
}

}  // namespace

SafetensorsIndex parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  ByteReader reader(file, path);
  const auto head_bytes = reader.read<uint64_t>("the size of the head");
  if (head_bytes > kMaxHeadBytes)
    throw Error("{} is damaged: its head would have {} bytes, more than {}", path, head_bytes, kMaxHeadBytes);
  const auto head = reader.take(head_bytes, "the head");
  const Json json = parse_head({reinterpret_cast<const char*>(head.data()), head.size()}, path);
  if (!json.is_object()) throw Error("{} is damaged: its head is not a JSON object", path);

  SafetensorsIndex index;
  for (const auto& [name, tensor] : json.items()) {
    if (name == "__metadata__") continue;
    const std::string where = fmt::format("{}: tensor {}", path, in_quotes(name));
    index.emplace(name, read_entry(tensor, where, reader.position(), file.size()));
  }
  check_overlap(index, path);
  return index;
}

}  // namespace quire
