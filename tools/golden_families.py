"""The golden models of the families that are made of routing, layer shapes and block orders: a table for make_goldens.py.

Models are as small as they can be and still have every term: two or three layers of width 32, a vocabulary of 64.
"""
import torch
import transformers


def tiny(**changes):
    values = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return {**values, **changes}


def rope(kind="default", theta=10000.0, **values):
    return {"rope_type": kind, "rope_theta": theta, **values}


# The query grows with every 16 positions, so that 40 tokens see three sizes of it.
MINISTRAL_ROPE = rope("yarn", 10000.0, factor=4.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=16, mscale=1.0,
                      mscale_all_dim=1.0, llama_4_scaling_beta=0.4)
SIGMOID_EXPERTS = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1,
                       n_shared_experts=1, norm_topk_prob=True)
MROPE = rope(theta=10000.0, mrope_section=[1, 1, 2])
GEMMA_GAIN = {"embed_tokens": 0.4, "post_": 1.0, "q_proj": 2.5, "k_proj": 2.5}
# A bias that moves choices among probabilities of eight, and among sigmoids.
SMALL_BIAS = {"e_score_correction_bias": 0.05}
LARGE_BIAS = {"e_score_correction_bias": 0.2}


def vision(**values):
    return dict(hidden_size=16, num_heads=2, patch_size=4, in_channels=3, spatial_merge_size=2, temporal_patch_size=2, **values)


def qwen2_vl():
    return transformers.Qwen2VLConfig(
        text_config=tiny(rope_parameters=MROPE),
        vision_config=dict(vision(depth=1, embed_dim=16, mlp_ratio=2), hidden_size=32),
        image_token_id=60, video_token_id=61, vision_start_token_id=62, vision_end_token_id=63)


def qwen3_vl(config_class, **changes):
    return config_class(
        text_config=tiny(head_dim=8, rope_parameters=dict(MROPE, mrope_interleaved=True), **changes),
        vision_config=vision(depth=1, intermediate_size=32, out_hidden_size=32, num_position_embeddings=16,
                             deepstack_visual_indexes=[0]),
        image_token_id=60, video_token_id=61, vision_start_token_id=62, vision_end_token_id=63)


def mistral3():
    return transformers.Mistral3Config(
        text_config=dict(tiny(head_dim=8, rope_parameters=MINISTRAL_ROPE), model_type="ministral3"),
        vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                           patch_size=4, image_size=16, head_dim=8),
        image_token_index=60)


def minimax_m3(**changes):
    """Of ten blocks of 32 tokens a head takes its own and three others; gates and ups reach their limit."""
    values = tiny(intermediate_size=16, dense_intermediate_size=48, shared_intermediate_size=16, num_hidden_layers=3, head_dim=16, num_local_experts=6,
                  num_experts_per_tok=2, rope_parameters=rope(theta=1000.0, partial_rotary_factor=0.5), rotary_dim=8, index_n_heads=2,
                  index_head_dim=12, index_block_size=32, index_topk_blocks=4, index_local_blocks=1, swiglu_limit=1.5, swiglu_alpha=1.3,
                  layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse", "sparse"],
                  routed_scaling_factor=1.5, max_position_embeddings=512)
    return transformers.MiniMaxM3VLTextConfig(**{**values, **changes})


# Keys as the published config has them.
M3_RELEASED = {"rope_theta": 1000.0, "rotary_dim": 8, "partial_rotary_factor": 0.5, "hidden_act": "swigluoai", "layer_types": None,
               "moe_layer_freq": [0, 1], "n_shared_experts": 1, "index_n_heads": None, "index_head_dim": None, "index_block_size": None,
               "index_topk_blocks": None, "index_local_blocks": None, "mlp_layer_types": None,
               "sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_index_dim": 12, "sparse_block_size": 32, "sparse_topk_blocks": 3,
                                           "sparse_local_block": 2, "sparse_attention_freq": [0, 1]}}


def as_m3_was_published(state, seed):
    """Experts one by one, gates and ups apart, and other names of experts and indexes."""
    stored, meant = {}, {}
    for name, tensor in state.items():
        tensor = tensor.to(torch.bfloat16)
        meant[name] = tensor.float()
        theirs = name.replace(".self_attn.indexer.", ".self_attn.index_")
        for part in ("experts.", "shared_experts.", "gate."):
            theirs = theirs.replace(f".mlp.{part}", f".block_sparse_moe.{part}")
        theirs = theirs.replace(".block_sparse_moe.gate.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias")
        if theirs.endswith("experts.gate_up_proj"):
            for i, both in enumerate(tensor):
                gate, up = both.chunk(2)
                stored[theirs.replace("gate_up_proj", f"{i}.w1.weight")], stored[theirs.replace("gate_up_proj", f"{i}.w3.weight")] = gate.contiguous(), up.contiguous()
        elif theirs.endswith("experts.down_proj"):
            for i, down in enumerate(tensor):
                stored[theirs.replace("down_proj", f"{i}.w2.weight")] = down.contiguous()
        elif theirs.endswith("gate_up_proj.weight"):
            gate, up = tensor.chunk(2)
            stored[theirs.replace("gate_up_proj", "gate_proj")], stored[theirs.replace("gate_up_proj", "up_proj")] = gate.contiguous(), up.contiguous()
        else:
            stored[theirs] = tensor.contiguous()
    return stored, meant


def gemma4(**changes):
    """Heads of 8 with a window and of 16 without, of which a quarter rotates."""
    values = tiny(head_dim=8, global_head_dim=16, sliding_window=16, max_position_embeddings=512, final_logit_softcapping=20.0)
    return {**values, **changes}


GEMMA4_INPUTS = dict(num_hidden_layers=5, hidden_size_per_layer_input=8, vocab_size_per_layer_input=64, num_kv_shared_layers=2,
                     use_double_wide_mlp=True, layer_types=["sliding_attention", "sliding_attention", "full_attention",
                                                            "sliding_attention", "full_attention"])
GEMMA4_EXPERTS = dict(num_hidden_layers=3, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
                      enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16,
                      layer_types=["sliding_attention", "full_attention", "full_attention"])
GEMMA4_GAIN = {"embed_tokens.": 0.4, "router.proj": 6.0, "q_proj": 2.5, "k_proj": 2.5}


# One layer of each kind with rows of its own, one of each that reads others'.
GEMMA3N = dict(num_hidden_layers=5, intermediate_size=[48, 40, 48, 32, 48], hidden_size_per_layer_input=8,
               vocab_size_per_layer_input=64, num_kv_shared_layers=2, altup_num_inputs=3, laurel_rank=6,
               activation_sparsity_pattern=[0.7, 0.5, 0.0, 0.0, 0.8],
               rope_parameters={"sliding_attention": rope(theta=1000.0), "full_attention": rope(theta=100000.0)},
               layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"])
GEMMA3N_GAIN = {"embed_tokens.": 0.4, "q_proj": 2.5, "k_proj": 2.5, "modality_router": 4.0, "correct_output_scale": 1.0}


def gemma3n(**changes):
    return transformers.Gemma3nTextConfig(**tiny(head_dim=8, sliding_window=16, max_position_embeddings=512,
                                                 final_logit_softcapping=20.0, **{**GEMMA3N, **changes}))


# Layers with a window have more heads, and rotate all of them; the others rotate half, by YaRN.
LAGUNA = dict(head_dim=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
              moe_routed_scaling_factor=2.5, max_position_embeddings=512)
LAGUNA_WINDOWS = dict(num_hidden_layers=4, vocab_size=32, mlp_layer_types=["dense", "sparse", "dense", "dense"], num_attention_heads_per_layer=[4, 6, 6, 4], sliding_window=16,
                      layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                      rope_parameters={"full_attention": rope("yarn", 10000.0, factor=8.0, beta_fast=4.0, beta_slow=1.0,
                                                              original_max_position_embeddings=64, partial_rotary_factor=0.5),
                                       "sliding_attention": rope(theta=1000.0, partial_rotary_factor=1.0)})
MUSE_GAIN = {"self_attn.gate_proj": 2.5}


def muse_glimmer():
    """The text of a model that sees images, as which alone Transformers has it."""
    return transformers.MuseGlimmerConfig(
        text_config=tiny(head_dim=16, num_hidden_layers=5, sliding_window=16, max_position_embeddings=512, rms_norm_eps=1e-3,
                         output_multiplier=0.4, final_logit_softcapping=5.0, rope_parameters=rope(theta=1000.0)),
        vision_config=dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, patch_size=4, pos_emb_height=4,
                           pos_emb_width=4, max_position_embeddings=16),
        image_token_id=60, video_token_id=61, out_hidden_size=64, projector_hidden_size=16)


def families(Golden):
    def golden(config, **how):
        return Golden(config, dtype=how.pop("dtype", torch.bfloat16), **how)

    t = transformers
    return {
        "ministral3": golden(lambda: t.Ministral3Config(**tiny(head_dim=8, rope_parameters=MINISTRAL_ROPE))),
        "mistral3": golden(mistral3),
        "glm4_moe": golden(lambda: t.Glm4MoeConfig(**tiny(num_hidden_layers=3, use_qk_norm=True, attention_bias=True,
                                                         n_group=4, topk_group=2, routed_scaling_factor=1.5,
                                                         num_nextn_predict_layers=0,
                                                         rope_parameters=rope(partial_rotary_factor=0.5), **SIGMOID_EXPERTS)),
                           gain=LARGE_BIAS),
        "glm4_moe_released": golden(lambda: t.Glm4MoeConfig(**tiny(num_nextn_predict_layers=1, n_group=1, topk_group=1, head_dim=8,
                                                                   rope_parameters=rope(theta=1000000.0, partial_rotary_factor=0.5),
                                                                   **SIGMOID_EXPERTS)),
                                    released={"rope_theta": 1000000.0, "rope_scaling": None, "partial_rotary_factor": 0.5,
                                              "num_nextn_predict_layers": 1},
                                    gain=LARGE_BIAS),
        "minimax_m2": golden(lambda: t.MiniMaxM2Config(**tiny(intermediate_size=16, num_local_experts=8, num_experts_per_tok=2,
                                                              head_dim=8, rope_parameters=rope(partial_rotary_factor=0.5))),
                             released={"rope_theta": 10000.0, "rotary_dim": 4, "partial_rotary_factor": 0.5, "use_qk_norm": True, "qk_norm_type": "per_layer",
                                       "scoring_func": "sigmoid", "use_routing_bias": True, "num_mtp_modules": 0},
                             gain=LARGE_BIAS),
        "minimax_m3": golden(minimax_m3, gain={**LARGE_BIAS, "mlp.gate.": 2.5}, margin=0.0005, prompt_tokens=300),
        "minimax_m3_released": golden(lambda: minimax_m3(num_hidden_layers=2, vocab_size=32, index_local_blocks=2, index_topk_blocks=3,
                                                         layer_types=["full_attention", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse"]),
                                      released=M3_RELEASED, gain={**LARGE_BIAS, "mlp.gate.": 2.5}, margin=0.0005, prompt_tokens=200, nested="minimax_m3_vl", pack=as_m3_was_published),
        "qwen2_vl": golden(qwen2_vl),
        "qwen3_vl": golden(lambda: qwen3_vl(t.Qwen3VLConfig)),
        "qwen3_vl_moe": golden(lambda: qwen3_vl(t.Qwen3VLMoeConfig, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                                                norm_topk_prob=True)),
        "cohere": golden(lambda: t.CohereConfig(**tiny(num_hidden_layers=3, use_qk_norm=True, logit_scale=0.5,
                                                       tie_word_embeddings=True)),
                         gain={"embed_tokens": 1.0, "down_proj": 2.0, "o_proj": 2.0}),
        "cohere2": golden(lambda: t.Cohere2Config(**tiny(num_hidden_layers=4, sliding_window=16, logit_scale=0.5,
                                                         tie_word_embeddings=True)), gain={"embed_tokens": 1.4}),
        "olmo3": golden(lambda: t.Olmo3Config(**tiny(
            num_hidden_layers=4, sliding_window=16,
            rope_parameters={"sliding_attention": rope(theta=500.0),
                             "full_attention": rope("yarn", 500.0, factor=4.0, original_max_position_embeddings=32,
                                                    attention_factor=1.2, beta_fast=8.0, beta_slow=1.0)}))),
        "exaone4": golden(lambda: t.Exaone4Config(**tiny(num_hidden_layers=4, sliding_window=16, sliding_window_pattern=4))),
        "exaone4_full": golden(lambda: t.Exaone4Config(**tiny(
            sliding_window=None, layer_types=["full_attention"] * 2, tie_word_embeddings=True))),
        "seed_oss": golden(lambda: t.SeedOssConfig(**tiny(head_dim=16))),
        "ernie4_5": golden(lambda: t.Ernie4_5Config(**tiny(head_dim=16, use_bias=True))),
        "ernie4_5_moe": golden(lambda: t.Ernie4_5_MoeConfig(**tiny(
            num_hidden_layers=3, moe_num_experts=6, moe_k=2, moe_intermediate_size=16, moe_num_shared_experts=2,
            moe_layer_start_index=1)), gain=SMALL_BIAS, margin=0.001),
        "apertus": golden(lambda: t.ApertusConfig(**tiny(rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0,
                                                                              high_freq_factor=4.0,
                                                                              original_max_position_embeddings=64)))),
        "gemma": golden(lambda: t.GemmaConfig(**tiny(head_dim=16)), gain=GEMMA_GAIN),
        "gemma3n": golden(gemma3n, gain=GEMMA3N_GAIN, prompt_tokens=300),
        "gemma3n_nested": golden(lambda: gemma3n(num_hidden_layers=3, intermediate_size=48, layer_types=["sliding_attention"] * 2 + ["full_attention"],
                                                 num_kv_shared_layers=0, altup_num_inputs=4, activation_sparsity_pattern=None,
                                                 vocab_size_per_layer_input=64),
                                 gain=GEMMA3N_GAIN, nested="gemma3n"),
        "gemma4": golden(lambda: t.Gemma4TextConfig(**gemma4(**GEMMA4_INPUTS)), gain=GEMMA4_GAIN, prompt_tokens=300),
        "gemma4_moe": golden(lambda: t.Gemma4TextConfig(**gemma4(**GEMMA4_EXPERTS)), gain=GEMMA4_GAIN, margin=0.001, nested="gemma4"),
        "gemma4_unified": golden(lambda: t.Gemma4UnifiedTextConfig(**gemma4(
            num_hidden_layers=3, attention_k_eq_v=True, num_global_key_value_heads=1,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"])), gain=GEMMA4_GAIN, prompt_tokens=100,
            nested="gemma4_unified"),
        "glm4": golden(lambda: t.Glm4Config(**tiny(head_dim=16, rope_parameters=rope(partial_rotary_factor=0.5)))),
        "glm": golden(lambda: t.GlmConfig(**tiny(head_dim=16, rope_parameters=rope(partial_rotary_factor=0.5)))),
        "qwen2_moe": golden(lambda: t.Qwen2MoeConfig(**tiny(
            num_hidden_layers=3, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
            mlp_only_layers=[1]))),
        "olmoe": golden(lambda: t.OlmoeConfig(**tiny(num_experts=6, num_experts_per_tok=2, intermediate_size=16))),
        "granitemoe": golden(lambda: t.GraniteMoeConfig(**tiny(
            num_local_experts=6, num_experts_per_tok=2, intermediate_size=16, embedding_multiplier=6.0, attention_multiplier=0.25,
            residual_multiplier=0.7, logits_scaling=2.0)), gain={"embed_tokens": 0.4, "lm_head": 3.0}),
        "phimoe": golden(lambda: t.PhimoeConfig(**tiny(num_local_experts=6, num_experts_per_tok=2, intermediate_size=16,
                                                       attention_bias=True, lm_head_bias=True, router_jitter_noise=0.2))),
        "dots1": golden(lambda: t.Dots1Config(**tiny(num_hidden_layers=3, n_group=1, topk_group=1, routed_scaling_factor=1.5,
                                                     sliding_window=None, **SIGMOID_EXPERTS)), gain=LARGE_BIAS),
        "hy_v3": golden(lambda: t.HYV3Config(**tiny(num_hidden_layers=3, head_dim=8, num_experts=6, num_experts_per_tok=2, num_shared_experts=1,
                                                    moe_intermediate_size=16, router_scaling_factor=1.5)), gain=LARGE_BIAS),
        "hunyuan_dense": golden(lambda: t.HunYuanDenseV1Config(**tiny(head_dim=16))),
        "hunyuan_moe": golden(lambda: t.HunYuanMoEV1Config(**tiny(head_dim=8, num_experts=6, moe_topk=2, intermediate_size=16))),
        "gpt_neox": golden(lambda: t.GPTNeoXConfig(**{k: v for k, v in tiny(
            rope_parameters=rope(partial_rotary_factor=0.5)).items() if k != "num_key_value_heads"})),
        "gpt_neox_serial": golden(lambda: t.GPTNeoXConfig(**{k: v for k, v in tiny(
            use_parallel_residual=False, rope_parameters=rope(partial_rotary_factor=0.5)).items() if k != "num_key_value_heads"}),
            released={"rotary_emb_base": 10000, "rotary_pct": 0.5}),
        "phi": golden(lambda: t.PhiConfig(**tiny(num_key_value_heads=4, rope_parameters=rope(partial_rotary_factor=0.5)))),
        "starcoder2": golden(lambda: t.Starcoder2Config(**tiny(sliding_window=16))),
        "falcon": golden(lambda: t.FalconConfig(**falcon(num_kv_heads=2, new_decoder_architecture=True))),
        "falcon_7b": golden(lambda: t.FalconConfig(**falcon(multi_query=True, new_decoder_architecture=False, parallel_attn=True))),
        "bloom": golden(lambda: t.BloomConfig(vocab_size=64, hidden_size=48, n_layer=2, n_head=6, pad_token_id=0, bos_token_id=1, eos_token_id=2),
                        gain={"embeddings_layernorm.weight": -1.0, "self_attention.dense": 4.0, "self_attention.query": 2.0, "dense_4h_to_h.weight": 5.0}),
        "mpt": golden(mpt, prompt_tokens=100, gain={"wte": 0.4, "Wqkv": 2.0, "out_proj": 3.0, "down_proj": 3.0}),
        "cohere2_moe": golden(lambda: t.Cohere2MoeConfig(**tiny(
            num_hidden_layers=4, head_dim=8, sliding_window=16, sliding_window_pattern=2, first_k_dense_replace=1, intermediate_size=16,
            prefix_dense_intermediate_size=40, num_experts=6, num_experts_per_tok=2, num_shared_experts=2, expert_selection_fn="sigmoid",
            logit_scale=0.5, tie_word_embeddings=True)), gain={"embed_tokens": 1.0, "down_proj": 2.0, "o_proj": 2.0}),
        "laguna": golden(lambda: t.LagunaConfig(**{**tiny(**LAGUNA), **LAGUNA_WINDOWS}),
                         gain={**LARGE_BIAS, "g_proj": 2.5, "mlp.gate.": 2.5}, margin=0.0005, prompt_tokens=300),
        "laguna_values": golden(lambda: t.LagunaConfig(**tiny(**LAGUNA, gating="per-element")), gain={**LARGE_BIAS, "g_proj": 2.5}),
        "muse_glimmer": golden(muse_glimmer, gain=MUSE_GAIN, prompt_tokens=300),
        "mimo_v2_flash": golden(lambda: t.MiMoV2FlashConfig(**tiny(
            num_hidden_layers=4, head_dim=12, v_head_dim=8, num_key_value_heads=1, sliding_window=17, n_routed_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, n_group=2, topk_group=1, attention_value_scale=0.7, routed_scaling_factor=1.5,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={"full_attention": rope(theta=1000000.0, partial_rotary_factor=0.334),
                             "sliding_attention": rope(theta=1000.0, partial_rotary_factor=0.334)})),
            gain={**LARGE_BIAS, "sinks": 1.0}),
        "llama4": golden(lambda: t.Llama4TextConfig(**tiny(
            num_hidden_layers=4, head_dim=8, intermediate_size=16, intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1,
            interleave_moe_layer_step=2, attention_chunk_size=16, floor_scale=8, attn_scale=0.3))),
    }


def mpt():
    return transformers.MptConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=4, max_seq_len=512, pad_token_id=0,
                                  bos_token_id=1, eos_token_id=2, attn_config=dict(softmax_scale=0.5))


def falcon(**changes):
    return dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=48, pad_token_id=0,
                bos_token_id=1, eos_token_id=2, max_position_embeddings=128, **changes)
