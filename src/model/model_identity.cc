#include "model/model_identity.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"

namespace quire {
namespace {

constexpr size_t kSampleBytes = 4096;
constexpr size_t kSamples = 8;  // of a stored piece of a tensor, its first and last bytes among them

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK);
  }
  void add_bytes(const void* data, size_t bytes) {
    CHECK(bytes == 0 || XXH3_128bits_update(state_.get(), data, bytes) == XXH_OK);
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void add(T value) { add_bytes(&value, sizeof(value)); }
  // With its length: "ab" and "c" are not "a" and "bc".
  void add(const std::string& text) {
    add(uint64_t(text.size()));
    add_bytes(text.data(), text.size());
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(uint64_t(values.size()));
    for (const T& value : values) add(value);
  }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

void add_samples(Hash& hash, std::span<const std::byte> bytes) {
  hash.add(uint64_t(bytes.size()));
  if (bytes.size() <= kSamples * kSampleBytes) {
    hash.add_bytes(bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < kSamples; ++i) {
    const size_t begin = (bytes.size() - kSampleBytes) / (kSamples - 1) * i;
    const size_t at = i + 1 == kSamples ? bytes.size() - kSampleBytes : begin;
    hash.add_bytes(bytes.data() + at, kSampleBytes);
  }
}

}  // namespace

std::string model_identity(const ModelFile& file) {
  Hash hash;
  for (const auto& [key, value] : file.metadata().all()) {
    hash.add(key);
    hash.add(uint64_t(value.index()));
    std::visit([&](const auto& held) { hash.add(held); }, value);
  }
  for (const TensorEntry& tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add(std::string(traits(tensor.dtype).name));
    hash.add(tensor.shape);
    for (const auto& piece : file.stored(tensor)) add_samples(hash, piece);
  }
  return hash.text();
}

std::string positions_identity(const ModelSpec& spec) {
  Hash hash;
  for (const RopeSpec& rope : spec.ropes) {
    hash.add(uint32_t(rope.pairing));
    hash.add(rope.inverse_frequencies);
    hash.add(rope.scale);
    if (rope.step != 1) hash.add(rope.step);
  }
  for (const LayerSpec& layer : spec.layers) {
    const GqaSpec* attention = layer.attention();
    hash.add(attention != nullptr && attention->rope ? *attention->rope : ~uint32_t(0));
  }
  return hash.text();
}

}  // namespace quire
