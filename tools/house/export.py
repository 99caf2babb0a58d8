#!/usr/bin/env python3
"""Turns the trained weights into the house model's files, with quire's own converter.

    export.py RUN OUT [--quire build/release/quire] [--type q8_0]

RUN holds what train.py wrote (house-*.safetensors, draft-*.safetensors) and tokenizer.json; OUT gets house.gguf and draft.gguf. The folders
in the form of Hugging Face that are converted stay in RUN/house and RUN/draft.
"""
import argparse
import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

from safetensors import safe_open

from model import DRAFT, HOUSE
from tokenizer import BEGIN, END

TEMPLATE = ("{{ bos_token }}{% for message in messages %}"
            "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('The house model knows the roles system, user and assistant, not ' + message['role'] + '.') }}{% endif %}"
            "<|{{ message['role'] }}|>{{ message['content'] | trim }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_folder(run, name, shape):
    """The model as Hugging Face would save it."""
    folder = run / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shards, weight_map = sorted(run.glob(f"{name}-*.safetensors")), {}
    if not shards:
        raise SystemExit(f"no {name}-*.safetensors in {run}")
    for shard in shards:
        target = shard.name.replace(name, "model", 1)
        shutil.copy(shard, folder / target)
        with safe_open(shard, "np") as file:
            weight_map |= {key: target for key in file.keys()}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    write_json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16", "hidden_size": shape.dim, "intermediate_size": shape.ff, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "vocab_size": shape.vocab, "max_position_embeddings": shape.context,
        "rope_theta": shape.theta, "rms_norm_eps": shape.eps, "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": ids[BEGIN], "eos_token_id": ids[END]})
    write_json(folder / "generation_config.json", {"bos_token_id": ids[BEGIN], "eos_token_id": ids[END], "temperature": 0.7, "top_p": 0.95, "do_sample": True})
    # The conversation begins with <|begin|>, and so does plain text.
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": BEGIN, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                   "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                                   "special_tokens": {BEGIN: {"id": BEGIN, "ids": [ids[BEGIN]], "tokens": [BEGIN]}}}
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": shape.context,
                                                  "chat_template": TEMPLATE})
    return folder


def main():
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description="Turns the trained weights into the house model's files.")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quire", default=str(root / "build" / "release" / "quire"))
    parser.add_argument("--type", default="q8_0")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, shape in (("house", HOUSE), ("draft", DRAFT)):
        if not list(options.run.glob(f"{name}-*.safetensors")):
            print(f"no {name} model in {options.run}")
            continue
        folder = write_folder(options.run, name, dataclasses.replace(shape))
        subprocess.run([options.quire, "quantize", "-m", str(folder), "--type", options.type, "-o", str(options.out / f"{name}.gguf")], check=True)
        print(f"{options.out / name}.gguf: {(options.out / f'{name}.gguf').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
