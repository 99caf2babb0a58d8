"""The golden models whose layers keep a latent row for each token: DeepSeek V2, V3 and V3.2, GLM 4.7 Flash and 5, Mistral 4; and DeepSeek V4,
whose layers keep one for several tokens."""
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


def compressed(**changes):
    """A layer with a window alone, one of rows of four tokens that an index chooses, one of rows of 128; experts by token in the first."""
    values = dict(vocab_size=32, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=3, num_attention_heads=4, head_dim=32,
                  partial_rotary_factor=0.25, q_lora_rank=24, o_groups=2, o_lora_rank=12, n_routed_experts=6, num_experts_per_tok=2,
                  index_n_heads=16, index_head_dim=12, index_topk=24, sliding_window=24, swiglu_limit=0.7, max_position_embeddings=512,
                  layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
                  mlp_layer_types=["hash_moe", "moe", "moe"], pad_token_id=0, bos_token_id=1, eos_token_id=2,
                  rope_parameters=dict(main=rope(theta=1000.0, partial_rotary_factor=0.25), compress=rope(
                      "yarn", 4000.0, attention_factor=1.0, partial_rotary_factor=0.25, **V4_YARN)))
    return transformers.DeepseekV4Config(**{**values, **changes})


V4_NAMES = [(".self_attn.compressor.indexer.q_b_proj.", ".attn.indexer.wq_b."), (".self_attn.compressor.indexer.scorer.weights_proj.", ".attn.indexer.weights_proj."),
            (".self_attn.compressor.indexer.", ".attn.indexer.compressor."), (".self_attn.", ".attn."), (".mlp.", ".ffn."), (".q_a_proj.", ".wq_a."),
            (".q_a_norm.", ".q_norm."), (".q_b_proj.", ".wq_b."), (".compressor.kv_norm.", ".compressor.norm."), (".kv_proj.", ".wkv."), (".gate_proj.weight", ".wgate.weight"),
            (".position_bias", ".ape"), (".o_a_proj.", ".wo_a."), (".o_b_proj.", ".wo_b."), (".sinks", ".attn_sink"), (".input_layernorm.", ".attn_norm."),
            (".post_attention_layernorm.", ".ffn_norm."), (".attn_hc.", ".hc_attn_"), (".ffn_hc.", ".hc_ffn_"), (".gate.e_score_correction_bias", ".gate.bias"),
            ("shared_experts.wgate.", "shared_experts.w1."), ("shared_experts.down_proj.", "shared_experts.w2."), ("shared_experts.up_proj.", "shared_experts.w3."),
            ("model.embed_tokens.", "embed."), ("lm_head.", "head."), ("model.hc_head.hc_", "hc_head_"), ("model.", "")]


def as_v4_names_it(name):
    for ours, theirs in V4_NAMES:
        name = name.replace(ours, theirs)
    return name


def pack_v4(state, seed):
    """As DeepSeek V4 was published: matrices in tiles of FP8 and experts in MXFP4, both with exponents for scales."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    stored, meant = {}, {}

    def power_of(largest, most):
        return torch.ceil(torch.log2(largest.clamp_min(1e-20) / most))

    def pack_expert(matrix, name):
        groups = matrix.reshape(matrix.shape[0], -1, 32)
        exponent = power_of(groups.abs().amax(-1), 6.0)
        codes = ((groups / torch.exp2(exponent)[..., None])[..., None] - values).abs().argmin(-1)
        flat = codes.reshape(matrix.shape)
        stored[name + ".weight"] = (flat[:, 0::2] | flat[:, 1::2] << 4).to(torch.uint8).view(torch.int8).contiguous()
        stored[name + ".scale"] = (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
        return (values[codes] * torch.exp2(exponent)[..., None]).reshape(matrix.shape)

    for name, tensor in state.items():
        plain = as_v4_names_it(name)
        if ".experts." in name and name.endswith("_proj"):
            meant[name] = torch.empty_like(tensor)
            for expert, matrix in enumerate(tensor):
                folder = plain.rsplit(".", 1)[0] + f".{expert}."
                parts = [("w2", matrix)] if name.endswith("down_proj") else [("w1", matrix.chunk(2)[0]), ("w3", matrix.chunk(2)[1])]
                meant[name][expert] = torch.cat([pack_expert(part, folder + which) for which, part in parts])
        elif plain.endswith((".wq_a.weight", ".wq_b.weight", ".wo_a.weight", ".wo_b.weight", ".w1.weight", ".w2.weight", ".w3.weight")) or plain.endswith(".attn.wkv.weight"):
            rows, columns = tensor.shape
            exponent = torch.empty(math.ceil(rows / FP8_TILE), math.ceil(columns / FP8_TILE))
            for i in range(exponent.shape[0]):
                for j in range(exponent.shape[1]):
                    tile = tensor[FP8_TILE * i:FP8_TILE * (i + 1), FP8_TILE * j:FP8_TILE * (j + 1)]
                    exponent[i, j] = power_of(tile.abs().max(), 448.0) - (i + j) % 2  # no two neighbours alike; the largest are cut
            spread = torch.exp2(exponent).repeat_interleave(FP8_TILE, 0)[:rows].repeat_interleave(FP8_TILE, 1)[:, :columns]
            stored[plain] = (tensor / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
            stored[plain.replace(".weight", ".scale")] = (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
            meant[name] = stored[plain].float() * spread
        elif not tensor.is_floating_point():
            stored[plain] = meant[name] = tensor.contiguous()
        else:
            stored[plain] = tensor.to(torch.float32 if plain.endswith(("_base", "_scale")) else torch.bfloat16).contiguous()
            meant[name] = stored[plain].float()
    return stored, meant


V4_YARN = dict(factor=8.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=64)
V4_RELEASED = {"layer_types": None, "mlp_layer_types": None, "compress_rates": None, "compress_ratios": [4, 128, 0], "num_hash_layers": 1, "rope_theta": 1000.0,
               "compress_rope_theta": 4000.0, "rope_scaling": {"type": "yarn", **V4_YARN}, "expert_dtype": "fp4",
               "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}}


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
        "deepseek_v4": golden(compressed, gain={**LARGE_BIAS, "sinks": 1.0, "position_bias": 1.0}, margin=0.001, row_tokens=4),
        "deepseek_v4_fp8": golden(lambda: compressed(
            hidden_size=160, num_hidden_layers=2, hc_mult=2, moe_intermediate_size=32, n_routed_experts=3, vocab_size=32,
            layer_types=["compressed_sparse_attention", "heavily_compressed_attention"], mlp_layer_types=["hash_moe", "moe"]),
            gain={**LARGE_BIAS, "sinks": 1.0, "position_bias": 1.0}, margin=0.001, row_tokens=4, prompt_tokens=140, pack=pack_v4, released=V4_RELEASED),
        "kimi_linear": golden(kimi_linear, gain={**LARGE_BIAS, "mlp.gate.": 2.5, "A_log": -1.5, "conv1d": 1.5, "dt_bias": -1.0}, margin=0.001),
        "mistral4": golden(mistral4, gain={"mlp.gate.": 2.5}, margin=0.0005, prompt_tokens=100),
    }
