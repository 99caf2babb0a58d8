#include "model/weights.h"

#include <map>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

class Loader {
 public:
  Loader(std::shared_ptr<const ModelFile> file, const ModelSpec& spec)
      : file_(std::move(file)), spec_(spec) {}

  // Checks every name and shape, so that a bad file is refused before any tensor is converted.
  void check() {
    checking_ = true;
    load();
    checking_ = false;
    bytes_ = 0;
  }

  Weights load() {
    Weights weights;
    const ModelRoles roles = model_roles(spec_);
    weights.embedding = find(roles.embedding);
    weights.positions = to_f32(find(roles.positions));
    weights.output_norm = norm("output_norm", spec_.output_norm);
    weights.head = find(roles.head);
    if (!weights.head) weights.head = weights.embedding;
    weights.head_bias = find(roles.head_bias);
    for (const LayerBlock& one : layer_blocks(spec_)) weights.blocks.push_back(block(one));
    weights.bytes = bytes_;
    weights.file = file_;
    return weights;
  }

 private:
  BlockWeights block(const LayerBlock& from) {
    BlockWeights result{.layer = from.layer,
                        .block = from.block,
                        .roles = from.roles(),
                        .weights = {},
                        .norm = norm(from.pre_norm, from.norm),
                        .post_norm = norm(from.post_norm, from.norm),
                        .residual_scale = from.residual_scale};
    shared_.clear();
    for (const Role& role : result.roles) result.weights.push_back(find(role));
    return result;
  }

  Norm norm(const std::string& tensor, const NormSpec& spec) {
    if (tensor.empty()) return {};
    const std::array<Role, 2> roles = norm_roles("norm", tensor, spec_.dim);
    return {spec.kind, spec.epsilon, find(roles[0]), find(roles[1])};
  }

  Weight find(const Role& role) {
    if (role.presence == Presence::absent) return {};
    if (is_part(role, *file_)) return part_of(role);
    if (role.presence == Presence::optional && file_->find(role.tensor) == nullptr) return {};
    return load(role.tensor, role.shape, role.kind);
  }

  // A tensor of several roles is loaded once.
  Weight part_of(const Role& role) {
    std::vector<uint64_t> shape = role.shape;
    shape.front() = role.part.length;
    auto whole = shared_.find(role.part.tensor);
    if (whole == shared_.end())
      whole = shared_.emplace(role.part.tensor, load(role.part.tensor, shape, role.kind)).first;
    const Weight& all = whole->second;
    if (role.kind != RoleKind::vector) return all.slice(role.part.begin, role.shape.front());
    return {{all.view.data + role.part.begin * sizeof(float), DType::f32, 1, role.shape.front()}, all.owner};
  }

  Weight load(const std::string& name, const std::vector<uint64_t>& shape, RoleKind kind) {
    const TensorEntry* entry = file_->find(name);
    if (entry == nullptr) throw Error("{}: the tensor {} is missing", file_->path(), name);
    if (entry->shape != shape) {
      throw Error("{}: the tensor {} has the shape [{}], and [{}] was expected", file_->path(), name,
                  fmt::join(entry->shape, ", "), fmt::join(shape, ", "));
    }
    if (entry->dtype == DType::i32) throw Error("{}: the tensor {} holds integers", file_->path(), name);
    size_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    const bool vector = kind == RoleKind::vector;
    const Weight weight = load(*entry, vector ? 1 : rows, vector ? rows * shape.back() : shape.back());
    return vector ? to_f32(weight) : weight;
  }

  Weight load(const TensorEntry& entry, size_t rows, size_t cols) {
    static constexpr std::byte kNotLoaded{};
    if (checking_) return {{&kNotLoaded, entry.dtype, rows, cols}, nullptr};
    TensorData data = file_->load(entry);
    bytes_ += entry.bytes;
    std::shared_ptr<const void> owner = file_;
    if (data.owned != nullptr) owner = data.owned;
    return {{data.bytes.data(), entry.dtype, rows, cols}, owner};
  }

  // Norms, biases and the like are used as f32 whatever the file holds.
  Weight to_f32(const Weight& weight) const {
    if (checking_ || !weight) return weight;
    const size_t count = weight.view.rows * weight.view.cols;
    if (weight.view.dtype == DType::f32 &&
        reinterpret_cast<uintptr_t>(weight.view.data) % alignof(float) == 0) {
      return weight;
    }
    auto copy = std::make_shared<const Buffer>(count * sizeof(float));
    for (size_t row = 0; row < weight.view.rows; ++row) {
      dequantize_row(weight.view.dtype, weight.view.row(row),
                     {copy->as<float>() + row * weight.view.cols, weight.view.cols});
    }
    return {{copy->data(), DType::f32, weight.view.rows, weight.view.cols}, copy};
  }

  std::shared_ptr<const ModelFile> file_;
  const ModelSpec& spec_;
  std::map<std::string, Weight> shared_;  // by several roles of one block
  size_t bytes_ = 0;
  bool checking_ = false;
};

}  // namespace

Weights load_weights(std::shared_ptr<const ModelFile> file, const ModelSpec& spec) {
  Loader loader(std::move(file), spec);
  loader.check();
  return loader.load();
}

void prepare_weights(Weights& weights, Backend& backend) {
  const auto prepare = [&](Weight& weight, size_t stacked) {
    weight = backend.prepare(weight, stacked);
    if (weight.packed == nullptr) return;
    weights.packed_bytes += weight.packed->size();
    const bool is_embedding = weight.view.data == weights.embedding.view.data;  // whose rows are still read
    if (weight.owner == weights.file && !is_embedding) forget_pages({weight.view.data, weight.view.bytes()});
    weight.owner = nullptr;
  };
  for (BlockWeights& block : weights.blocks) {
    for (size_t i = 0; i < block.roles.size(); ++i) {
      if (block.roles[i].kind == RoleKind::product && block.weights[i])
        prepare(block.weights[i], block.roles[i].stacked());
    }
  }
  prepare(weights.head, 1);
}

}  // namespace quire
