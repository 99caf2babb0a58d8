#pragma once

#include <span>
#include <string_view>

namespace quire {

// What a folder calls a module of a model, and GGUF its tensors.
struct HfName {
  std::string_view hf;
  std::string_view gguf;
};

inline constexpr HfName kHfModelNames[] = {
    {"embed_tokens", "token_embd"},
    {"embed_tokens_per_layer", "per_layer_token_embd"},
    {"per_layer_model_projection", "per_layer_model_proj"},
    {"per_layer_projection_norm", "per_layer_proj_norm"},
    {"altup_projections", "altup_proj"},
    {"altup_unembed_projections", "altup_unembd_proj"},
    {"wte", "token_embd"},
    {"embed_in", "token_embd"},
    {"word_embeddings", "token_embd"},
    {"word_embeddings_layernorm", "token_embd_norm"},
    {"wpe", "position_embd"},
    {"norm", "output_norm"},
    {"norm_f", "output_norm"},
    {"embedding_norm", "token_embd_norm"},
    {"embeddings", "token_embd"},
    {"ln_f", "output_norm"},
    {"final_layernorm", "output_norm"},
    {"final_layer_norm", "output_norm"},
    {"lm_head", "output"},
    {"embed_out", "output"},
    {"embed", "token_embd"},  // of DeepSeek V4
    {"head", "output"},
};

// Tensors of a model that are not called weight or bias.
inline constexpr HfName kHfModelTensors[] = {
    {"hc_head_fn", "output_hc_fn.weight"},       {"hc_head.hc_fn", "output_hc_fn.weight"},
    {"hc_head_base", "output_hc_base.weight"},   {"hc_head.hc_base", "output_hc_base.weight"},
    {"hc_head_scale", "output_hc_scale.weight"}, {"hc_head.hc_scale", "output_hc_scale.weight"},
};

// Of a layer; "feed_forward." and "ffn." are read as "mlp.".
inline constexpr HfName kHfLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"attention_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.q_conv1d", "ssm_conv1d_q"},  // of Kimi delta attention
    {"self_attn.k_conv1d", "ssm_conv1d_k"},
    {"self_attn.v_conv1d", "ssm_conv1d_v"},
    {"self_attn.f_a_proj", "ssm_f_a"},
    {"self_attn.f_b_proj", "ssm_f_b"},
    {"self_attn.b_proj", "ssm_beta"},
    {"self_attn.g_a_proj", "ssm_g_a"},
    {"self_attn.g_b_proj", "ssm_g_b"},
    {"self_attn.o_norm", "ssm_norm"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.indexer.wq_b", "indexer.attn_q_b"},
    {"self_attn.indexer.wk", "indexer.attn_k"},
    {"self_attn.indexer.k_norm", "indexer.k_norm"},
    {"self_attn.indexer.weights_proj", "indexer.proj"},
    {"self_attn.indexer.q_proj", "indexer.q_proj"},  // of MiniMax M3
    {"self_attn.indexer.k_proj", "indexer.k_proj"},
    {"self_attn.indexer.q_norm", "indexer.q_norm"},
    {"self_attn.index_q_proj", "indexer.q_proj"},  // as published
    {"self_attn.index_k_proj", "indexer.k_proj"},
    {"self_attn.index_q_norm", "indexer.q_norm"},
    {"self_attn.index_k_norm", "indexer.k_norm"},
    {"self_attn.g_proj", "attn_gate"},
    {"self_attn.gate_proj", "attn_gate"},
    {"attn_norm", "attn_norm"},  // of DeepSeek V4
    {"attn.wq_a", "attn_q_a"},
    {"attn.q_norm", "attn_q_a_norm"},
    {"attn.wq_b", "attn_q_b"},
    {"attn.wkv", "attn_kv"},
    {"attn.kv_norm", "attn_kv_a_norm"},
    {"attn.norm", "attn_kv_a_norm"},  // as Transformers saves it
    {"attn.wo_a", "attn_output_a"},
    {"attn.wo_b", "attn_output_b"},
    {"attn.compressor.wkv", "attn_compressor_kv"},
    {"attn.compressor.wgate", "attn_compressor_gate"},
    {"attn.compressor.norm", "attn_compressor_norm"},
    {"attn.indexer.wq_b", "indexer.attn_q_b"},
    {"attn.indexer.weights_proj", "indexer.proj"},
    {"attn.indexer.compressor.wkv", "indexer_compressor_kv"},
    {"attn.indexer.compressor.wgate", "indexer_compressor_gate"},
    {"attn.indexer.compressor.norm", "indexer_compressor_norm"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"attention.query_key_value", "attn_qkv"},
    {"self_attention.query_key_value", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
    {"operator_norm", "attn_norm"},
    {"norm", "attn_norm"},
    {"pre_ff_layernorm", "ffn_norm"},
    {"ffn_norm", "ffn_norm"},
    {"self_attn.out_proj", "attn_output"},
    {"self_attn.q_layernorm", "attn_q_norm"},
    {"self_attn.k_layernorm", "attn_k_norm"},
    {"conv.in_proj", "shortconv.in_proj"},
    {"conv.out_proj", "shortconv.out_proj"},
    {"conv.conv", "shortconv.conv"},
    {"mlp.w1", "ffn_gate"},
    {"mlp.w3", "ffn_up"},
    {"mlp.w2", "ffn_down"},
    {"mixer.in_proj", "ssm_in"},  // of whatever a layer is; "mamba." is read so, too
    {"mixer.out_proj", "ssm_out"},
    {"mixer.conv1d", "ssm_conv1d"},
    {"mixer.norm", "ssm_norm"},
    {"mixer.x_proj", "ssm_x"},
    {"mixer.dt_proj", "ssm_dt"},
    {"mixer.dt_layernorm", "ssm_dt_norm"},
    {"mixer.b_layernorm", "ssm_b_norm"},
    {"mixer.c_layernorm", "ssm_c_norm"},
    {"mixer.q_proj", "attn_q"},
    {"mixer.k_proj", "attn_k"},
    {"mixer.v_proj", "attn_v"},
    {"mixer.o_proj", "attn_output"},
    {"mixer.up_proj", "ffn_up"},
    {"mixer.down_proj", "ffn_down"},
    {"mixer.gate", "ffn_gate_inp"},
    {"mixer.fc1_latent_proj", "ffn_latent_down"},
    {"mixer.fc2_latent_proj", "ffn_latent_up"},
    {"self_attn.dense", "attn_output"},
    {"attention.dense", "attn_output"},
    {"self_attention.dense", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.query_layernorm", "attn_q_norm"},
    {"self_attn.key_layernorm", "attn_k_norm"},
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"altup.correction_coefs", "altup_correct_coef"},
    {"altup.prediction_coefs", "altup_predict_coef"},
    {"altup.modality_router", "altup_router"},
    {"altup.router_norm", "altup_router_norm"},
    {"laurel.linear_left", "laurel_l"},
    {"laurel.linear_right", "laurel_r"},
    {"laurel.post_laurel_norm", "laurel_post_norm"},
    {"router.proj", "ffn_gate_inp"},
    {"ln_attn", "attn_norm_2"},  // of Falcon, whose first norm is the MLP's
    {"ln_mlp", "attn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.gate.wg", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp"},
    {"mlp.router.gate", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.router", "ffn_gate_inp"},
    {"block_sparse_moe.router.layer", "ffn_gate_inp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"norm_1", "attn_norm"},
    {"norm_2", "ffn_norm"},
    {"attn.Wqkv", "attn_qkv"},
    {"attn.out_proj", "attn_output"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

// Tensors of a layer that are not called weight or bias.
inline constexpr HfName kHfLayerTensors[] = {
    {"layer_scalar", "layer_output_scale.weight"},
    {"altup.correct_output_scale", "altup_correct_scale.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"attn.attn_sink", "attn_sinks.weight"},
    {"attn.compressor.ape", "attn_compressor_ape.weight"},
    {"attn.indexer.compressor.ape", "indexer_compressor_ape.weight"},
    {"hc_attn_fn", "hc_attn_fn.weight"},
    {"hc_attn_base", "hc_attn_base.weight"},
    {"hc_attn_scale", "hc_attn_scale.weight"},
    {"hc_ffn_fn", "hc_ffn_fn.weight"},
    {"hc_ffn_base", "hc_ffn_base.weight"},
    {"hc_ffn_scale", "hc_ffn_scale.weight"},
    {"mlp.gate.tid2eid", "ffn_gate_tid2eid.weight"},
};

// Of an MLP that stands beside the experts.
inline constexpr HfName kHfSharedNames[] = {
    {"gate_proj", "ffn_gate_shexp"}, {"up_proj", "ffn_up_shexp"}, {"down_proj", "ffn_down_shexp"},
    {"w1", "ffn_gate_shexp"},        {"w3", "ffn_up_shexp"},      {"w2", "ffn_down_shexp"},
};

inline constexpr HfName kHfExpertNames[] = {
    {"w1", "ffn_gate_exps"},        {"w2", "ffn_down_exps"},    {"w3", "ffn_up_exps"},
    {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"},
};

// What a layer that predicts further tokens has before and after what it has like others. Some families keep such layers apart.
inline constexpr std::string_view kHfPredictorPrefix = "mtp.";
inline constexpr HfName kHfPredictorNames[] = {
    {"eh_proj", "eh_proj"},
    {"enorm", "enorm"},
    {"hnorm", "hnorm"},
    {"shared_head.norm", "shared_head_norm"},
    {"fc", "eh_proj"},
    {"pre_fc_norm_embedding", "enorm"},
    {"pre_fc_norm_hidden", "hnorm"},
    {"norm", "shared_head_norm"},
};

// Not of the text, or not needed for it.
inline constexpr std::string_view kHfIgnoredPrefixes[] = {
    "vision_tower.",
    "multi_modal_projector.",
    "patch_merge_mlp.",
    "model.vision_tower.",
    "model.mtp.",
    "model.multi_modal_projector.",
    "visual.",
    "model.visual.",
    "vision_model.",
    "model.vision_adapter.",
    "model.vision_projection.",
    "model.audio_tower.",
    "model.vision_embedder.",
    "model.embed_vision.",
    "model.embed_audio.",
};
inline constexpr std::string_view kHfIgnoredSuffixes[] = {
    ".rotary_emb.inv_freq",   ".attn.bias",          ".attn.masked_bias",   ".attention.bias",
    ".attention.masked_bias", ".mlp.act_fn.alpha_p", ".mlp.act_fn.alpha_n", ".mlp.act_fn.beta",
    ".mlp.act_fn.eps",
};

}  // namespace quire
