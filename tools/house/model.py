"""The house model in PyTorch: a Llama with tied embeddings, named as Hugging Face names it."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ff: int
    vocab: int = 4096
    context: int = 4096
    head_dim: int = 64
    theta: float = 50000.0
    eps: float = 1e-5


HOUSE = Shape(dim=512, layers=7, heads=8, kv_heads=2, ff=768)
DRAFT = Shape(dim=256, layers=2, heads=4, kv_heads=1, ff=256)


class Norm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    """x [rows, heads, tokens, head_dim]: the first half of a head's values turns with the second."""
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)

    def forward(self, x, cos, sin):
        rows, tokens, _ = x.shape
        split = lambda y, heads: y.view(rows, tokens, heads, self.shape.head_dim).transpose(1, 2)
        q, k, v = split(self.q_proj(x), self.shape.heads), split(self.k_proj(x), self.shape.kv_heads), split(self.v_proj(x), self.shape.kv_heads)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.dim, shape.ff, bias=False)
        self.up_proj = nn.Linear(shape.dim, shape.ff, bias=False)
        self.down_proj = nn.Linear(shape.ff, shape.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(shape.dim, shape.eps), Norm(shape.dim, shape.eps)
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)

    def forward(self, x, cos, sin, dropout):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin), dropout, dropout > 0)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), dropout, dropout > 0)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.dim, shape.eps)
        frequency = shape.theta ** (-torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
        angle = torch.outer(torch.arange(shape.context).double(), frequency)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = (2 * shape.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 if "embed" in name else scale * weight.shape[1] ** -0.5)

    def hidden(self, ids, dropout=0.0):
        """[rows, tokens] -> [rows, tokens, dim], normed: what the head reads. In training, `dropout` is the share of values left out."""
        x = F.dropout(self.embed_tokens(ids), dropout, dropout > 0)
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin, dropout)
        return self.norm(x)

    def forward(self, ids, dropout=0.0):
        return F.linear(self.hidden(ids, dropout), self.embed_tokens.weight)

    def named_for_export(self):
        return {f"model.{name}": weight.detach() for name, weight in self.named_parameters()}
