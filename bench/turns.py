#!/usr/bin/env python3
"""A conversation of many turns: what each computes, and how long its first token takes.

    turns.py MODEL.gguf... [--quire build/release/quire] [--turns 20] [--new 60] [--answer 40] [--threads 1]

Starts `quire serve` for each model, and asks it in token ids, so that what was said is the same tokens in the next turn. Prints for each turn the tokens of the
prompt, those that were computed, those that are new since the turn before, and the milliseconds to the first token.
"""
import argparse
import http.client
import json
import random
import statistics
import subprocess
import time


def ask(port, prompt, answer):
    """The answer's tokens, seconds to the first of them, and how many of the prompt were cached."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"prompt": prompt, "max_tokens": answer, "temperature": 0, "stream": True, "ignore_eos": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}}
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    tokens, first, cached = [], None, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event["choices"]:
            if choice.get("token_ids"):
                first = first or time.perf_counter() - start
                tokens += choice["token_ids"]
        if event.get("usage"):
            cached = event["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
    connection.close()
    return tokens, first, cached


def converse(options, path, port):
    server = subprocess.Popen([options.quire, "serve", "-m", path, "--port", str(port), "--threads", str(options.threads), "--max-seqs", "2",
                               "--ctx", str(options.turns * (options.new + options.answer) + 64)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            if "http://" in line:
                break
        rest = random.Random(7)
        prompt, known, turns = [], 0, []
        for _ in range(options.turns):
            prompt += [rest.randrange(300, 5000) for _ in range(options.new)]
            answer, seconds, cached = ask(port, prompt, options.answer)
            turns.append({"prompt": len(prompt), "new": len(prompt) - known, "computed": len(prompt) - cached, "ttft_ms": 1000 * seconds})
            known = len(prompt)
            prompt = prompt + answer
        return turns
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description="What the turns of a conversation compute.")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--quire", default="build/release/quire")
    for name, value in (("turns", 20), ("new", 60), ("answer", 40), ("threads", 1), ("port", 8391)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    for path in options.models:
        turns = converse(options, path, options.port)
        print(path)
        for i, turn in enumerate(turns):
            print(f"  turn {i + 1:2}: {turn['prompt']:5} tokens, {turn['new']:4} since the last, {turn['computed']:4} computed, first token {turn['ttft_ms']:8.1f} ms")
        later = turns[1:]
        print(f"  after the first: {statistics.mean(t['computed'] for t in later):.1f} computed of {statistics.mean(t['prompt'] for t in later):.1f} tokens, "
              f"first token {statistics.median(t['ttft_ms'] for t in later):.1f} ms at the median", flush=True)


if __name__ == "__main__":
    main()
