"""The golden models of the families with recurrent layers: a table for make_goldens.py.

Models are as small as they can be and still have every term. Those of LONG_PROMPT tokens are one for each kind of recurrent layer.
"""
import torch
import transformers

from golden_families import rope, tiny

LONG_PROMPT = 300
# How fast states forget: over some tens of tokens. Mamba's steps are about a fifth.
RECURRENT_GAIN = {"A_log": -1.5, "conv1d": 1.5, "conv.conv": 1.5, "dt_bias": -1.0, "dt_proj.bias": -1.0, "mixer.D": 1.0, "mamba.D": 1.0}
EXPERT_GAIN = {**RECURRENT_GAIN, "router": 1.6, "feed_forward.gate.": 1.6, "mixer.gate.": 1.6, "correction_bias": 0.1, "expert_bias": 0.1}
MIXED = ["linear_attention", "full_attention", "linear_attention"]


def long(**changes):
    return tiny(max_position_embeddings=512, **changes)


def qwen(kind, **changes):
    """Gated delta net with three value heads for each key head."""
    values = long(head_dim=16, num_hidden_layers=3, layer_types=MIXED, linear_num_key_heads=2, linear_num_value_heads=6,
                  linear_key_head_dim=8, linear_value_head_dim=12, linear_conv_kernel_dim=4,
                  rope_parameters=rope(theta=1000000.0, partial_rotary_factor=0.25))
    return kind(**{**values, **changes})


def lfm2(kind, **changes):
    return kind(**{**long(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, norm_eps=1e-5,
                          rope_parameters=rope(theta=10000.0)), **changes})


def granite(**changes):
    values = long(num_hidden_layers=3, layer_types=MIXED, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8,
                  mamba_expand=2, mamba_d_conv=4, mamba_chunk_size=16, embedding_multiplier=6.0, attention_multiplier=0.25,
                  residual_multiplier=0.7, logits_scaling=2.0, num_local_experts=0, shared_intermediate_size=24)
    return transformers.GraniteMoeHybridConfig(**{**values, **changes})


def nemotron(**changes):
    values = long(layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"], mamba_num_heads=6,
                  mamba_head_dim=12, n_groups=2, ssm_state_size=16, conv_kernel=4, chunk_size=16, head_dim=16, layer_norm_epsilon=1e-5,
                  time_step_min=1e-9)
    values.pop("num_hidden_layers")
    return transformers.NemotronHConfig(**{**values, **changes})


def falcon_h1(**changes):
    """Attention and Mamba-2 beside each other, every multiplier another number."""
    values = long(head_dim=16, mamba_d_ssm=48, mamba_n_heads=6, mamba_n_groups=2, mamba_d_state=16, mamba_d_conv=4,
                  mamba_chunk_size=16, mamba_norm_before_gate=False, embedding_multiplier=1.7, lm_head_multiplier=0.6,
                  key_multiplier=0.8, attention_in_multiplier=1.2, attention_out_multiplier=0.7, ssm_in_multiplier=1.3,
                  ssm_out_multiplier=0.9, ssm_multipliers=[0.7, 1.1, 0.9, 1.2, 0.8], mlp_multipliers=[0.9, 1.3],
                  rope_parameters=rope(theta=1000000.0))
    return transformers.FalconH1Config(**{**values, **changes})


def without(values, *keys):
    return {key: value for key, value in values.items() if key not in keys}


def hybrids(Golden):
    t = transformers

    def golden(config, **how):
        return Golden(config, dtype=how.pop("dtype", torch.bfloat16), gain=how.pop("gain", RECURRENT_GAIN), **how)

    def with_experts(config, **how):
        return golden(config, gain={**EXPERT_GAIN, **how.pop("gain", {})}, margin=0.001, **how)

    return {
        "qwen3_5_long": golden(lambda: qwen(t.Qwen3_5TextConfig), prompt_tokens=LONG_PROMPT),
        "lfm2": golden(lambda: lfm2(t.Lfm2Config, block_auto_adjust_ff_dim=True, block_multiple_of=16, intermediate_size=84,
                                    block_ffn_dim_multiplier=0.9), prompt_tokens=LONG_PROMPT),
        "lfm2_released": golden(lambda: lfm2(t.Lfm2Config, conv_bias=True, block_auto_adjust_ff_dim=False),
                                released={"full_attn_idxs": [1], "layer_types": None, "rope_theta": 10000.0, "block_ff_dim": 48}),
        "lfm2_moe": with_experts(lambda: lfm2(t.Lfm2MoeConfig, num_dense_layers=1, num_experts=6, num_experts_per_tok=2,
                                              moe_intermediate_size=16)),
        "mamba2": golden(lambda: t.Mamba2Config(**without(tiny(num_heads=8, head_dim=8, state_size=16, n_groups=1, chunk_size=16),
                                                          "intermediate_size", "num_attention_heads", "num_key_value_heads",
                                                          "max_position_embeddings")),
                         prompt_tokens=LONG_PROMPT),
        "granite_hybrid": golden(lambda: granite(position_embedding_type="rope"),
                                 gain={**RECURRENT_GAIN, "embed_tokens": 0.4, "lm_head": 3.0}),
        "granite_hybrid_moe": with_experts(lambda: granite(num_local_experts=6, num_experts_per_tok=2, intermediate_size=16),
                                           gain={"embed_tokens": 0.4, "lm_head": 3.0}),
        "nemotron_h": golden(nemotron, prompt_tokens=LONG_PROMPT,
                             released={"hybrid_override_pattern": "M-*M-", "layers_block_type": None}),
        "nemotron_h_moe": with_experts(lambda: nemotron(
            layers_block_type=["linear_attention", "moe", "full_attention", "moe"], n_routed_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, routed_scaling_factor=1.5, moe_latent_size=16)),
        # In f32, because what the multipliers make of matrices is rounded to their type.
        "falcon_h1": golden(falcon_h1, dtype=torch.float32, prompt_tokens=LONG_PROMPT),
        "falcon_h1_norm": golden(lambda: falcon_h1(mamba_rms_norm=True, mamba_n_groups=1, tie_word_embeddings=True, embedding_multiplier=1.0,
                                                   lm_head_multiplier=1.0), dtype=torch.float32),
        "jamba": with_experts(lambda: t.JambaConfig(**long(
            num_hidden_layers=3, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=4,
            num_experts_per_tok=2, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=4, use_mamba_kernels=False))),
        "mamba": golden(lambda: t.MambaConfig(**without(tiny(state_size=8, time_step_rank=4, intermediate_size=64),
                                                        "num_attention_heads", "num_key_value_heads", "max_position_embeddings")),
                        prompt_tokens=LONG_PROMPT),
    }
