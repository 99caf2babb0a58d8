#include "engine/pooled_rows.h"

#include <cmath>

#include "base/check.h"

namespace quire {

void PooledRows::add(uint32_t position, std::span<const float> row) {
  CHECK(wants(position));
  sum_.resize(row.size(), 0);
  for (size_t i = 0; i < row.size(); ++i) sum_[i] += double(row[i]);
  added_ = pooling_ == Pooling::cls ? count_ : position + 1;
}

std::vector<float> PooledRows::take() {
  CHECK(!sum_.empty());
  const double count = pooling_ == Pooling::mean ? count_ : 1;
  std::vector<float> vector(sum_.size());
  for (size_t i = 0; i < sum_.size(); ++i) vector[i] = float(sum_[i] / count);
  return vector;
}

std::vector<float> as_unit(std::vector<float> vector, size_t width) {
  CHECK(width <= vector.size());
  if (width > 0) vector.resize(width);
  double squares = 0;
  for (float value : vector) squares += double(value) * double(value);
  const double length = std::sqrt(squares);
  if (length > 0) {
    for (float& value : vector) value = float(double(value) / length);
  }
  return vector;
}

}  // namespace quire
