#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {
namespace {

constexpr uint64_t kMaxCount = 1u << 24;  // no width, head count or layer count of a real model comes near

uint32_t checked(const Metadata& metadata, const std::string& key, uint64_t value) {
  if (value == 0 || value > kMaxCount) {
    throw Error("{}: {} is {}, which no model can have", metadata.file_name(), key, value);
  }
  return uint32_t(value);
}

// A lone number, or one for each layer; a list may go on to those that predict further tokens, which are left out, or stop before them.
std::vector<uint64_t> of_layers(const Keys& keys, const char* key, size_t layers) {
  const uint64_t ahead = keys.all().maybe_number(keys("nextn_predict_layers")).value_or(0);
  const MetadataValue* value = keys.all().find(keys(key));
  const auto has = [&](size_t count) {
    const auto is = [&](const auto* list) { return list != nullptr && list->size() == count; };
    return ahead > 0 && value != nullptr &&
           (is(std::get_if<std::vector<uint64_t>>(value)) || is(std::get_if<std::vector<int64_t>>(value)));
  };
  const uint64_t all = keys.all().maybe_number(keys("block_count")).value_or(layers);
  const size_t said = has(all) ? all : ahead < all && has(all - ahead) ? all - ahead : layers;
  std::vector<uint64_t> numbers = keys.all().maybe_numbers(keys(key), said);
  if (said != layers) numbers.resize(layers, numbers.back());
  return numbers;
}

}  // namespace

Keys::Keys(const ModelFile& file)
    : metadata_(&file.metadata()), architecture_(file.metadata().text("general.architecture")) {}

uint32_t Keys::count(const char* key) const {
  return checked(*metadata_, (*this)(key), metadata_->number((*this)(key)));
}

std::optional<uint32_t> Keys::maybe_count(const char* key) const {
  if (!metadata_->has((*this)(key))) return std::nullopt;
  return count(key);
}

std::vector<uint32_t> Keys::counts(const char* key, size_t layers) const {
  std::vector<uint32_t> counts;
  for (const uint64_t value : of_layers(*this, key, layers))
    counts.push_back(checked(*metadata_, (*this)(key), value));
  return counts;
}

std::vector<uint32_t> Keys::counts_or_none(const char* key, size_t layers) const {
  std::vector<uint32_t> counts;
  for (const uint64_t value : of_layers(*this, key, layers))
    counts.push_back(value == 0 ? 0 : checked(*metadata_, (*this)(key), value));
  return counts;
}

float Keys::real(const char* key, float otherwise) const {
  return float(metadata_->maybe_real((*this)(key)).value_or(otherwise));
}

bool Keys::flag(const char* key, bool otherwise) const {
  return metadata_->maybe_flag((*this)(key)).value_or(otherwise);
}

}  // namespace quire::arch
