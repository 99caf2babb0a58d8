#include "backend/split_backend.h"

#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace quire {

SplitBackend::SplitBackend(std::unique_ptr<Backend> device, std::unique_ptr<Backend> host)
    : device_(std::move(device)), host_(std::move(host)) {
  CHECK(host_->traits().memory == MemoryKind::host);
}

BackendTraits SplitBackend::traits() const {
  const BackendTraits host = host_->traits();
  BackendTraits whole = device_->traits();
  whole.description = fmt::format("{}, and {} beside it", whole.description, host.description);
  whole.kernels = fmt::format("{}+{}", whole.kernels, host.kernels);
  whole.threads = host.threads;
  whole.weight_scales = whole.weight_scales && host.weight_scales;
  // The next step's host part needs what this one draws: there is nothing to run ahead with.
  whole.pipeline = 1;
  return whole;
}

void SplitBackend::feed_drawn(std::span<TokenId> tokens, std::span<const DrawnToken> drawn,
                              std::span<const SampleResult> results) {
  device_->wait(device_->mark());
  for (const DrawnToken& one : drawn) tokens[one.token] = results[one.draw].token;
}

void SplitBackend::forget_step() {
  host_->forget_step();
  device_->forget_step();
}

}  // namespace quire
