#include "model/weights.h"

#include <cstring>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/product_type.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

// Files keep some vectors and matrices as if they had more measures.
std::vector<uint64_t> without_ones(std::vector<uint64_t> shape) {
  std::erase(shape, uint64_t(1));
  return shape;
}

class Loader {
 public:
  Loader(std::shared_ptr<const ModelFile> file, const ModelSpec& spec, const BackendTraits& traits)
      : file_(std::move(file)), spec_(spec), takes_scales_(traits.weight_scales) {}

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
    if (spec_.embedding_norm) weights.embedding_norm = norm(kEmbeddingNorm, *spec_.embedding_norm);
    weights.output_norm = norm(spec_.output_norm_tensor, spec_.output_norm);
    weights.join = find(roles.joining[0]);
    if (spec_.joins) {
      weights.token_norm = {spec_.joins->kind, spec_.joins->epsilon, find(roles.joining[1]), {}};
      weights.result_norm = {spec_.joins->kind, spec_.joins->epsilon, find(roles.joining[2]), {}};
    }
    weights.layer_table = find(roles.layer_inputs[0]);
    weights.layer_projection = find(roles.layer_inputs[1]);
    weights.layer_norm = {
        spec_.layer_inputs.norm.kind, spec_.layer_inputs.norm.epsilon, find(roles.layer_inputs[2]), {}};
    const Weight in = find(roles.streams[0]), out = find(roles.streams[1]);
    for (uint32_t s = 1; s < spec_.streams; ++s) {
      weights.streams_in.push_back(in.slice((s - 1) * size_t(spec_.dim), spec_.dim));
      weights.streams_out.push_back(out.slice((s - 1) * size_t(spec_.dim), spec_.dim));
    }
    weights.connection = find(roles.connection[0]);
    weights.connection_scale = find(roles.connection[1]);
    weights.connection_base = find(roles.connection[2]);
    weights.head = find(roles.head);
    if (!weights.head) weights.head = tied_head(roles.embedding.tensor, weights.embedding);
    weights.head_bias = find(roles.head_bias);
    for (const LayerBlock& one : layer_blocks(spec_)) weights.blocks.push_back(block(one));
    weights.bytes = bytes_;
    weights.file = file_;
    weights.losses = file_->losses();
    if (scaled_ > 0)
      weights.losses.push_back(
          fmt::format("{}: {} tensors of NVFP4 with a scale of their own are kept as f16, which moves "
                      "their values by 0.02 % at most",
                      file_->path(), scaled_));
    return weights;
  }

 private:
  BlockWeights block(const LayerBlock& from) {
    BlockWeights result{.layer = from.layer,
                        .block = from.block,
                        .roles = from.roles(),
                        .weights = {},
                        .input = from.input,
                        .norm = norm(from.pre_norm, from.norm),
                        .post_norm = norm(from.post_norm, from.after),
                        .residual_scale = from.residual_scale,
                        .stream_scale = from.stream_scale,
                        .side = from.side,
                        .first_stream = from.first_stream};
    shared_.clear();
    for (const Role& role : result.roles) result.weights.push_back(find(role));
    return result;
  }

  Norm norm(const std::string& tensor, const NormSpec& spec) {
    if (tensor.empty()) return {};
    if (!spec.has_weights) return {spec.kind, spec.epsilon, {}, {}};
    const std::array<Role, 2> roles = norm_roles("norm", tensor, spec_.dim);
    return {spec.kind, spec.epsilon, find(roles[0]), find(roles[1])};
  }

  Weight tied_head(const std::string& tensor, const Weight& embedding) const {
    const Weight head = as_product(tensor, embedding, 1);
    if (!head || spec_.place.is_alone()) return head;
    const RowShare own = rows_of(spec_.vocab, spec_.place);
    return head.slice(own.begin, own.count);
  }

  // What a rank has of a role. The file is mapped: other rows than these are not looked at, unless all of them had to be converted.
  Weight share_of_rank(const Role& role) {
    Role whole = role;
    whole.share = {};
    whole.shape.front() = role.share.whole;
    const size_t before = bytes_, count = role.shape.front();
    const Weight all = find(whole);
    if (!all) return {};
    bytes_ = before + size_t(double(bytes_ - before) * double(count) / double(role.share.whole));
    // Of a stack whole matrices, of biases of experts those of one after the other.
    const size_t inner = role.shape.size() == 3 || (role.kind == RoleKind::vector && role.shape.size() == 2)
                             ? role.shape[1]
                             : 1;
    const size_t begin = role.share.begin * inner, own = count * inner;
    if (role.kind == RoleKind::vector)
      return {{all.view.data + begin * sizeof(float), DType::f32, 1, own}, all.owner};
    Weight part{all.view.slice(begin, own), all.owner, nullptr, all.scales};
    if (all.scales != nullptr && all.scales->size() > 1) {
      const auto first = all.scales->begin() + ptrdiff_t(role.share.begin);
      part.scales = std::make_shared<const std::vector<float>>(first, first + ptrdiff_t(count));
    }
    return part;
  }

  Weight find(const Role& role) {
    if (role.presence == Presence::absent) return {};
    if (role.share.whole > 0) return share_of_rank(role);
    if (is_part(role, *file_)) return part_of(role);
    if (role.presence == Presence::optional && file_->find(role.tensor) == nullptr) return {};
    if (role.below > 0) return load_numbers(role);
    const Weight weight = load(role.tensor, role.shape, role.kind);
    return role.factor == 1 ? weight : times(weight, role.factor);
  }

  // A tensor of several roles is loaded once.
  Weight part_of(const Role& role) {
    std::vector<uint64_t> shape = role.shape;
    if (role.stacked() > 1 || shape.size() == 3) return part_of_each(role);
    shape.front() = role.part.length;
    auto whole = shared_.find(role.part.tensor);
    if (whole == shared_.end())
      whole = shared_.emplace(role.part.tensor, load(role.part.tensor, shape, role.kind)).first;
    const Weight& all = whole->second;
    if (role.kind != RoleKind::vector) return all.slice(role.part.begin, role.shape.front());
    return {{all.view.data + role.part.begin * sizeof(float), DType::f32, 1, role.shape.front()}, all.owner};
  }

  // Backends know stacks without gaps: a copy, which is let go once it is prepared.
  Weight part_of_each(const Role& role) {
    const bool turned = role.part.transposed;
    const size_t rows = role.shape[turned ? 2 : 1], cols = role.shape[turned ? 1 : 2], stack = role.shape[0];
    std::vector<uint64_t> shape = {stack, role.part.length, cols};
    if (role.part.flat) shape = {stack * role.part.length, cols};
    const size_t before = bytes_;
    const Weight all = load(role.part.tensor, shape, role.kind);
    if (bytes_ > before) bytes_ = before + (bytes_ - before) * rows / role.part.length;
    if (turned) return turned_parts(role, all);
    MatrixView view{all.view.data, all.view.dtype, stack * rows, all.view.cols};
    if (checking_) return {view, nullptr};
    auto copy = std::make_shared<const Buffer>(view.bytes());
    view.data = copy->data();
    for (size_t i = 0; i < stack; ++i) {
      const MatrixView from = all.view.slice(i * role.part.length + role.part.begin, rows);
      std::memcpy(copy->data() + i * from.bytes(), from.data, from.bytes());
    }
    return {view, copy, nullptr, all.scales};
  }

  // In a type whose values stand by themselves: those of a block would be torn apart.
  Weight turned_parts(const Role& role, const Weight& all) {
    const size_t stack = role.shape[0], rows = role.shape[1], cols = role.shape[2];
    const DType dtype = turned_type(all.view.dtype);
    const size_t value_bytes = row_bytes(dtype, 1);
    MatrixView view{all.view.data, dtype, stack * rows, cols};
    if (checking_) return {view, nullptr};
    auto copy = std::make_shared<const Buffer>(view.bytes());
    view.data = copy->data();
    std::vector<float> values(rows);
    std::vector<std::byte> row(rows * value_bytes);
    for (size_t i = 0; i < stack; ++i) {
      for (size_t c = 0; c < cols; ++c) {
        dequantize_row(all.view.dtype, all.view.row(i * role.part.length + role.part.begin + c), values);
        for (float& value : values) value *= all.scale(i);
        quantize_row(dtype, values, row.data());
        for (size_t r = 0; r < rows; ++r)
          std::memcpy(copy->data() + ((i * rows + r) * cols + c) * value_bytes, &row[r * value_bytes],
                      value_bytes);
      }
    }
    return {view, copy};
  }

  const TensorEntry& entry_of(const std::string& name, const std::vector<uint64_t>& shape) const {
    const TensorEntry* entry = file_->find(name);
    if (entry == nullptr) throw Error("{}: the tensor {} is missing", file_->path(), name);
    const std::vector<uint64_t>& own = entry->shape;
    // The matrices of a stack may follow each other in one.
    const bool flat =
        own.size() == 2 && shape.size() == 3 && own[0] == shape[0] * shape[1] && own[1] == shape[2];
    if (!flat && without_ones(own) != without_ones(shape)) {
      throw Error("{}: the tensor {} has the shape [{}], and [{}] was expected", file_->path(), name,
                  fmt::join(own, ", "), fmt::join(shape, ", "));
    }
    return *entry;
  }

  // A table of whole numbers, each of which is looked at: they are places of something.
  Weight load_numbers(const Role& role) {
    const TensorEntry& entry = entry_of(role.tensor, role.shape);
    if (entry.dtype != DType::i32)
      throw Error("{}: the tensor {} is {}, and i32 was expected", file_->path(), entry.name,
                  traits(entry.dtype).name);
    const Weight weight = load(entry, role.shape.front(), role.shape.back());
    for (size_t i = 0; !checking_ && i < weight.view.rows * weight.view.cols; ++i) {
      int32_t number = 0;
      std::memcpy(&number, weight.view.data + i * sizeof(number), sizeof(number));
      if (number < 0 || uint64_t(number) >= role.below)
        throw Error("{}: the tensor {} has {} in row {}, and there are {}", file_->path(), entry.name, number,
                    i / weight.view.cols, role.below);
    }
    return weight;
  }

  Weight load(const std::string& name, const std::vector<uint64_t>& shape, RoleKind kind) {
    const TensorEntry* entry = &entry_of(name, shape);
    if (entry->dtype == DType::i32) throw Error("{}: the tensor {} holds integers", file_->path(), name);
    size_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    const bool vector = kind == RoleKind::vector;
    const Weight weight = load(*entry, vector ? 1 : rows, vector ? rows * shape.back() : shape.back());
    if (kind == RoleKind::product) return as_product(name, weight, shape.size() == 3 ? shape[0] : 1);
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

  // In the type in which it is multiplied: `stacked` matrices.
  Weight as_product(const std::string& name, const Weight& weight, size_t stacked) const {
    const MatrixView& view = weight.view;
    const TensorEntry* entry = weight ? file_->find(name) : nullptr;
    if (entry != nullptr && file_->scale_of(*entry) != nullptr && !is_role(file_->scale_of(*entry)->name))
      return scaled(weight, *entry, stacked);
    const DType dtype = product_type(view.dtype);
    if (!weight || dtype == view.dtype) return weight;
    if (checking_) return {{view.data, dtype, view.rows, view.cols}, nullptr};
    auto copy = std::make_shared<const Buffer>(view.rows * row_bytes(dtype, view.cols));
    rewrite_for_products(view.dtype, {view.data, view.bytes()}, copy->bytes());
    return {{copy->data(), dtype, view.rows, view.cols}, copy};
  }

  // Whether a block asks for it by this name: it is no scale of a matrix.
  bool is_role(const std::string& tensor) const {
    if (role_names_.empty()) {
      for (const Role& role : all_roles(spec_)) role_names_.insert(role.tensor);
    }
    return role_names_.contains(tensor);
  }

  // With its scales beside it, or as f16 where the backend does not take them.
  Weight scaled(const Weight& weight, const TensorEntry& entry, size_t stacked) const {
    const MatrixView& view = weight.view;
    const std::vector<float> scales = file_->scales_of(entry);
    const size_t count = scales.size();
    const bool is_kept = takes_scales_ && (count == 1 || count == stacked);
    if (is_kept) return {view, weight.owner, nullptr, std::make_shared<const std::vector<float>>(scales)};
    if (checking_) return {{view.data, DType::f16, view.rows, view.cols}, nullptr};
    const size_t bytes = row_bytes(DType::f16, view.cols);
    auto copy = std::make_shared<const Buffer>(view.rows * bytes);
    std::vector<float> values(view.cols);
    for (size_t row = 0; row < view.rows; ++row) {
      dequantize_row(view.dtype, view.row(row), values);
      for (float& value : values) value *= scales[row / (view.rows / count)];
      quantize_row(DType::f16, values, copy->data() + row * bytes);
    }
    ++scaled_;
    return {{copy->data(), DType::f16, view.rows, view.cols}, copy};
  }

  Weight times(const Weight& weight, float factor) const {
    if (checking_) return weight;
    auto copy = std::make_shared<const Buffer>(weight.view.cols * sizeof(float));
    for (size_t i = 0; i < weight.view.cols; ++i) copy->as<float>()[i] = factor * weight.vector()[i];
    return {{copy->data(), DType::f32, 1, weight.view.cols}, copy};
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
  mutable size_t scaled_ = 0;                 // matrices of NVFP4 that became f16
  mutable std::set<std::string> role_names_;  // made when it is first asked for
  bool takes_scales_;
  bool checking_ = false;
};

}  // namespace

Weights load_weights(std::shared_ptr<const ModelFile> file, const ModelSpec& spec,
                     const BackendTraits& traits) {
  Loader loader(std::move(file), spec, traits);
  loader.check();
  return loader.load();
}

namespace {

WeightUse use_of(const Role& role) {
  switch (role.kind) {
    case RoleKind::product:
      return {WeightUse::product, role.stacked()};
    case RoleKind::table:
      return {WeightUse::table};
    case RoleKind::vector:
      break;
  }
  return {WeightUse::vector};
}

// visit(side, weight, use) for every weight, those of a block in the order of its roles, but visit(side, gate, up, use) for those
// that meet.
template <class Visit>
void for_each_weight(Weights& weights, const Visit& visit) {
  const auto norm = [&](Side side, Norm& one) {
    visit(side, one.weight, WeightUse{WeightUse::vector});
    visit(side, one.bias, WeightUse{WeightUse::vector});
  };
  for (BlockWeights& block : weights.blocks) {
    for (size_t i = 0; i < block.roles.size(); ++i) {
      const WeightUse use = use_of(block.roles[i]);
      if (block.roles[i].meets_next && block.weights[i] && block.weights[i + 1]) {
        visit(block.side, block.weights[i], block.weights[i + 1], use);
        ++i;
      } else {
        visit(block.side, block.weights[i], use);
      }
    }
    norm(block.side, block.norm);
    norm(block.side, block.post_norm);
  }
  norm(Side::device, weights.output_norm);
  visit(Side::device, weights.head, WeightUse{WeightUse::product});
  visit(Side::device, weights.head_bias, WeightUse{WeightUse::vector});
  visit(weights.first_side(), weights.positions, WeightUse{WeightUse::table});
  visit(weights.first_side(), weights.layer_table, WeightUse{WeightUse::table});
  visit(weights.first_side(), weights.layer_projection, WeightUse{WeightUse::product});
  norm(weights.first_side(), weights.layer_norm);
  norm(weights.first_side(), weights.embedding_norm);
  for (std::vector<Weight>* streams : {&weights.streams_in, &weights.streams_out}) {
    for (Weight& one : *streams) visit(Side::device, one, WeightUse{WeightUse::product});
  }
  visit(weights.last_side(), weights.connection, WeightUse{WeightUse::product});
  visit(weights.last_side(), weights.connection_scale, WeightUse{WeightUse::vector});
  visit(weights.last_side(), weights.connection_base, WeightUse{WeightUse::vector});
  visit(weights.first_side(), weights.join, WeightUse{WeightUse::product});
  norm(weights.first_side(), weights.token_norm);
  norm(weights.first_side(), weights.result_norm);
  visit(weights.first_side(), weights.embedding, WeightUse{WeightUse::table});
}

struct CountBytes {
  const Backend& backend;
  size_t (&bytes)[2];  // by side
  void operator()(Side side, const Weight& weight, const WeightUse& use) const {
    if (weight) bytes[size_t(side)] += backend.side(side).prepared_bytes(weight.view, use);
  }
  void operator()(Side side, const Weight& gate, const Weight& up, const WeightUse& use) const {
    (*this)(side, gate, use);
    (*this)(side, up, use);
  }
};

struct Prepare {
  Weights& weights;
  Backend& backend;
  const std::byte* table;  // the embedding, whose rows are still read where it is the head as well

  void operator()(Side side, Weight& weight, const WeightUse& use) const {
    if (!weight) return;
    const Weight original = weight;
    weight = backend.side(side).prepare(original, use);
    forget(original, weight, use);
  }
  void operator()(Side side, Weight& gate, Weight& up, const WeightUse& use) const {
    const Weight gate_before = gate, up_before = up;
    backend.side(side).prepare_gated(gate, up, use);
    forget(gate_before, gate, use);
    forget(up_before, up, use);
  }
  void forget(const Weight& before, Weight& now, const WeightUse& use) const {
    if (now.packed == nullptr) return;
    weights.packed_bytes += now.packed->size();
    if (now.packed->kind() == MemoryKind::device) weights.device_bytes += now.packed->size();
    const bool is_done = before.view.data != table || use.kind == WeightUse::table;
    if (before.owner == weights.file && is_done) forget_pages({before.view.data, before.view.bytes()});
    now.owner = nullptr;
  }
};

}  // namespace

void prepare_weights(Weights& weights, Backend& backend) {
  size_t bytes[2] = {0, 0};
  for_each_weight(weights, CountBytes{backend, bytes});
  for (const Side side : {Side::device, Side::host}) {
    if (bytes[size_t(side)] > 0) backend.side(side).expect_weights(bytes[size_t(side)]);
  }
  for_each_weight(weights, Prepare{weights, backend, weights.embedding.view.data});
}

}  // namespace quire
