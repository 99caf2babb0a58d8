#!/usr/bin/env python3
"""Makes tests/goldens: tiny random models and what Transformers computes with them in f32.

    make_goldens.py [NAME...] [--out tests/goldens]

Every run gives the same bytes. tests/README.md describes the files, tests/goldens/README.md what each model is for.
Weights are large enough that every term of a model shows in its logits, and a seed is taken only if the greedy continuation is
unambiguous: clear winners among the tokens, and among the experts where there are any.
Needs torch, transformers, safetensors and tokenizers.
"""
import argparse
import json
import math
import multiprocessing
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from golden_families import families
from golden_hybrids import hybrids
from golden_latent import latents
from golden_schemes import schemes

PROMPT_TOKENS = 40
GREEDY_TOKENS = 12
FIRST_PLAIN_ID = 3            # 0 padding, 1 beginning, 2 end
TOKEN_MARGIN = 0.02           # top two logits, as a share of the largest
ROUTER_MARGIN = 0.01          # last expert in and first one out, in router logits
CHOICE_MARGIN = 0.004         # the same of whatever a family chooses by: probabilities, sigmoids, groups
ROW_MARGIN = 2e-5             # the same of rows that a token attends to, of which there are many, as a share of its largest score
SIZE_LIMIT_BYTES = 300_000


class Golden:
    """One model: its configuration, how it is stored, and what makes it unlike a plain one."""

    def __init__(self, config, *, released=None, dtype=torch.float32, shard=None, gain=None, pack=None, tokenizer=False,
                 margin=CHOICE_MARGIN, prompt_tokens=PROMPT_TOKENS, nested=None, row_tokens=1):
        self.config = config          # a function, so that no two attempts share one
        self.released = released      # keys of config.json as published models write them; None: as Transformers 5 does
        self.dtype = dtype            # of the stored tensors
        self.shard = shard            # max_shard_size
        self.gain = gain or {}        # part of a parameter's name -> factor on its spread
        self.pack = pack              # state dict -> (stored tensors, what they mean in f32)
        self.tokenizer = tokenizer
        self.margin = margin          # of choices that are not made among logits
        self.prompt_tokens = prompt_tokens
        self.nested = nested          # model_type of a checkpoint of text and images, whose text part it is
        self.row_tokens = row_tokens  # that a row is of, where rows are chosen


def base(**changes):
    values = dict(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return {**values, **changes}


def rope(kind="default", theta=10000.0, **values):
    return {"rope_type": kind, "rope_theta": theta, **values}


# ---- the models ----------------------------------------------------------------------------------------------------------------

def llama(**changes):
    return transformers.LlamaConfig(**base(**changes))


LLAMA3_ROPE = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SHORT_FACTOR = [1.0, 1.05, 1.1, 1.3, 1.7, 2.2, 2.9, 3.5]
LONG_FACTOR = [1.0, 1.2, 1.9, 3.3, 6.1, 11.0, 19.0, 31.0]
# The embedding is scaled by sqrt(hidden) going in and is the output matrix too: without louder layers it would only echo the input.
GEMMA_GAIN = {"embed_tokens": 0.4, "post_": 1.0, "q_proj": 2.5, "k_proj": 2.5}
def gpt_oss(truncate, **changes):
    return transformers.GptOssConfig(**base(
        head_dim=16, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, sliding_window=16, max_position_embeddings=1024,
        rope_parameters=rope("yarn", 150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=truncate,
                             original_max_position_embeddings=256), **changes))


GPT_OSS_GAIN = {"gate_up_proj": 3.0, "sinks": 1.0}  # so that the clamp at 7 is met



def hybrid(kind, **changes):
    """Three layers of gated delta net to one of attention, heads of unequal measures."""
    values = base(head_dim=16, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                  linear_value_head_dim=12, linear_conv_kernel_dim=4, max_position_embeddings=512,
                  rope_parameters=rope(theta=1000000.0, partial_rotary_factor=0.25))
    return kind(**{**values, **changes})


HYBRID_EXPERTS = dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_experts=6, num_experts_per_tok=2,
                      moe_intermediate_size=16, shared_expert_intermediate_size=24)
HYBRID_GAIN = {"A_log": -1.5, "conv1d": 1.5}  # a memory of some twenty tokens
HYBRID_EXPERT_GAIN = {**HYBRID_GAIN, "mlp.gate.": 1.6}
HYBRID_PROMPT = 100

MODELS = {
    "llama2": Golden(lambda: llama(intermediate_size=96, num_attention_heads=2, num_key_value_heads=2)),
    "llama3": Golden(lambda: llama(vocab_size=320, num_hidden_layers=2, head_dim=16, tie_word_embeddings=True,
                                   rope_parameters=rope("llama3", **LLAMA3_ROPE)),
                     released={"rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE}}, tokenizer=True),
    "llama_linear": Golden(lambda: llama(head_dim=16, rope_parameters=rope("linear", factor=4.0))),
    "llama_yarn": Golden(lambda: llama(head_dim=16, max_position_embeddings=1024,
                                       rope_parameters=rope("yarn", factor=4.0, beta_fast=8.0, beta_slow=1.0,
                                                            original_max_position_embeddings=256))),
    "mistral": Golden(lambda: transformers.MistralConfig(**base(hidden_size=64, intermediate_size=96, head_dim=16, sliding_window=16)),
                      released={"rope_theta": 10000.0}, dtype=torch.bfloat16),
    "qwen2": Golden(lambda: transformers.Qwen2Config(**base(hidden_size=64, tie_word_embeddings=True,
                                                            rope_parameters=rope(theta=1000000.0))),
                    released={"rope_theta": 1000000.0, "use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1,
                              "layer_types": None},
                    dtype=torch.float16),
    "qwen3": Golden(lambda: transformers.Qwen3Config(**base(head_dim=16, tie_word_embeddings=True,
                                                            rope_parameters=rope(theta=1000000.0)))),
    "qwen3_sharded": Golden(lambda: transformers.Qwen3Config(**base(head_dim=16, rope_parameters=rope(theta=1000000.0))),
                            released={"rope_theta": 1000000.0, "rope_scaling": None, "layer_types": None}, shard="80KB"),
    "gemma2": Golden(lambda: transformers.Gemma2Config(**base(head_dim=16, num_hidden_layers=4,
                                                              sliding_window=16, query_pre_attn_scalar=24,
                                                              attn_logit_softcapping=4.0, final_logit_softcapping=8.0)),
                     gain=GEMMA_GAIN),
    "gemma2_released": Golden(lambda: transformers.Gemma2Config(**base(head_dim=16, num_hidden_layers=3, sliding_window=16,
                                                                       query_pre_attn_scalar=16, attn_logit_softcapping=5.0,
                                                                       final_logit_softcapping=9.0)),
                              released={"rope_theta": 10000.0, "layer_types": None}, gain=GEMMA_GAIN),
    "gemma3": Golden(lambda: transformers.Gemma3TextConfig(
        **base(head_dim=16, num_hidden_layers=4, sliding_window=16, query_pre_attn_scalar=24,
               layer_types=["sliding_attention", "full_attention"] * 2,
               rope_parameters={"sliding_attention": rope(theta=10000.0), "full_attention": rope("linear", 1000000.0, factor=8.0)})),
        gain=GEMMA_GAIN),
    "gemma3_released": Golden(lambda: transformers.Gemma3TextConfig(
        **base(head_dim=16, sliding_window=16, query_pre_attn_scalar=16, sliding_window_pattern=3,
               rope_parameters={"sliding_attention": rope(theta=10000.0), "full_attention": rope(theta=1000000.0)})),
        released={"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None, "sliding_window_pattern": 3,
                  "layer_types": None, "_sliding_window_pattern": None},
        gain=GEMMA_GAIN),
    "phi3": Golden(lambda: transformers.Phi3Config(**base(num_attention_heads=2, num_key_value_heads=2))),
    "phi4": Golden(lambda: transformers.Phi3Config(**base(hidden_size=64, num_hidden_layers=2,
                                                          rope_parameters=rope(partial_rotary_factor=0.75),
                                                          tie_word_embeddings=True)),
                   released={"rope_theta": 10000.0, "rope_scaling": None, "partial_rotary_factor": 0.75}),
    "phi3_longrope": Golden(lambda: transformers.Phi3Config(
        **base(num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=1024, original_max_position_embeddings=256,
               rope_parameters=rope("longrope", short_factor=SHORT_FACTOR, long_factor=LONG_FACTOR))),
        released={"rope_theta": 10000.0,
                  "rope_scaling": {"type": "longrope", "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR}}),
    "olmo2": Golden(lambda: transformers.Olmo2Config(**base())),
    "smollm3": Golden(lambda: transformers.SmolLM3Config(**base(head_dim=16, num_hidden_layers=4,
                                                                no_rope_layers=[1, 1, 1, 0])),
                      gain={"embed_tokens": 0.6}),
    "granite": Golden(lambda: transformers.GraniteConfig(**base(embedding_multiplier=6.0, attention_multiplier=0.15,
                                                                residual_multiplier=0.7, logits_scaling=3.0, head_dim=16)),
                      gain={"embed_tokens": 0.4, "lm_head": 4.0}),
    "gpt2": Golden(lambda: transformers.GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=3, n_head=4, pad_token_id=0,
                                                   bos_token_id=1, eos_token_id=2)),
    "mixtral": Golden(lambda: transformers.MixtralConfig(**base(head_dim=16, num_hidden_layers=2, intermediate_size=32,
                                                                num_local_experts=6, num_experts_per_tok=2)),
                      released={"rope_theta": 1000000.0}),
    "qwen3_moe": Golden(lambda: transformers.Qwen3MoeConfig(**base(head_dim=16, num_hidden_layers=2, moe_intermediate_size=32,
                                                                   num_experts=6, num_experts_per_tok=3, norm_topk_prob=True,
                                                                   rope_parameters=rope(theta=1000000.0)))),
    "gpt_oss": Golden(lambda: gpt_oss(truncate=True, intermediate_size=32), gain=GPT_OSS_GAIN),
    "gpt_oss_mxfp4": Golden(lambda: gpt_oss(truncate=False, hidden_size=64, intermediate_size=64),
                            released={"rope_theta": 150000.0,
                                      "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                                       "truncate": False, "original_max_position_embeddings": 256},
                                      "swiglu_limit": 7.0, "swiglu_alpha": None, "experts_per_token": 2,
                                      "quantization_config": {"quant_method": "mxfp4",
                                                              "modules_to_not_convert": ["model.layers.*.self_attn",
                                                                                         "model.layers.*.mlp.router",
                                                                                         "model.embed_tokens", "lm_head"]}},
                            dtype=torch.bfloat16, gain=GPT_OSS_GAIN, pack=lambda state, seed: pack_mxfp4(state)),
    "llama_fp8": Golden(lambda: llama(hidden_size=160, intermediate_size=96, num_hidden_layers=2, head_dim=16, tie_word_embeddings=True),
                        released={"rope_theta": 10000.0,
                                  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                                          "weight_block_size": [128, 128]}},
                        dtype=torch.bfloat16, pack=lambda state, seed: pack_fp8(state, seed)),
    "qwen3_5": Golden(lambda: hybrid(transformers.Qwen3_5TextConfig), gain=HYBRID_GAIN, prompt_tokens=HYBRID_PROMPT),
    "qwen3_5_nested": Golden(lambda: hybrid(transformers.Qwen3_5TextConfig, linear_num_value_heads=2, tie_word_embeddings=True),
                             gain=HYBRID_GAIN, prompt_tokens=HYBRID_PROMPT, nested="qwen3_5", dtype=torch.bfloat16),
    "qwen3_5_moe": Golden(lambda: hybrid(transformers.Qwen3_5MoeTextConfig, **HYBRID_EXPERTS), gain=HYBRID_EXPERT_GAIN, margin=0.001),
    "qwen3_next": Golden(lambda: hybrid(transformers.Qwen3NextConfig, **HYBRID_EXPERTS), gain=HYBRID_EXPERT_GAIN, margin=0.001),
}
MODELS |= families(Golden) | hybrids(Golden) | latents(Golden) | schemes(Golden, llama)


# ---- weights -------------------------------------------------------------------------------------------------------------------

def is_norm(name):
    return "norm" in name or "ln_" in name


def randomize(model, golden, seed):
    """Norms around one, biases and sinks away from zero, matrices wide enough for clear attention."""
    generator = torch.Generator().manual_seed(seed)
    kind = model.config.model_type
    less_one = kind.startswith(("gemma", "qwen3_5", "qwen3_next", "minimax_m3")) and not kind.startswith(("gemma3n", "gemma4"))  # how they store a norm's weight
    centered = {f"{name}.weight" for name, module in model.named_modules() if "Centered" in type(module).__name__}
    with torch.no_grad():
        for name, buffer in stored_buffers(model):
            scale = next((value for part, value in golden.gain.items() if part in name), None)
            if name.endswith("layer_scalar"):
                buffer.copy_(1 + 0.2 * torch.randn(buffer.shape, generator=generator))
            elif scale is not None:
                buffer.copy_(scale * torch.randn(buffer.shape, generator=generator))
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("tid2eid"):  # of each token its experts, no two of them the same
                experts = model.config.num_local_experts
                buffer.copy_(torch.stack([torch.randperm(experts, generator=generator)[:buffer.shape[1]] for _ in buffer]))
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            factor = next((value for part, value in golden.gain.items() if part in name), None)
            if name.endswith("A_log"):
                parameter.copy_(factor + 0.5 * noise)
            elif is_norm(name) and name.endswith("weight"):
                norm_center = 0.0 if (less_one or name in centered) and "linear_attn.norm" not in name else 1.0
                parameter.copy_(norm_center + (factor or 0.0) + 0.25 * noise)
            elif name.endswith((".dt_bias", "dt_proj.bias", ".D")) and factor is not None:
                parameter.copy_(factor + 0.5 * noise)
            elif name.endswith(("router.scale", "per_expert_scale", "hc.scale", "hc_scale")):
                parameter.copy_(1 + 0.25 * noise)
            elif parameter.dim() == 1 or name.endswith("bias"):
                parameter.copy_((factor if name.endswith(("sinks", "correction_bias", "expert_bias", "position_bias")) else 0.25) * noise)
            elif any(part in name for part in ("embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "embeddings")):
                parameter.copy_((factor or 1.0) * 0.5 * noise)
            else:
                # Conv1D and the experts of gpt-oss are stored [in, out]; the others [out, in].
                transposed = model.config.model_type == "gpt2" and "lm_head" not in name or \
                    model.config.model_type in ("gpt_oss", "llama4_text") and ".experts." in name
                fan_in = parameter.shape[-2] if transposed else parameter.shape[-1]
                sharp = 1.6 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "c_attn")) else 1.2
                parameter.copy_((factor or sharp) / math.sqrt(fan_in) * noise)


def stored_buffers(model):
    """Those that are in the files: biases of choices, and no rotation's frequencies."""
    state = model.state_dict()
    return [(name, buffer) for name, buffer in sorted(model.named_buffers()) if name in state and buffer.is_floating_point()]


def round_to(state, dtype):
    """The tensors as they are stored, and what they mean in f32."""
    stored = {name: tensor.to(dtype).contiguous() for name, tensor in state.items()}
    return stored, {name: tensor.float() for name, tensor in stored.items()}


def stored_names(model):
    """The state without the output matrix where it is the embedding."""
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def mxfp4_blocks(rows):
    """rows: [..., n], n a multiple of 32 -> blocks [..., n/32, 16], scales [..., n/32], the values they stand for [..., n]."""
    groups = rows.reshape(*rows.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2  # 4 <= largest magnitude < 8
    scaled = groups / torch.exp2(exponent)[..., None]
    codes = (scaled[..., None] - FP4_VALUES).abs().argmin(-1)
    values = FP4_VALUES[codes] * torch.exp2(exponent)[..., None]
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)  # the earlier value in the low half
    return blocks.contiguous(), (exponent + 127).to(torch.uint8), values.reshape(rows.shape)


def pack_mxfp4(state):
    experts = {name: tensor for name, tensor in state.items() if name.endswith(("experts.gate_up_proj", "experts.down_proj"))}
    stored, meant = round_to({name: tensor for name, tensor in state.items() if name not in experts}, torch.bfloat16)
    for name, tensor in experts.items():  # [experts, in, out]; the blocks run along `in`
        blocks, scales, values = mxfp4_blocks(tensor.transpose(1, 2))
        stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
        meant[name] = values.transpose(1, 2).contiguous()
    return stored, meant


def pack_fp8(state, seed):
    generator = torch.Generator().manual_seed(seed)
    linear = {name: tensor for name, tensor in state.items() if "_proj.weight" in name}
    stored, meant = round_to({name: tensor for name, tensor in state.items() if name not in linear}, torch.bfloat16)
    for name, tensor in linear.items():
        rows, columns = tensor.shape
        grid = (math.ceil(rows / 128), math.ceil(columns / 128))
        spread = 0.5 + torch.rand(grid, generator=generator)  # no two tiles have the same scale
        expand = lambda tiles: tiles.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        tensor = tensor * expand(spread)
        scales = torch.zeros(grid)
        for i in range(grid[0]):
            for j in range(grid[1]):
                scales[i, j] = tensor[128 * i:128 * (i + 1), 128 * j:128 * (j + 1)].abs().max() / 448
        # Both are published: DeepSeek keeps these scales in f32, Qwen in bf16.
        scales = scales.to(torch.bfloat16 if ".layers.1." in name else torch.float32)
        quantized = (tensor / expand(scales.float())).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[name], stored[name + "_scale_inv"] = quantized, scales
        meant[name] = quantized.float() * expand(scales.float())
    return stored, meant


# ---- the reference -------------------------------------------------------------------------------------------------------------

class RouterMargin:
    """Watches how far the last expert chosen is from the first one left out, and the same of groups of them."""

    def __init__(self, model, least_choice, row_tokens):
        self.least_choice = least_choice
        self.row_tokens = row_tokens
        self.smallest = self.smallest_choice = self.smallest_row = math.inf
        self.sees_logits = False
        for module in model.modules():
            if type(module).__name__ in ("MixtralTopKRouter", "Qwen3MoeTopKRouter", "GptOssTopKRouter"):
                module.register_forward_hook(self.see)
                self.sees_logits = True

    def see(self, module, inputs, outputs):
        ranked = outputs[0].sort(-1, descending=True).values
        self.smallest = min(self.smallest, (ranked[:, module.top_k - 1] - ranked[:, module.top_k]).min().item())

    def watched(self, topk):
        def choose(values, k, *args, **kwargs):
            ranked = values.sort(-1, descending=True).values
            if k < values.shape[-1] and not self.sees_logits:
                gap = ranked[..., k - 1] - ranked[..., k]
                if values.dim() == 4:  # blocks of rows; of those that are not seen the score is -inf, of a token's own inf
                    share = gap / values[values.isfinite()].abs().max()
                    self.smallest_row = min(self.smallest_row, share[ranked[..., k].isfinite()].min().item())
                    return topk(values, k, *args, **kwargs)
                if values.dim() == 3 and values.shape[-1] == values.shape[-2] // self.row_tokens:  # rows, of which a token sees those up to its own
                    chooses = (torch.arange(values.shape[-2]) + 1) // self.row_tokens > k
                    share = gap / ranked[..., 0].abs().clamp_min(1e-9)
                    self.smallest_row = min(self.smallest_row, share[:, chooses].min().item())
                else:
                    self.smallest_choice = min(self.smallest_choice, gap.min().item())
            return topk(values, k, *args, **kwargs)
        return choose

    def clear(self):
        return self.smallest >= ROUTER_MARGIN and self.smallest_choice >= self.least_choice and self.smallest_row >= ROW_MARGIN

    def run(self, model, tokens):
        plain, method = torch.topk, torch.Tensor.topk
        torch.topk, torch.Tensor.topk = self.watched(plain), self.watched(method)
        try:
            return model(torch.tensor([tokens]), use_cache=False).logits[0].float()
        finally:
            torch.topk, torch.Tensor.topk = plain, method


def reference(model, golden, prompt):
    """The prompt's logits and the greedy continuation, or None if a choice is too close or dull."""
    margin = RouterMargin(model, golden.margin, golden.row_tokens)
    tokens, prompt_logits = list(prompt), None
    for _ in range(GREEDY_TOKENS):
        logits = margin.run(model, tokens)
        if not margin.clear():
            return None
        prompt_logits = logits if prompt_logits is None else prompt_logits
        best = logits[-1].topk(2)
        if best.values[0] - best.values[1] < TOKEN_MARGIN * logits[-1].abs().max() or \
                not FIRST_PLAIN_ID <= best.indices[0] < plain_tokens(model.config):
            return None
        tokens.append(best.indices[0].item())
    greedy = tokens[len(prompt):]
    if len(set(greedy)) < GREEDY_TOKENS // 2:
        return None
    return prompt_logits, greedy


def make_model(config):
    return auto_class(config).from_config(config, attn_implementation="eager", dtype=torch.float32).eval()


def auto_class(config):
    """Of text, or of text and images, of which only the text is used."""
    with_images = getattr(config, "vision_config", None) is not None
    return transformers.AutoModelForImageTextToText if with_images else transformers.AutoModelForCausalLM


def write_config(folder, golden):
    """config.json as published models have it: rope at the top level, and only the keys of their time."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if golden.released is not None:
        config.pop("rope_parameters", None)
        config["torch_dtype"] = config.pop("dtype")
        config.update(golden.released)
        for key in ("layer_types", "layers_block_type", "_sliding_window_pattern", "swiglu_alpha"):
            if config.get(key, "") is None:
                del config[key]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def settle_weights(model, golden, seed):
    """Gives the model the values its files will hold, and returns the tensors of a packed format."""
    if not golden.pack:
        for parameter in [*model.parameters(), *(buffer for _, buffer in stored_buffers(model))]:
            parameter.copy_(parameter.to(golden.dtype))
        return None
    stored, meant = golden.pack(stored_names(model), seed)
    model.load_state_dict(meant, strict=False)
    model.tie_weights()
    return stored


def save(model, golden, folder, packed):
    if packed is None:
        model.to(golden.dtype).save_pretrained(folder, max_shard_size=golden.shard or "1GB")
    else:
        model.config.dtype = golden.dtype
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    write_config(folder, golden)
    if golden.tokenizer:
        write_tokenizer(folder, model.config.vocab_size)


def check_files(folder, prompt, logits):
    """Transformers reads the same model back from the files."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = auto_class(config).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    seen = model(torch.tensor([prompt]), use_cache=False).logits[0].float()
    if not torch.allclose(seen, logits, rtol=1e-5, atol=1e-5 * logits.abs().max().item()):
        sys.exit(f"{folder.name}: the files do not hold the model that was measured")


def plain_tokens(config):
    """Those of images come last."""
    vocab = config.get_text_config().vocab_size
    return min([vocab] + [value for key in ("image_token_id", "image_token_index") if (value := getattr(config, key, None))])


def nest(folder, model_type):
    """As the text part of a checkpoint of text and images has it."""
    path = folder / "config.json"
    text = json.loads(path.read_text())
    outer = {key: text.pop(key) for key in ("architectures", "tie_word_embeddings", "transformers_version") if key in text}
    path.write_text(json.dumps({**outer, "model_type": model_type, "text_config": text}, indent=2, sort_keys=True) + "\n")
    file = folder / "model.safetensors"
    tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def attempt(golden, seed):
    """A model with its prompt, logits and continuation, or None if this seed leaves room for doubt."""
    model = make_model(golden.config())
    randomize(model, golden, seed)
    packed = settle_weights(model, golden, seed)
    prompt = torch.randint(FIRST_PLAIN_ID, plain_tokens(model.config), (golden.prompt_tokens,),
                           generator=torch.Generator().manual_seed(seed)).tolist()
    result = reference(model, golden, prompt)
    return result and (model, packed, prompt, *result)


def make(name, golden, out):
    seed, found = next(((seed, found) for seed in range(1, 1000) if (found := attempt(golden, seed))), (0, None))
    if found is None:
        sys.exit(f"{name}: no seed gives an unambiguous continuation")
    model, packed, prompt, logits, greedy = found
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save(model, golden, folder, packed)
    if packed is None:
        check_files(folder, prompt, logits)
    if golden.nested:
        nest(folder, golden.nested)
    (folder / "golden.bin").write_bytes(logits.numpy().astype("<f4").tobytes())
    summary = {"architecture": model.config.model_type, "prompt": prompt, "vocab": model.config.get_text_config().vocab_size, "greedy": greedy,
               "transformers": transformers.__version__}
    (folder / "golden.json").write_text(json.dumps(summary) + "\n")
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:16} seed {seed:3}  {size_bytes:7} bytes  logits {logits.std():.2f} std, {logits.abs().max():.2f} largest", flush=True)
    if size_bytes > SIZE_LIMIT_BYTES:
        sys.exit(f"{name}: {size_bytes} bytes; a golden has at most {SIZE_LIMIT_BYTES}")


# ---- a tokenizer of our own ----------------------------------------------------------------------------------------------------

TOKENIZER_TEXT = """The ferry leaves the harbour at nine and reaches the island before noon. There are 24 seats on the upper deck.
A quire is a gathering of pages, folded and sewn; it's older than printing. We've counted 1234567 of them, and they're all here!
When the rain stopped, the children went out to the garden and found that the river had come to visit the apple trees.
Please water the plants on Monday, Wednesday and Friday; the key is under the third stone, where it has always been.
  for (int i = 0; i < 10; ++i) {\n    total += values[i];\n  }\n
"""
CHAT_TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
{{- '<|role|>' + message['role'] + '\\n' + message['content'] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|role|>assistant\\n' }}
{%- endif %}"""
# As Llama 3 splits text: contractions, words, numbers of up to three digits, punctuation, line ends, spaces.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def write_tokenizer(folder, vocab_size):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    specials = ["<|pad|>", "<|begin|>", "<|end|>", "<|role|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TOKENIZER_TEXT], trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[AddedToken(text, special=True) for text in specials], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 1)])
    if tokenizer.get_vocab_size() != vocab_size:
        sys.exit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"added_tokens_decoder": {str(i): {"content": text, "special": True} for i, text in enumerate(specials)},
              "bos_token": specials[1], "eos_token": specials[2], "pad_token": specials[0], "chat_template": CHAT_TEMPLATE,
              "clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_one(job):
    """What went wrong, or None."""
    name, out = job
    try:
        with torch.no_grad():
            make(name, MODELS[name], out)
    except (Exception, SystemExit) as problem:  # the others are made all the same
        shutil.rmtree(out / name, ignore_errors=True)
        return f"{name}: {type(problem).__name__}: {problem}"


def main():
    parser = argparse.ArgumentParser(description="Makes the golden models of the tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (all unless given)")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "tests" / "goldens")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    options = parser.parse_args()
    unknown = set(options.names) - set(MODELS)
    if unknown:
        parser.error(f"no model named {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    jobs = [(name, options.out) for name in options.names or MODELS]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        wrong = [problem for problem in pool.imap_unordered(make_one, jobs) if problem]
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
