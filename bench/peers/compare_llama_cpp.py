#!/usr/bin/env python3
"""quire and llama.cpp on the same files, one after the other, several times: prefill, decode of one, decode of many together.

    compare_llama_cpp.py MODEL.gguf... [--quire build/release/quire] [--threads 2] [--rounds 3] [--prompt 512] [--gen 32] [--batch 32] [--json FILE]

Needs llama-cpp-python. llama.cpp runs with its defaults (flash attention as it chooses, f16 cache) in a process of its own. Each figure is the
median of the rounds, in tokens per second; shares are those of quire's own bench, which measures the machine in the same run.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time


def measure_llama_cpp(path, threads, prompt, gen, batch):
    """Runs in a process of its own: prints one JSON object."""
    import llama_cpp as c
    silent = c.llama_log_callback(lambda level, text, data: None)
    c.llama_log_set(silent, None)
    c.llama_backend_init()
    model_options = c.llama_model_default_params()
    model_options.n_gpu_layers = 0
    model = c.llama_model_load_from_file(path.encode(), model_options)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    vocab_size = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))

    def context(tokens, sequences):
        options = c.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch, options.n_seq_max = tokens * sequences, 2048, 512, sequences
        options.n_threads = options.n_threads_batch = threads
        return c.llama_init_from_model(model, options)

    def decode(ctx, tokens, positions, sequences, wants):
        b = c.llama_batch_init(len(tokens), 0, 1)
        b.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, positions[i], 1, sequences[i], wants[i]
        if c.llama_decode(ctx, b) != 0:
            sys.exit("llama.cpp cannot compute")
        c.llama_synchronize(ctx)
        c.llama_batch_free(b)

    ids = [(7919 * i + 13) % vocab_size for i in range(max(prompt, gen, batch) + 8)]
    result = {}
    ctx = context(max(prompt, gen) + 8, 1)
    decode(ctx, ids[:8], list(range(8)), [0] * 8, [False] * 7 + [True])  # warm
    for _ in range(2):
        c.llama_memory_clear(c.llama_get_memory(ctx), True)
        start = time.perf_counter()
        decode(ctx, ids[:prompt], list(range(prompt)), [0] * prompt, [False] * (prompt - 1) + [True])
        result["prefill"] = max(result.get("prefill", 0), prompt / (time.perf_counter() - start))
    c.llama_memory_clear(c.llama_get_memory(ctx), True)
    decode(ctx, ids[:1], [0], [0], [True])
    start = time.perf_counter()
    for i in range(1, gen + 1):
        decode(ctx, [ids[i]], [i], [0], [True])
    result["decode"] = gen / (time.perf_counter() - start)
    c.llama_free(ctx)
    if batch > 1:
        ctx = context(64, batch)
        every = list(range(batch))
        decode(ctx, ids[:batch], [0] * batch, every, [True] * batch)
        steps = max(4, gen // 4)
        start = time.perf_counter()
        for i in range(1, steps + 1):
            decode(ctx, ids[:batch], [i] * batch, every, [True] * batch)
        result["together"] = steps * batch / (time.perf_counter() - start)
    print(json.dumps(result))


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def measure_quire(options, path):
    batches = "1" if options.batch < 2 else f"1,{options.batch}"
    found = run([options.quire, "bench", "-m", path, "--threads", str(options.threads), "--prompt", str(options.prompt), "--gen", str(options.gen), "--batch", batches, "--seconds", "1", "--json"])
    result = {"machine": found["machine"], "shares": {}}
    for entry in found["results"]:
        name = "prefill" if entry["phase"] == "prefill" else "decode" if entry["batch"] == 1 else "together"
        result[name], result["shares"][name] = entry["tok_s"], entry["share"]
    return result


def main():
    if sys.argv[1:2] == ["--child"]:
        return measure_llama_cpp(sys.argv[2], *map(int, sys.argv[3:7]))
    parser = argparse.ArgumentParser(description="quire and llama.cpp on the same files.")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--quire", default="build/release/quire")
    for name, value in (("threads", 2), ("rounds", 3), ("prompt", 512), ("gen", 32), ("batch", 32)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", help="write everything that was measured to this file")
    options = parser.parse_args()
    everything = []
    print(f"{'model':24} {'phase':10} {'quire':>9} {'llama.cpp':>10} {'ratio':>6} {'share':>6}")
    for path in options.models:
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(measure_quire(options, path))
            theirs.append(run([sys.executable, __file__, "--child", path, *map(str, (options.threads, options.prompt, options.gen, options.batch))]))
        everything.append({"model": path, "quire": ours, "llama.cpp": theirs})
        for phase in ("prefill", "decode", "together"):
            if phase in ours[0]:
                a, b = (statistics.median(r[phase] for r in runs) for runs in (ours, theirs))
                share = statistics.median(r["shares"][phase] for r in ours)
                print(f"{path.split('/')[-1]:24} {phase:10} {a:9.1f} {b:10.1f} {a / b:6.2f} {100 * share:5.0f} %", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
