#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "tensor/lanes.h"

// Hyper-connections. A token's numbers depend on its own rows alone, and are computed in one order.

namespace quire {
namespace {

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

template <class Lanes>
Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

// Rows, or columns, of a square matrix: `step` from one number of a line to the next, `next` from one line to the next.
void divide_by_sums(std::span<float> matrix, size_t count, size_t step, size_t next, float epsilon) {
  for (size_t line = 0; line < count; ++line) {
    float sum = 0;
    for (size_t i = 0; i < count; ++i) sum += matrix[line * next + i * step];
    for (size_t i = 0; i < count; ++i) matrix[line * next + i * step] /= sum + epsilon;
  }
}

// One token's streams.
class TokenStreams {
 public:
  TokenStreams(const ConnectStreamsParams& params, size_t token)
      : params_(params),
        token_(token),
        dim_(params.stream.width),
        count_(params.count),
        streams_(params.streams.row(token)),
        post_(streams_ + count_ * dim_),
        comb_(post_ + count_) {}

  void open() const {
    const float* from = params_.stream.row(token_);
    for (size_t s = 0; s < count_; ++s) std::copy_n(from, dim_, streams_ + s * dim_);
    std::fill_n(post_, count_, 0.0f);
    for (size_t i = 0; i < count_ * count_; ++i) comb_[i] = i / count_ == i % count_ ? 1.0f : 0.0f;
  }

  void give(std::vector<float>& before) const {
    before.assign(streams_, streams_ + count_ * dim_);
    const float* made = params_.stream.row(token_);
    for (size_t k = 0; k < count_; ++k) {
      const auto given = [&]<class Lanes>(size_t i, Lanes value) {
        for (size_t j = 0; j < count_; ++j)
          value = value + comb_[j * count_ + k] * load<Lanes>(before.data() + j * dim_ + i);
        value = post_[k] * load<Lanes>(made + i) + value;
        std::memcpy(streams_ + k * dim_ + i, &value, sizeof(value));
      };
      size_t i = 0;
      for (; i + 4 <= dim_; i += 4) given(i, F32x4{});
      for (; i < dim_; ++i) given(i, 0.0f);
    }
  }

  void take() const {
    const float *routed = params_.routed.row(token_), *base = params_.base.vector();
    const float* scale = params_.scale.vector();
    for (size_t s = 0; s < count_; ++s)
      post_[s] = 2 * sigmoid(routed[count_ + s] * scale[1] + base[count_ + s]);
    const std::span<float> comb(comb_, count_ * count_);
    for (size_t i = 0; i < comb.size(); ++i)
      comb[i] = routed[2 * count_ + i] * scale[2] + base[2 * count_ + i];
    for (size_t j = 0; j < count_; ++j) soften(comb.subspan(j * count_, count_));
    divide_by_sums(comb, count_, count_, 1, params_.epsilon);
    for (uint32_t i = 1; i < params_.iterations; ++i) {
      divide_by_sums(comb, count_, 1, count_, params_.epsilon);
      divide_by_sums(comb, count_, count_, 1, params_.epsilon);
    }
    read();
  }

  // The sum of all streams by their shares.
  void read() const {
    const float *routed = params_.routed.row(token_), *base = params_.base.vector();
    float* out = params_.stream.row(token_);
    for (size_t s = 0; s < count_; ++s) {
      const float share = sigmoid(routed[s] * params_.scale.vector()[0] + base[s]) + params_.epsilon;
      const float* from = streams_ + s * dim_;
      for (size_t i = 0; i < dim_; ++i) out[i] = s == 0 ? share * from[i] : out[i] + share * from[i];
    }
  }

 private:
  void soften(std::span<float> row) const {
    const float most = *std::ranges::max_element(row);
    float sum = 0;
    for (float& value : row) sum += value = std::exp(value - most);
    for (float& value : row) value = value / sum + params_.epsilon;
  }

  const ConnectStreamsParams& params_;
  const size_t token_, dim_, count_;
  float *streams_, *post_, *comb_;
};

}  // namespace

void CpuBackend::connect_streams(const ConnectStreamsParams& params) {
  using What = ConnectStreamsParams::What;
  const size_t count = params.count, routed = params.what == What::close ? count : (2 + count) * count;
  CHECK(params.streams.width == ConnectStreamsParams::width(params.stream.width, count));
  const bool reads = params.what == What::take || params.what == What::close;
  CHECK(!reads || (params.routed.width == routed && params.base.view.cols == routed &&
                   params.scale.view.cols == (params.what == What::close ? 1u : 3u)));
  pool_.parallel_for(params.stream.rows, 1, [&](size_t begin, size_t end) {
    std::vector<float> before;
    for (size_t t = begin; t < end; ++t) {
      const TokenStreams token(params, t);
      switch (params.what) {
        case What::open:
          token.open();
          break;
        case What::give:
          token.give(before);
          break;
        case What::take:
          token.take();
          break;
        case What::close:
          token.read();
          break;
      }
    }
  });
}

}  // namespace quire
