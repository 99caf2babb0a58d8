#include "base/error.h"
#include "model/arch/arch.h"

// Recurrent mixers by the keys of a file.

namespace quire::arch {
namespace {

constexpr uint64_t kMaxState = 1u << 28;  // values of all heads of a layer: no model comes near
constexpr uint64_t kMaxSpan = 64;

template <class... Args>
[[noreturn]] void refuse(const Keys& keys, const char* key, fmt::format_string<Args...> why, Args&&... args) {
  throw Error("{}: {} is {}", keys.all().file_name(), keys(key),
              fmt::format(why, std::forward<Args>(args)...));
}

uint32_t read_span(const Keys& keys, const char* key) {
  const uint32_t span = keys.count(key);
  if (span < 2 || span > kMaxSpan)
    refuse(keys, key, "{}: known are convolutions over 2 to {} tokens", span, kMaxSpan);
  return span;
}

// Of a state of so many values for each of so many.
uint32_t read_state_size(const Keys& keys, uint64_t values) {
  const uint32_t size = keys.count("ssm.state_size");
  if (size % 4 != 0) refuse(keys, "ssm.state_size", "{}, which is no multiple of 4", size);
  if (uint64_t(size) * values > kMaxState)
    refuse(keys, "ssm.state_size", "{}: with {} values that is more than any model has", size, values);
  return size;
}

}  // namespace

DeltaNetSpec read_delta_net(const ModelFile& file, const ModelSpec& spec, KeyOrder order) {
  const Keys keys(file);
  DeltaNetSpec net{.key_heads = keys.count("ssm.group_count"),
                   .value_heads = keys.count("ssm.time_step_rank"),
                   .span = read_span(keys, "ssm.conv_kernel"),
                   .order = order,
                   .norm = spec.output_norm};
  const uint32_t inner = keys.count("ssm.inner_size");
  if (net.value_heads % net.key_heads != 0)
    refuse(keys, "ssm.time_step_rank", "{} value heads, which {} key heads cannot share", net.value_heads,
           net.key_heads);
  if (inner % net.value_heads != 0)
    refuse(keys, "ssm.inner_size", "{}, which does not divide into {} heads", inner, net.value_heads);
  net.value_dim = inner / net.value_heads;
  net.key_dim = read_state_size(keys, std::max<uint64_t>(inner, 64 * uint64_t(net.key_heads)));
  return net;
}

StateSpaceSpec read_state_space(const ModelFile& file, const ModelSpec& spec) {
  const Keys keys(file);
  const uint32_t inner = keys.count("ssm.inner_size");
  StateSpaceSpec net{.heads = keys.count("ssm.time_step_rank"),
                     .groups = keys.count("ssm.group_count"),
                     .span = read_span(keys, "ssm.conv_kernel"),
                     .norm = spec.output_norm};
  if (inner % net.heads != 0)
    refuse(keys, "ssm.inner_size", "{}, which does not divide into {} heads", inner, net.heads);
  if (net.heads % net.groups != 0)
    refuse(keys, "ssm.group_count", "{}: {} heads do not divide into so many groups", net.groups, net.heads);
  net.head_dim = inner / net.heads;
  net.state_dim = read_state_size(keys, std::max<uint64_t>(inner, 64 * uint64_t(net.groups)));
  return net;
}

SelectiveScanSpec read_selective_scan(const ModelFile& file, const ModelSpec& spec) {
  const Keys keys(file);
  const uint32_t inner = keys.count("ssm.inner_size");
  return {.width = inner,
          .state_dim = read_state_size(keys, inner),
          .rank = keys.count("ssm.time_step_rank"),
          .span = read_span(keys, "ssm.conv_kernel"),
          .norm = spec.output_norm};
}

ShortConvolutionSpec read_short_convolution(const ModelFile& file, const ModelSpec&) {
  return {.span = read_span(Keys(file), "shortconv.l_cache")};
}

void fill_mixers(ModelSpec& spec, const MixerSpec& mixer) {
  for (LayerSpec& layer : spec.layers) {
    if (std::holds_alternative<AbsentSpec>(layer.mixer)) layer.mixer = mixer;
  }
}

void never_rotate(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    if (layer.attention() != nullptr) layer.gqa().rope.reset();
  }
}

}  // namespace quire::arch
