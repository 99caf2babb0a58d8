#!/usr/bin/env python3
"""The same requests on one GPU: quire's engine and plain Transformers (PyTorch, bf16, scaled dot-product attention), in turns.

    compare_transformers.py MODEL.gguf [--bench build/release/bench/serving_bench] [--rounds 2]

MODEL is `quire synth --shape llama-8b --type bf16`; Transformers gets random weights of that shape, since the pace does not depend on
them. Each case is so many requests that come at once, with so many tokens in and out and nothing in common; Transformers answers them by
one call of `generate`, greedily. Figures are seconds until all are answered, first to last, best of the rounds.
"""
import argparse
import gc
import json
import subprocess
import time

CASES = [(1, 512, 128), (1, 2048, 128), (16, 512, 128), (64, 512, 128)]  # requests, tokens in, tokens out


def make_peer():
    import torch
    import transformers
    config = transformers.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                                      num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).eval()
    print(f"Transformers {transformers.__version__}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    return model


def run_peer(model, requests, tokens_in, tokens_out):
    import torch
    prompt = torch.randint(0, 128256, (requests, tokens_in), device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.inference_mode():
        model(prompt, logits_to_keep=1)
    torch.cuda.synchronize()
    first = time.perf_counter()
    with torch.inference_mode():
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens_out, min_new_tokens=tokens_out, do_sample=False)
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - first, "prefill_seconds": first - start}


def run_quire(o, requests, tokens_in, tokens_out):
    command = [*o.bench.split(), o.model, "--clients", str(requests), "--prefix", "0", "--tail", str(tokens_in), "--gen", str(tokens_out), "--chunk", "2048"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bench", default="build/release/bench/serving_bench")
    parser.add_argument("--rounds", type=int, default=2)
    o = parser.parse_args()
    peer = make_peer()
    run_peer(peer, 1, 64, 8)
    for case in CASES:
        requests, tokens_in, tokens_out = case
        peers = [run_peer(peer, *case) for _ in range(o.rounds)]
        ours = [run_quire(o, *case) for _ in range(o.rounds)]
        theirs, own = min(p["seconds"] for p in peers), min(r["seconds"] for r in ours)
        print(f"{requests} x {tokens_in} in, {tokens_out} out: Transformers {theirs:.3f} s (prompts {min(p['prefill_seconds'] for p in peers):.3f} s), "
              f"quire {own:.3f} s (first token {min(r['ttft_ms_p50'] for r in ours):.0f} ms): latency {100 * (1 - own / theirs):.0f} % lower, "
              f"throughput {theirs / own:.2f} times ({requests * tokens_out / theirs:.0f} and {requests * tokens_out / own:.0f} tok/s)", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
