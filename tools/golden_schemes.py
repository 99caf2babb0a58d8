"""Llamas whose matrices a folder keeps in a packed scheme, by plain numpy that follows the scheme: what is stored, and what it means.

pack(state, seed) -> (stored tensors, their meaning in f32), as tools/make_goldens.py wants it.
"""
import json
import math

import numpy as np
import torch

E4M3 = torch.float8_e4m3fn
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight rows is in which half byte


def bf16(values):
    """Rounded to bf16, as f32."""
    return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(torch.bfloat16).float().numpy()


def f16(values):
    return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def tensor(values, dtype=None):
    result = torch.from_numpy(np.ascontiguousarray(values))
    return result.to(dtype) if dtype else result


def in_words(codes, bits, axis):
    """Fields of 32-bit words along an axis, the lowest first; short words end in zeros."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    each = 32 // bits
    short = -codes.shape[-1] % each
    codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], short), np.uint32)], -1)
    words = (codes.reshape(*codes.shape[:-1], -1, each) << (np.arange(each, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def grouped(weight, group):
    return weight.reshape(weight.shape[0], -1, group)


def affine(weight, group, bits, rounded):
    """Codes [rows, cols] from zero up, scales and zeros [rows, groups]: (code - zero) * scale."""
    parts = grouped(weight, group)
    low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
    scale = rounded((high - low) / (2 ** bits - 1))
    zero = np.clip(np.round(-low / scale), 0, 2 ** bits - 1)
    codes = np.clip(np.round(parts / scale[..., None]) + zero[..., None], 0, 2 ** bits - 1)
    return codes.reshape(weight.shape).astype(np.uint32), scale, zero.astype(np.uint32)


def symmetric(weight, group, bits, rounded):
    """Signed codes and scales."""
    parts = grouped(weight, group)
    scale = rounded(np.abs(parts).max(-1) / (2 ** (bits - 1) - 0.5))
    codes = np.clip(np.round(parts / scale[..., None]), -2 ** (bits - 1), 2 ** (bits - 1) - 1)
    return codes.reshape(weight.shape).astype(np.int32), scale


def spread(scale, group):
    return np.repeat(scale, group, axis=1)


# ---- compressed-tensors ----------------------------------------------------------------------------------------------------

def compressed_int(name, weight, bits, group, has_zeros):
    if has_zeros:
        codes, scale, zero = affine(weight, group, bits, f16)
        meant = (codes.astype(np.float32) - spread(zero.astype(np.float32), group)) * spread(scale, group)
    else:
        signed, scale = symmetric(weight, group, bits, bf16)
        codes, meant = signed + 2 ** (bits - 1), signed.astype(np.float32) * spread(scale, group)
    stored = {name + "_packed": tensor(in_words(codes, bits, 1).view(np.int32)),
              name + "_scale": tensor(scale, torch.float16 if has_zeros else torch.bfloat16),
              name + "_shape": torch.tensor(weight.shape)}
    if has_zeros:
        stored[name + "_zero_point"] = tensor(in_words(zero, bits, 0).view(np.int32))
    return stored, meant


def compressed_mixed(name, weight, number):
    """Four bits with groups, with zeros, eight bits by channel, and int8 as it is: a scheme for each matrix in turn."""
    if number % 4 == 0:
        return compressed_int(name, weight, 4, 32, False)
    if number % 4 == 1:
        return compressed_int(name, weight, 4, 32, True)
    if number % 4 == 2:
        return compressed_int(name, weight, 8, weight.shape[1], False)
    codes, scale = symmetric(weight, weight.shape[1], 8, bf16)
    return ({name: tensor(codes.astype(np.int8)), name + "_scale": tensor(scale, torch.bfloat16)},
            codes.astype(np.float32) * scale)


def fp4_codes(scaled):
    return (np.abs(np.abs(scaled)[..., None] - FP4).argmin(-1) | (np.signbit(scaled) << 3)).astype(np.uint8)


def fp4_values(codes):
    return np.where(codes & 8, -1, 1) * FP4[codes & 7]


def in_bytes(codes):
    return tensor(codes[:, 0::2] | codes[:, 1::2] << 4)


def nvfp4(weight):
    """Codes, scales as E4M3, and what all scales are multiplied with."""
    whole = np.float32(np.abs(weight).max() / (448 * 6))
    parts = grouped(weight, 16)
    scale = tensor(np.abs(parts).max(-1) / 6 / whole).to(E4M3)
    by = np.repeat(scale.float().numpy(), 16, axis=1) * whole
    codes = fp4_codes(weight / by)
    return codes, scale, whole, by


def compressed_nvfp4(name, weight, number):
    codes, scale, whole, _ = nvfp4(weight)
    divisor = np.float32(1 / whole)
    meant = fp4_values(codes) * np.repeat(scale.float().numpy(), 16, axis=1) / divisor
    return {name + "_packed": in_bytes(codes), name + "_scale": scale,
            name + "_global_scale": tensor(np.array([divisor]))}, meant


def modelopt_nvfp4(name, weight, number):
    codes, scale, whole, by = nvfp4(weight)
    stored = {name: in_bytes(codes), name + "_scale": scale, name + "_scale_2": torch.tensor(whole),
              name.replace(".weight", ".input_scale"): torch.tensor(0.25)}
    return stored, fp4_values(codes) * by


def modelopt_fp8(name, weight, number):
    scale = np.float32(np.abs(weight).max() / 448)
    codes = tensor(weight / scale).to(E4M3)
    return {name: codes, name + "_scale": torch.tensor(scale)}, codes.float().numpy() * scale


def compressed_mxfp4(name, weight, number):
    parts = grouped(weight, 32)
    exponent = np.floor(np.log2(np.abs(parts).max(-1))) - 2
    by = np.repeat(np.exp2(exponent).astype(np.float32), 32, axis=1)
    codes = fp4_codes(weight / by)
    return {name + "_packed": in_bytes(codes), name + "_scale": tensor((exponent + 127).astype(np.uint8))}, fp4_values(codes) * by


# ---- AWQ and GPTQ ----------------------------------------------------------------------------------------------------------

def awq(name, weight, number):
    group = 32
    codes, scale, zero = affine(weight, group, 4, f16)
    meant = (codes.astype(np.float32) - spread(zero.astype(np.float32), group)) * spread(scale, group)
    order = np.arange(weight.shape[0]).reshape(-1, 8)[:, AWQ_ORDER].ravel()
    module = name.removesuffix("weight")
    return {module + "qweight": tensor(in_words(codes.T[:, order], 4, 1).view(np.int32)),
            module + "qzeros": tensor(in_words(zero.T[:, order], 4, 1).view(np.int32)),
            module + "scales": tensor(scale.T.astype(np.float16))}, meant


def gptq(name, weight, bits, group, order, less):
    """`order`: columns in the order of their groups."""
    codes, scale, zero = affine(weight[:, order], group, bits, f16)
    meant = (codes.astype(np.float32) - spread(zero.astype(np.float32), group)) * spread(scale, group)
    back = np.argsort(order)
    module = name.removesuffix("weight")
    stored_zero = (zero - less) & (2 ** bits - 1)
    return {module + "qweight": tensor(in_words(codes[:, back].T, bits, 0).view(np.int32)),
            module + "qzeros": tensor(in_words(stored_zero.T, bits, 1).view(np.int32)),
            module + "scales": tensor(scale.T.astype(np.float16)),
            module + "g_idx": tensor((back // group).astype(np.int32))}, meant[:, back]


def gptq_plain(name, weight, number):
    return gptq(name, weight, 4, 32, np.arange(weight.shape[1]), 1)


def gptq_sorted(name, weight, number):
    """The columns of every other matrix in the order of their activations."""
    order = np.random.default_rng(number).permutation(weight.shape[1]) if number % 2 else np.arange(weight.shape[1])
    return gptq(name, weight, 8, 32, order, 0)


# ---- bitsandbytes ----------------------------------------------------------------------------------------------------------

NF4 = np.array([-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.091050036, 0.0, 0.079580299, 0.1609302,
                0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0], np.float32)
BLOCK, NESTED_BLOCK = 64, 256


def nf4(name, weight, number):
    flat = weight.reshape(-1, BLOCK)
    absmax = np.abs(flat).max(-1)
    is_nested = number % 2 == 1
    state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": list(weight.shape)}
    stored = {name + ".quant_map": tensor(NF4.copy())}
    if is_nested:
        offset = np.float32(absmax.mean())
        table = np.linspace(-1, 1, 256).astype(np.float32) ** 3
        less = absmax - offset
        blocks = np.array([np.abs(less[i:i + NESTED_BLOCK]).max() for i in range(0, len(less), NESTED_BLOCK)], np.float32)
        by = np.repeat(blocks, NESTED_BLOCK)[:len(less)]
        codes = np.abs((less / by)[:, None] - table).argmin(-1).astype(np.uint8)
        absmax = table[codes] * by + offset
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": float(offset)}
        stored |= {name + ".absmax": tensor(codes), name + ".nested_absmax": tensor(blocks),
                   name + ".nested_quant_map": tensor(table)}
    else:
        stored[name + ".absmax"] = tensor(absmax)
    codes = np.abs((flat / absmax[:, None])[..., None] - NF4).argmin(-1).astype(np.uint8)
    packed = codes.reshape(-1, 2)
    stored[name] = tensor((packed[:, :1] << 4) | packed[:, 1:])
    text = json.dumps(state).encode()
    stored[name + ".quant_state.bitsandbytes__nf4"] = tensor(np.frombuffer(text, np.uint8).copy())
    return stored, (NF4[codes] * absmax[:, None]).reshape(weight.shape)


def bnb_int8(name, weight, number):
    largest = np.abs(weight).max(-1)
    codes = np.round(weight / largest[:, None] * 127).astype(np.int8)
    module = name.removesuffix("weight")
    return {name: tensor(codes), module + "SCB": tensor(largest), module + "weight_format": torch.tensor(0, dtype=torch.uint8)}, \
        codes.astype(np.float32) * (largest / np.float32(127))[:, None]


# ---- MLX -------------------------------------------------------------------------------------------------------------------

def mlx(name, weight, bits, group, rounded, dtype):
    parts = grouped(weight, group)
    low = rounded(parts.min(-1))
    scale = rounded((parts.max(-1) - low) / (2 ** bits - 1))
    codes = np.clip(np.round((parts - low[..., None]) / scale[..., None]), 0, 2 ** bits - 1).reshape(weight.shape).astype(np.uint32)
    module = name.removesuffix("weight")
    stored = {name: torch.from_numpy(in_words(codes, bits, 1)), module + "scales": tensor(scale, dtype),
              module + "biases": tensor(low, dtype)}
    return stored, codes.astype(np.float32) * spread(scale, group) + spread(low, group)


# ---- the models ------------------------------------------------------------------------------------------------------------

def packer(scheme, everything=False):
    """Packs the matrices of all layers (with `everything` the embedding and the head as well); the rest is bf16."""
    def pack(state, seed):
        stored, meant = {}, {}
        matrices = sorted(name for name, value in state.items() if value.dim() == 2)
        for number, name in enumerate(matrices):
            if "_proj.weight" not in name and not everything:
                continue
            parts, values = scheme(name, state[name].float().numpy(), number)
            stored |= parts
            meant[name] = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        for name, value in state.items():
            if name not in meant:
                stored[name] = value.to(torch.bfloat16).contiguous()
                meant[name] = stored[name].float()
        return {name: value.contiguous() for name, value in stored.items()}, meant
    return pack


def schemes(Golden, llama):
    """Width 64, two layers."""
    def golden(config, scheme, everything=False):
        return Golden(lambda: llama(hidden_size=64, intermediate_size=96, num_hidden_layers=2), dtype=torch.bfloat16,
                      released={"rope_theta": 10000.0, **config}, pack=packer(scheme, everything))

    def by(method, **more):
        return {"quantization_config": {"quant_method": method, **more}}

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    return {
        "llama_ct_int": golden(by("compressed-tensors", format="pack-quantized", ignore=["lm_head"],
                                  config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}), compressed_mixed),
        "llama_ct_nvfp4": golden(by("compressed-tensors", format="nvfp4-pack-quantized", ignore=["lm_head"]), compressed_nvfp4),
        "llama_ct_mxfp4": golden(by("compressed-tensors", format="mxfp4-pack-quantized", ignore=["lm_head"]), compressed_mxfp4),
        "llama_modelopt_nvfp4": golden(by("modelopt", quant_algo="NVFP4", exclude_modules=["lm_head"]), modelopt_nvfp4),
        "llama_modelopt_fp8": golden(by("modelopt", quant_algo="FP8"), modelopt_fp8),
        "llama_awq": golden(by("awq", bits=4, group_size=32, zero_point=True, version="gemm"), awq),
        "llama_gptq": golden(by("gptq", bits=4, group_size=32, desc_act=False, sym=False), gptq_plain),
        "llama_gptq_sorted": golden(by("gptq", bits=8, group_size=32, desc_act=True, sym=False, checkpoint_format="gptq_v2"),
                                    gptq_sorted),
        "llama_bnb_nf4": golden(by("bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4"), nf4),
        "llama_bnb_int8": golden(by("bitsandbytes", load_in_8bit=True), bnb_int8),
        "llama_mlx": golden({"quantization": {"group_size": 32, "bits": 4}},
                            lambda name, weight, number: mlx(name, weight, 4, 32, f16, torch.float16), everything=True),
        "llama_mlx8": golden({"quantization": {"group_size": 32, "bits": 8}},
                             lambda name, weight, number: mlx(name, weight, 8, 32, bf16, torch.bfloat16), everything=True),
    }
