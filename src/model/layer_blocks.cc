#include "model/layer_blocks.h"

#include <cmath>
#include <set>

#include <fmt/format.h>

#include "base/check.h"

namespace quire {
namespace {

BlockPtr make_block(const BlockPtr& made, uint32_t) {
  return made;
}

struct AbsentBlock : Block {
  std::vector<Role> roles() const override { return {}; }
  std::vector<size_t> scratch() const override { return {}; }
  void forward(const BlockStep&) const override { CHECK(false); }
};

}  // namespace

BlockPtr make_block(const AbsentSpec&, uint32_t) {
  return std::make_shared<AbsentBlock>();
}

BlockPtr block_of(const MixerSpec& spec, uint32_t dim) {
  return std::visit([&](const auto& mixer) { return make_block(mixer, dim); }, spec);
}

BlockPtr block_of(const MlpSpec& spec, uint32_t dim) {
  return std::visit([&](const auto& mlp) { return make_block(mlp, dim); }, spec);
}

std::vector<Role> LayerBlock::roles() const {
  std::vector<Role> roles = block->roles();
  for (Role& role : roles) {
    for (std::string* name : {&role.tensor, &role.part.unless, &role.part.tensor}) {
      if (!name->empty()) *name = fmt::format("blk.{}.{}", file_layer, *name);
    }
  }
  return roles;
}

std::vector<LayerBlock> layer_blocks(const ModelSpec& spec) {
  std::vector<LayerBlock> blocks;
  for (uint32_t l = 0; l < spec.layers.size(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    const LayerNorms& norms = layer.norms;
    const uint32_t n = spec.first_layer + l;
    const auto add = [&](BlockPtr block, BlockInput input, const std::string& pre_norm,
                         const std::string& post_norm, Side side) {
      const bool has_norm = norms.pre && input != BlockInput::shared && !pre_norm.empty();
      blocks.push_back({.layer = l,
                        .file_layer = n,
                        .block = std::move(block),
                        .norm = norms.norm,
                        .after = {norms.norm.kind, norms.post_epsilon.value_or(norms.norm.epsilon)},
                        .input = input,
                        .pre_norm = has_norm ? fmt::format("blk.{}.{}", n, pre_norm) : "",
                        .post_norm = post_norm.empty() ? "" : fmt::format("blk.{}.{}", n, post_norm),
                        .residual_scale = layer.residual_scale,
                        .side = side});
    };
    const auto connect = [&](const char* tensor, const std::string& norm_tensor, Side side) {
      if (!spec.hyper) return;
      CHECK(norms.pre && !norms.post && layer.residual_scale == 1);
      add(make_connection_block(*spec.hyper, spec.dim, tensor, norm_tensor, norms.norm), BlockInput::stream,
          "", "", side);
      blocks.back().residual_scale = -1;  // what it reads it takes away
    };
    const auto input_of = [&](BlockInput input) { return spec.hyper ? BlockInput::shared : input; };
    if (layer.streams)
      add(make_predict_block(*layer.streams, spec.dim), BlockInput::stream, "", "", layer.sides.mixer);
    if (!std::holds_alternative<AbsentSpec>(layer.mixer)) {
      connect("hc_attn", norms.mixer_tensor, layer.sides.mixer);
      add(block_of(layer.mixer, spec.dim), input_of(BlockInput::stream), norms.mixer_tensor,
          norms.post ? "post_attention_norm" : "", layer.sides.mixer);
    }
    if (!std::holds_alternative<AbsentSpec>(layer.mixer)) blocks.back().residual_scale *= layer.mixer_scale;
    CHECK(!layer.beside || !norms.post);
    if (layer.beside) {
      const size_t first = blocks.back().block->cached().size();
      add(make_block(*layer.beside, spec.dim), BlockInput::shared, "", "", layer.sides.mixer);
      blocks.back().first_stream = first;
    }
    if (layer.low_rank) {
      add(make_block(*layer.low_rank, spec.dim), BlockInput::shared, "", "", layer.sides.mixer);
      blocks.back().stream_scale = std::sqrt(0.5f);
    }
    if (!std::holds_alternative<AbsentSpec>(layer.mlp)) {
      connect("hc_ffn", norms.mlp_tensor, layer.sides.mlp);
      add(block_of(layer.mlp, spec.dim), input_of(norms.mlp_input), norms.mlp_tensor,
          norms.post ? "post_ffw_norm" : "", layer.sides.mlp);
    }
    CHECK(!layer.shared || !norms.post);
    if (!std::holds_alternative<AbsentSpec>(layer.mlp)) blocks.back().residual_scale *= layer.mlp_scale;
    if (layer.shared) {
      add(make_block(*layer.shared, spec.dim), BlockInput::shared, "", "", layer.sides.mlp);
      blocks.back().residual_scale *= layer.mlp_scale;
    }
    if (layer.input) {
      add(make_block(*layer.input, spec.dim), BlockInput::stream, "", "post_norm", layer.sides.mlp);
      blocks.back().residual_scale = 1;
    }
    if (layer.streams)
      add(make_correct_block(*layer.streams, spec.dim), BlockInput::stream, "", "", layer.sides.mlp);
    if (!blocks.empty() && blocks.back().layer == l) blocks.back().stream_scale = layer.output_scale;
  }
  return blocks;
}

namespace {

std::array<Role, 3> layer_input_roles(const ModelSpec& spec) {
  const uint64_t width = spec.layer_inputs.width, all = width * spec.layers.size();
  const Presence presence = width > 0 ? Presence::required : Presence::absent;
  return {Role{.name = "embedding of layers",
               .tensor = std::string(kLayerTable),
               .shape = {spec.layer_inputs.vocab, all},
               .kind = RoleKind::table,
               .presence = presence},
          Role{.name = "inputs of layers",
               .tensor = "per_layer_model_proj.weight",
               .shape = {all, spec.dim},
               .presence = presence},
          vector_role("norm of layers", "per_layer_proj_norm.weight", width, presence)};
}

std::array<Role, 2> stream_roles(const ModelSpec& spec) {
  const uint64_t others = spec.streams - 1, dim = spec.dim;
  const auto stack = [&](const char* name, const char* tensor) -> Role {
    return {.name = name,
            .tensor = tensor,
            .shape = {others, dim, dim},
            .presence = others > 0 ? Presence::required : Presence::absent,
            .used = uint32_t(others)};
  };
  return {stack("streams in", "altup_proj.weight"), stack("streams out", "altup_unembd_proj.weight")};
}

std::array<Role, 3> connection_roles(const ModelSpec& spec) {
  const Presence presence = spec.hyper ? Presence::required : Presence::absent;
  const uint64_t count = spec.hyper ? spec.hyper->count : 0;
  return {Role{.name = "connection",
               .tensor = "output_hc_fn.weight",
               .shape = {count, count * spec.dim},
               .presence = presence},
          vector_role("connection scale", "output_hc_scale.weight", 1, presence),
          vector_role("connection base", "output_hc_base.weight", count, presence)};
}

std::array<Role, 3> joining_roles(const ModelSpec& spec) {
  const Presence presence = spec.joins ? Presence::required : Presence::absent;
  const auto tensor = [&](const char* name) {
    return fmt::format("blk.{}.nextn.{}.weight", spec.first_layer, name);
  };
  return {Role{.name = "join",
               .tensor = tensor("eh_proj"),
               .shape = {spec.dim, 2 * uint64_t(spec.dim)},
               .presence = presence},
          vector_role("norm of tokens", tensor("enorm"), spec.dim, presence),
          vector_role("norm of results", tensor("hnorm"), spec.dim, presence)};
}

}  // namespace

ModelRoles model_roles(const ModelSpec& spec) {
  const uint64_t vocab = spec.vocab, dim = spec.dim;
  ModelRoles roles{
      .embedding = {.name = "embedding",
                    .tensor = "token_embd.weight",
                    .shape = {vocab, dim},
                    .kind = RoleKind::table,
                    .presence = spec.joins ? Presence::absent : Presence::required},
      .positions = {.name = "positions",
                    .tensor = "position_embd.weight",
                    .shape = {spec.context, dim},
                    .kind = RoleKind::table,
                    .presence = spec.learned_positions ? Presence::required : Presence::absent},
      .embedding_norm = norm_roles(
          "embedding norm", kEmbeddingNorm, dim,
          spec.embedding_norm && spec.embedding_norm->has_weights ? Presence::required : Presence::absent),
      .layer_inputs = layer_input_roles(spec),
      .streams = stream_roles(spec),
      .connection = connection_roles(spec),
      .joining = joining_roles(spec),
      .output_norm = norm_roles("output norm", spec.output_norm_tensor, dim),
      .head = {.name = "head",
               .tensor = "output.weight",
               .shape = {vocab, dim},
               .presence = spec.joins ? Presence::absent : Presence::optional},  // else it is the embedding
      .head_bias =
          vector_role("head bias", "output.bias", vocab, spec.joins ? Presence::absent : Presence::optional)};
  roles.head = divided(std::move(roles.head), rows_of(vocab, spec.place));
  roles.head_bias = divided(std::move(roles.head_bias), rows_of(vocab, spec.place));
  return roles;
}

std::vector<Role> all_roles(const ModelSpec& spec) {
  const ModelRoles model = model_roles(spec);
  std::vector<Role> all = {model.embedding,      model.positions, model.output_norm[0],
                           model.output_norm[1], model.head,      model.head_bias};
  all.insert(all.end(), model.embedding_norm.begin(), model.embedding_norm.end());
  all.insert(all.end(), model.layer_inputs.begin(), model.layer_inputs.end());
  all.insert(all.end(), model.streams.begin(), model.streams.end());
  all.insert(all.end(), model.connection.begin(), model.connection.end());
  all.insert(all.end(), model.joining.begin(), model.joining.end());
  for (const LayerBlock& block : layer_blocks(spec)) {
    const auto add_norm = [&](const char* name, const std::string& tensor) {
      const std::array<Role, 2> roles = norm_roles(name, tensor, spec.dim);
      if (!tensor.empty()) all.insert(all.end(), roles.begin(), roles.end());
    };
    const std::vector<Role> roles = block.roles();
    add_norm("norm", block.pre_norm);
    all.insert(all.end(), roles.begin(), roles.end());
    add_norm("post norm", block.post_norm);
  }
  std::set<std::string> seen;  // two blocks may share a tensor
  std::erase_if(all, [&](const Role& role) {
    return role.presence == Presence::absent || !seen.insert(role.tensor).second;
  });
  return all;
}

bool is_part(const Role& role, const ModelFile& file) {
  const Role::Part& part = role.part;
  return !part.tensor.empty() && file.find(part.unless) == nullptr && file.find(part.tensor) != nullptr;
}

}  // namespace quire
