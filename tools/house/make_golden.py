#!/usr/bin/env python3
"""Logits of the house model and its draft as PyTorch computes them in f32 from the weights that the GGUF files hold.

    make_golden.py models/house tests/house_golden.json

For each model: a few prompts, and for the last tokens of each the logits, as base64 of little-endian f32. The tests compare the engine's
exact kernels with them.
"""
import base64
import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from model import DRAFT, HOUSE, Llama

NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
PROMPTS, KEPT = (17, 64, 130), 2


def name_of(tensor):
    parts = tensor.split(".")
    if parts[0] == "blk":
        return f"layers.{parts[1]}.{NAMES[parts[2]]}.weight"
    return {"token_embd": "embed_tokens.weight", "output_norm": "norm.weight"}[parts[0]]


def unpermute(weight, heads):
    """GGUF keeps the rows of Llama's queries and keys so that rotary pairs are neighbours; here the halves are."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def load(path, shape):
    weights = {}
    for tensor in GGUFReader(path).tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if ".attn_q." in tensor.name:
            weight = unpermute(weight, shape.heads)
        if ".attn_k." in tensor.name:
            weight = unpermute(weight, shape.kv_heads)
        weights[name_of(tensor.name)] = weight
    model = Llama(shape)
    model.load_state_dict(weights)
    return model


def main():
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(7)
    result = {}
    for name, shape in (("house", HOUSE), ("draft", DRAFT)):
        model, cases = load(folder / f"{name}.gguf", shape), []
        for length in PROMPTS:
            tokens = torch.randint(0, shape.vocab, (length,))
            with torch.no_grad():
                logits = model(tokens[None])[0, -KEPT:]
            cases.append({"tokens": tokens.tolist(), "logits": base64.b64encode(logits.numpy().astype("<f4").tobytes()).decode()})
        result[name] = cases
    out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
