#!/usr/bin/env python3
"""Many clients with a common beginning: quire's engine and llama.cpp's library on the same file, one after the other.

    compare_serving.py MODEL.gguf [--bench build/release/bench/serving_bench] [--clients 32] [--prefix 1000] [--tail 32] [--gen 32] [--rounds 2]

llama.cpp (through llama-cpp-python) computes the common tokens once, copies that sequence to all clients, computes their own tokens in one
batch and then decodes one token of each at a time: the best its library offers for this. quire gets 32 requests and finds out by itself.
With --transformers N plain Transformers (PyTorch, f32, random weights of the same shape) answers N clients in one `generate`; it has no way to
share the prefix between them, so N clients are N whole prompts, and few are enough to see its pace.
Times run from the first token computed to the last answered; the figure is answer tokens per second, the best of the rounds.
"""
import argparse
import json
import subprocess
import sys
import time


def run_llama_cpp(o):
    import llama_cpp as c
    silent = c.llama_log_callback(lambda level, text, data: None)
    c.llama_log_set(silent, None)
    c.llama_backend_init()
    model_options = c.llama_model_default_params()
    model_options.n_gpu_layers = 0
    model = c.llama_model_load_from_file(o.model.encode(), model_options)
    vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    options = c.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch, options.n_seq_max = o.prefix + o.clients * (o.tail + o.gen + 8), 2048, 512, o.clients
    options.kv_unified = True
    options.n_threads = options.n_threads_batch = o.threads
    ctx = c.llama_init_from_model(model, options)
    memory = c.llama_get_memory(ctx)

    def decode(rows):
        b = c.llama_batch_init(len(rows), 0, 1)
        b.n_tokens = len(rows)
        for i, (token, position, sequence, wants) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, position, 1, sequence, wants
        if c.llama_decode(ctx, b) != 0:
            sys.exit("llama.cpp cannot compute")
        c.llama_synchronize(ctx)
        c.llama_batch_free(b)

    token = lambda i: (7919 * i + 13) % vocab
    decode([(token(i), i, 0, False) for i in range(8)])
    c.llama_memory_clear(memory, True)
    start, gaps = time.perf_counter(), []
    for begin in range(0, o.prefix, 512):
        decode([(token(i), i, 0, False) for i in range(begin, min(begin + 512, o.prefix))])
    for client in range(1, o.clients):
        c.llama_memory_seq_cp(memory, 0, client, 0, o.prefix)
    rows = [(token(1000 * client + i), o.prefix + i, client, i + 1 == o.tail) for client in range(o.clients) for i in range(o.tail)]
    for begin in range(0, len(rows), 512):
        decode(rows[begin:begin + 512])
    for step in range(1, o.gen):  # the first token came with the prompt
        before = time.perf_counter()
        decode([(token(step + client), o.prefix + o.tail + step - 1, client, True) for client in range(o.clients)])
        gaps.append(1000 * (time.perf_counter() - before))
    seconds = time.perf_counter() - start
    gaps.sort()
    print(json.dumps({"seconds": seconds, "answer_tok_s": o.clients * o.gen / seconds, "gap_ms_p50": gaps[len(gaps) // 2], "gap_ms_p99": gaps[int(0.99 * len(gaps))]}))


def run_transformers(o):
    import gguf
    import torch
    import transformers
    torch.set_num_threads(o.threads)
    fields = gguf.GGUFReader(o.model).fields
    value = lambda key: fields[f"llama.{key}"].contents()
    config = transformers.LlamaConfig(
        hidden_size=value("embedding_length"), intermediate_size=value("feed_forward_length"), num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"), num_key_value_heads=value("attention.head_count_kv"), vocab_size=value("vocab_size"),
        tie_word_embeddings=True, max_position_embeddings=8192)
    model = transformers.LlamaForCausalLM(config).eval()
    clients = o.transformers
    prompt = torch.randint(0, config.vocab_size, (clients, o.prefix + o.tail))
    prompt[:, :o.prefix] = prompt[0, :o.prefix]
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=o.gen, min_new_tokens=o.gen, do_sample=False)
    seconds = time.perf_counter() - start
    print(json.dumps({"clients": clients, "seconds": seconds, "answer_tok_s": clients * o.gen / seconds}))


def main():
    parser = argparse.ArgumentParser(description="Many clients with a common beginning: quire beside llama.cpp.")
    parser.add_argument("model")
    parser.add_argument("--bench", default="build/release/bench/serving_bench")
    for name, default in (("clients", 32), ("prefix", 1000), ("tail", 32), ("gen", 32), ("threads", 2), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--transformers", type=int, default=0, help="clients that plain Transformers answers (0: none)")
    parser.add_argument("--only-transformers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only-llama-cpp", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.only_llama_cpp:
        return run_llama_cpp(o)
    if o.only_transformers:
        return run_transformers(o)
    shape = [f for name in ("clients", "prefix", "tail", "gen", "threads") for f in (f"--{name}", str(getattr(o, name)))]
    best = {}
    for _ in range(o.rounds):
        for name, command in (("quire", [o.bench, o.model, *shape]), ("llama.cpp", [sys.executable, __file__, o.model, *shape, "--only-llama-cpp"])):
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(name, json.dumps(result), flush=True)
            if name not in best or result["answer_tok_s"] > best[name]["answer_tok_s"]:
                best[name] = result
    if o.transformers > 0:
        command = [sys.executable, __file__, o.model, *shape, "--only-transformers", "--transformers", str(o.transformers)]
        print("Transformers", subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="", flush=True)
    ratio = best["quire"]["answer_tok_s"] / best["llama.cpp"]["answer_tok_s"]
    print(f"quire {best['quire']['answer_tok_s']:.1f} tok/s, llama.cpp {best['llama.cpp']['answer_tok_s']:.1f} tok/s: {ratio:.2f} times")


if __name__ == "__main__":
    main()
