"""The golden models whose layers keep a latent row for each token: DeepSeek V2, V3 and V3.2, GLM 4.7 Flash and 5, Mistral 4."""
import math

import torch
import transformers

PROMPT_TOKENS = 300
INDEXED_TOKENS = 120  # of which an index chooses 40: pages of 32 are neither all nor none of it
LARGE_BIAS = {"e_score_correction_bias": 0.2}
FP8_TILE = 128


def rope(kind="default", theta=10000.0, **values):
    return {"rope_type": kind, "rope_theta": theta, **values}


def yarn(growth, **values):
    """Whose pairs are of all three kinds within 300 tokens."""
    return rope("yarn", 1000.0, factor=8.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=64, mscale=growth,
                mscale_all_dim=growth, **values)


def latent(**changes):
    """Heads of 8 plain and 8 rotated values, of values of 12, and rows of 16 and 8."""
    values = dict(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                  max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2, q_lora_rank=24, kv_lora_rank=16,
                  qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, num_experts_per_tok=2,
                  moe_intermediate_size=16, n_shared_experts=1)
    return {**values, **changes}


def indexed(**changes):
    """An index of sixteen heads of 12, of which 8 rotate: with few heads rows would be equal, all of whose scores are 0."""
    return latent(index_topk=40, index_n_heads=16, index_head_dim=12, **changes)


def kimi_linear(**changes):
    """A layer of latent rows, which do not rotate, after two of Kimi delta attention."""
    values = latent(num_hidden_layers=3, first_k_dense_replace=1, q_lora_rank=None, num_local_experts=8, moe_renormalize=True, num_expert_group=2, topk_group=1,
                    routed_scaling_factor=2.5, linear_head_dim=8, linear_num_heads=4, linear_conv_kernel_dim=4,
                    layer_types=["linear_attention", "linear_attention", "full_attention"],
                    mlp_layer_types=["dense", "dense", "sparse"])
    for key in ("n_routed_experts", "first_k_dense_replace"):
        values.pop(key)
    return transformers.KimiLinearConfig(**{**values, **changes})


def mistral4():
    """The text of a model that sees images, as which alone Transformers has it."""
    text = latent(first_k_dense_replace=1, norm_topk_prob=True, n_group=4, topk_group=2, vocab_size=34,
                  rope_parameters=yarn(1.0, llama_4_scaling_beta=0.3))
    return transformers.Mistral3Config(
        text_config=dict(text, model_type="mistral4"),
        vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                           patch_size=4, image_size=16, head_dim=8),
        image_token_index=33)


def as_released(parameters):
    """The same at the top level, as published models have it."""
    scaling = {key: value for key, value in parameters.items() if key not in ("rope_type", "rope_theta")}
    return {"rope_theta": parameters["rope_theta"], "rope_scaling": {"type": parameters["rope_type"], **scaling}}


def pack_fp8(state, seed):
    """Every matrix of attention and MLPs in tiles of 128 x 128."""
    generator = torch.Generator().manual_seed(seed)
    stored, meant = {}, {}
    for name, tensor in state.items():
        if "_proj" not in name or tensor.dim() != 2:
            stored[name] = tensor.to(torch.bfloat16).contiguous()
            meant[name] = stored[name].float()
            continue
        rows, columns = tensor.shape
        grid = (math.ceil(rows / FP8_TILE), math.ceil(columns / FP8_TILE))
        scales = (0.5 + torch.rand(grid, generator=generator)) * tensor.abs().max() / 224
        spread = scales.repeat_interleave(FP8_TILE, 0)[:rows].repeat_interleave(FP8_TILE, 1)[:, :columns]
        stored[name] = (tensor / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scales
        meant[name] = stored[name].float() * spread
    return stored, meant


def latents(Golden):
    def golden(config, **how):
        return Golden(config, dtype=torch.bfloat16, prompt_tokens=how.pop("prompt_tokens", PROMPT_TOKENS), **how)

    t = transformers
    v2_rope, v3_rope = yarn(0.707), yarn(1.0)
    groups = dict(n_group=4, topk_group=2)
    return {
        "deepseek_v2": golden(lambda: t.DeepseekV2Config(**latent(
            q_lora_rank=None, first_k_dense_replace=1, n_shared_experts=2, topk_method="greedy", n_group=1, topk_group=1,
            routed_scaling_factor=1.0, rope_parameters=v2_rope)), released=as_released(v2_rope), margin=0.001),
        "deepseek_v2_groups": golden(lambda: t.DeepseekV2Config(**latent(
            first_k_dense_replace=0, topk_method="group_limited_greedy", routed_scaling_factor=4.0,
            rope_parameters=rope(), **groups)), margin=0.001, prompt_tokens=100),
        "deepseek_v3": golden(lambda: t.DeepseekV3Config(**latent(
            first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, attention_bias=True, rope_parameters=v3_rope,
            **groups)), gain=LARGE_BIAS, margin=0.001),
        "deepseek_v3_fp8": golden(lambda: t.DeepseekV3Config(**latent(
            hidden_size=160, first_k_dense_replace=2, kv_lora_rank=32, qk_nope_head_dim=24, v_head_dim=20,
            rope_parameters=v3_rope, **groups)),
            released={**as_released(v3_rope), "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
                                                                      "quant_method": "fp8", "weight_block_size": [128, 128]}},
            pack=pack_fp8, prompt_tokens=100),
        "glm4_moe_lite": golden(lambda: t.Glm4MoeLiteConfig(**latent(
            vocab_size=128, qk_nope_head_dim=12, v_head_dim=16, num_attention_heads=3, num_key_value_heads=3, n_group=1, topk_group=1,
            rms_norm_eps=1e-2, routed_scaling_factor=1.8, norm_topk_prob=True, rope_parameters=rope(theta=1000.0))), gain=LARGE_BIAS, margin=0.001, prompt_tokens=100),
        "deepseek_v32": golden(lambda: t.DeepseekV32Config(**indexed(
            first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, rope_parameters=v3_rope, **groups)),
            gain=LARGE_BIAS, margin=0.001, prompt_tokens=INDEXED_TOKENS),
        "glm_moe_dsa": golden(lambda: t.GlmMoeDsaConfig(**indexed(
            vocab_size=128, rms_norm_eps=1e-2, n_group=1, topk_group=1, mlp_layer_types=["dense", "sparse"], routed_scaling_factor=1.8, norm_topk_prob=True,
            rope_parameters=rope(theta=1000.0))), gain=LARGE_BIAS, margin=0.001, prompt_tokens=INDEXED_TOKENS),
        "glm_moe_dsa_shared": golden(lambda: t.GlmMoeDsaConfig(**indexed(
            num_hidden_layers=5, vocab_size=64, n_group=1, topk_group=1, mlp_layer_types=["dense", "dense", "sparse", "dense", "dense"],
            indexer_types=["full", "shared", "full", "shared", "shared"], rope_parameters=rope(theta=1000.0))),
            gain=LARGE_BIAS, margin=0.001, prompt_tokens=INDEXED_TOKENS),
        "kimi_linear": golden(kimi_linear, gain={**LARGE_BIAS, "mlp.gate.": 2.5, "A_log": -1.5, "conv1d": 1.5, "dt_bias": -1.0}, margin=0.001),
        "mistral4": golden(mistral4, gain={"mlp.gate.": 2.5}, margin=0.0005, prompt_tokens=100),
    }
