#!/usr/bin/env python3
"""Many streaming clients on one server: answer tokens per second, time to the first token, gaps between tokens.

  python3 bench/server_load.py [--url http://127.0.0.1:8080] [--clients 32] [--prefix 1000] [--tail 32] [--gen 32]
                               [--rounds 3] [--vocab 1000] [--api-key KEY]

loads a server that runs. All clients come at once and share the first `prefix` tokens; each has `tail` tokens of its
own and wants `gen` tokens. Every round has another prefix. The context of the server must hold prefix + tail + gen.

  python3 bench/server_load.py --compare MODEL [--quire build/release/quire] [--bench build/release/bench/serving_bench]
                               [--clients 32] [--prefix 1000] [--tail 32] [--gen 32] [--rounds 5] [--threads N]

shows what the server costs: serving_bench (the engine driven directly; built with -DQUIRE_BENCH=ON) and a server that
is started for the purpose do the same work with the same options, by turns, each from a cold start. `overhead` is the
median over the rounds of 1 - server / engine, in answer tokens per second, prompts included.

The clients run in this process and take part of the machine: `client_cpu_share` says how much of one core. Prints one
JSON object. Needs nothing but Python.
"""
import argparse
import asyncio
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
import urllib.parse


def random_tokens(state, count, vocab):
    """As serving_bench has them."""
    tokens = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        tokens.append((state >> 33) % vocab)
    return tokens


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class StreamClient(asyncio.Protocol):
    """One answer. Does as little as it can: what it computes, the server cannot."""

    def __init__(self, request):
        self.request = request
        self.received = []
        self.moments = []  # of each piece that came
        self.sent_at = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def ask(self):
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data):
        self.moments.append(time.perf_counter())
        self.received.append(data)
        if data.endswith(b"0\r\n\r\n") and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error):
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))

    def outcome(self):
        """Tokens, ms to the first of them, and the gaps between what came."""
        everything = b"".join(self.received)
        if not everything.startswith(b"HTTP/1.1 200"):
            raise SystemExit("the server refused: " + everything.decode(errors="replace")[:500])
        if b"data: [DONE]" not in everything:
            raise SystemExit("an answer is not complete")
        usage = re.findall(rb'"completion_tokens":(\d+)', everything)
        # The head may come alone.
        text = [t for t, data in zip(self.moments, self.received) if b"data: {" in data]
        gaps = [1000 * (b - a) for a, b in zip(text, text[1:])]
        return int(usage[-1]), 1000 * (text[0] - self.sent_at), gaps


def request_bytes(host, body, key):
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    if key:
        head += f"Authorization: Bearer {key}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


async def load(host, port, options, vocab, seed):
    """One round: all clients at once."""
    shared = random_tokens(seed, options.prefix, vocab)
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(options.clients):
        body = {"prompt": shared + random_tokens(99 + seed + number, options.tail, vocab), "max_tokens": options.gen,
                "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        request = request_bytes(host, body, options.api_key)
        _, client = await loop.create_connection(lambda request=request: StreamClient(request), host, port)
        clients.append(client)
    begin, cpu = time.perf_counter(), time.process_time()
    for client in clients:
        client.ask()
    await asyncio.gather(*(client.done for client in clients))
    seconds, cpu = max(c.moments[-1] for c in clients) - begin, time.process_time() - cpu
    outcomes = [client.outcome() for client in clients]
    for client in clients:
        client.transport.close()
    first = [o[1] for o in outcomes]
    gaps = [gap for o in outcomes for gap in o[2]]
    return {"seconds": seconds, "answer_tokens": sum(o[0] for o in outcomes),
            "answer_tok_s": sum(o[0] for o in outcomes) / seconds,
            "ttft_ms_p50": percentile(first, 0.5), "ttft_ms_p90": percentile(first, 0.9), "ttft_ms_max": max(first),
            "gap_ms_p50": percentile(gaps, 0.5), "gap_ms_p99": percentile(gaps, 0.99),
            "gap_ms_max": max(gaps, default=0.0), "client_cpu_share": cpu / seconds}


def measure(options):
    url = urllib.parse.urlparse(options.url)
    rounds = [asyncio.run(load(url.hostname, url.port or 80, options, options.vocab, 1 + 1000 * r))
              for r in range(options.rounds)]
    return {"clients": options.clients, "prefix_tokens": options.prefix, "tail_tokens": options.tail,
            "answer_tokens": options.gen, "answer_tok_s": statistics.median(r["answer_tok_s"] for r in rounds),
            "rounds": rounds}


def run_engine(options):
    command = [options.bench, options.compare]
    for name in ("clients", "prefix", "tail", "gen", "threads"):
        if getattr(options, name) is not None:
            command += [f"--{name}", str(getattr(options, name))]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def run_server(options, vocab, kv_bytes):
    command = [options.quire, "serve", "-m", options.compare, "--port", "0", "--max-seqs", str(options.clients + 1),
               "--max-queue", str(options.clients), "--ctx", str(options.prefix + options.tail + options.gen),
               "--itl-target", "0", "--kv-memory", str(kv_bytes)]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        said = ""
        while not (found := re.search(r"at http://127\.0\.0\.1:(\d+)", said)):
            line = server.stderr.readline()
            if not line:
                raise SystemExit("the server did not start: " + said)
            said += line
        return asyncio.run(load("127.0.0.1", int(found[1]), options, vocab, 1))
    finally:
        server.terminate()
        server.communicate()


def compare(options):
    inspected = subprocess.run([options.quire, "inspect", "--json", options.compare], check=True, stdout=subprocess.PIPE)
    vocab = json.loads(inspected.stdout)["vocabulary"]
    engine, server = [run_engine(options)], []  # the first is not counted: it warms the file and says the memory
    kv_bytes = engine.pop()["kv_capacity_bytes"]
    run_server(options, vocab, kv_bytes)
    for number in range(options.rounds):
        for engine_first in ((True, False) if number % 2 == 0 else (False, True)):
            if engine_first:
                engine.append(run_engine(options))
            else:
                server.append(run_server(options, vocab, kv_bytes))
    overheads = [1 - s["answer_tok_s"] / e["answer_tok_s"] for s, e in zip(server, engine)]
    return {"model": pathlib.Path(options.compare).name, "clients": options.clients, "prefix_tokens": options.prefix,
            "tail_tokens": options.tail, "answer_tokens": options.gen,
            "engine_tok_s": statistics.median(e["answer_tok_s"] for e in engine),
            "server_tok_s": statistics.median(s["answer_tok_s"] for s in server),
            "overhead": statistics.median(overheads), "overheads": overheads, "engine": engine, "server": server}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--vocab", type=int, default=1000, help="prompts are made of the tokens below this one")
    parser.add_argument("--compare", metavar="MODEL", help="a model file: measure what the server costs")
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--bench", default="build/release/bench/serving_bench")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--prefix", type=int, default=1000)
    parser.add_argument("--tail", type=int, default=32)
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 5 if options.compare else 3
    json.dump(compare(options) if options.compare else measure(options), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
