#!/usr/bin/env python3
"""Records what the server answers, or compares it with a record: for changes after which no bit may differ.

  tools/record_answers.py --quire build/release/quire record answers.json     # with the program as it was
  tools/record_answers.py --quire build/release/quire compare answers.json    # with the program as it is
  tools/record_answers.py --quire build/release/quire --flags "--device cuda:0" invariance    # one program, all requests, every company

200 requests with every option that can change an answer, against servers with every option that must not, or that
changes it in a way of its own (KV formats, pruning). Requests come in another order and company each time. Compared are
texts, tokens, log-probabilities to the last digit, and how answers ended. Exits with 1 if anything differs.
`invariance` asks all requests of servers that must give the same answers: one client alone, many together, too little memory,
other chunks, guesses, nothing cached.
"""
import argparse
import concurrent.futures
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

SERVERS = {
    "plain": [],
    "one thread": ["--threads", "1", "--prefill-chunk", "7"],
    "starved": ["--kv-memory", "3M", "--max-seqs", "4"],
    "guessing": ["--draft", "lookup"],
    "int8": ["--kv", "int8"],
    "q4": ["--kv", "q4"],
    "f32": ["--kv", "f32"],
    "no cache": ["--no-kv-cache", "--ctx", "256"],
}
ALIKE = {  # flags, clients
    "alone": (["--max-seqs", "2"], 1),
    "together": (["--max-seqs", "64"], 64),
    "starved": (["--kv-memory", "3M", "--max-seqs", "16"], 16),
    "small chunks": (["--prefill-chunk", "7", "--max-seqs", "16"], 16),
    "guessing": (["--draft", "lookup", "--max-seqs", "16"], 16),
    "no cache": (["--no-kv-cache"], 8),
}
PROMPTS = [
    "What is a KV cache?",
    "Tell me a story about a fox who could not sleep.",
    "The red key is in the blue box. The green key is in the white box. Where is the red key?",
    "Explain prefill and decode to a child, in two sentences, and then once more in other words. " * 4,
    "1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3,",
]


def options(number):
    """The options of request `number`, the same every time."""
    rng = random.Random(number)
    body = {"max_tokens": rng.choice([1, 8, 24, 40]), "seed": number, "logprobs": True, "top_logprobs": rng.choice([0, 3])}
    body["temperature"] = rng.choice([0, 0.3, 0.8, 1.5])
    for name, values in {"top_p": [0.5, 0.9], "top_k": [1, 20], "min_p": [0.05, 0.3], "typical_p": [0.5, 0.95],
                         "repetition_penalty": [1.1, 1.5], "presence_penalty": [0.5, -0.5],
                         "frequency_penalty": [0.5, 1.5], "n": [2, 3], "stop": ["the", ". "]}.items():
        if rng.random() < 0.25:
            body[name] = rng.choice(values)
    if rng.random() < 0.2:
        body["logit_bias"] = {str(rng.randrange(300, 2000)): rng.choice([-100, 5, 20]) for _ in range(3)}
    if rng.random() < 0.1:
        body["ignore_eos"] = True
    if rng.random() < 0.15:
        body["quire"] = {"kv_keep": rng.choice(["50%", "70%"]), "kv_policy": rng.choice(["streaming", "snap", "expected", "zip"])}
    body["messages"] = [{"role": "user", "content": rng.choice(PROMPTS)}]
    return body


def ask(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)["choices"]
    except urllib.error.HTTPError as error:
        return {"status": error.code, "error": json.load(error)["error"]["code"]}


def serve(args, flags, numbers, clients=8):
    command = [args.quire, "serve", "-m", args.model, "--port", "0", *args.flags.split(), *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = ""
        for line in server.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            sys.exit(f"the server did not start: {line}")
        order = list(numbers)
        random.shuffle(order)  # whoever comes first must make no difference
        with concurrent.futures.ThreadPoolExecutor(clients) as clients:
            answers = list(clients.map(lambda n: ask(found.group(1), options(n)), order))
        return {str(n): answer for n, answer in sorted(zip(order, answers))}
    finally:
        server.terminate()
        server.wait()


def is_refusal(answer):
    return isinstance(answer, dict)


def invariance(args):
    """All requests of every server of ALIKE, against the first one's answers. Returns how many differ."""
    first, different = None, 0
    for name, (flags, clients) in ALIKE.items():
        begin = time.monotonic()
        answers = serve(args, flags, range(args.requests), clients)
        first = first or answers
        asked = [n for n in first if not is_refusal(first[n]) and not is_refusal(answers[n])]
        wrong = [n for n in asked if first[n] != answers[n]]
        different += len(wrong)
        print(f"{name}: {len(asked)} answers, {len(answers) - len(asked)} refusals, {len(wrong)} differ from those of one client alone "
              f"({time.monotonic() - begin:.0f} s)", flush=True)
        for n in wrong[:5]:
            print(f"  request {n}: {json.dumps(options(int(n)))}\n    alone {json.dumps(first[n])[:300]}\n    here  {json.dumps(answers[n])[:300]}")
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare", "invariance"])
    parser.add_argument("file", nargs="?", default="answers.json")
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--model", default="house")
    parser.add_argument("--flags", default="", help="more flags for every server")
    parser.add_argument("--requests", type=int, default=200)
    args = parser.parse_args()
    if args.what == "invariance":
        sys.exit(1 if invariance(args) else 0)
    each = -(-args.requests // len(SERVERS))
    answers = {name: serve(args, flags, range(i * each, (i + 1) * each))
               for i, (name, flags) in enumerate(SERVERS.items())}
    if args.what == "record":
        with open(args.file, "w", encoding="utf-8") as file:
            json.dump(answers, file, indent=1)
        print(f"{sum(map(len, answers.values()))} answers in {args.file}, {os.path.getsize(args.file)} bytes")
        return
    with open(args.file, encoding="utf-8") as file:
        before = json.load(file)
    different = [(name, n) for name in before for n in before[name] if before[name][n] != answers.get(name, {}).get(n)]
    for name, n in different[:10]:
        print(f"server '{name}', request {n}: {json.dumps(options(int(n)))}\n  was {json.dumps(before[name][n])[:300]}\n"
              f"  is  {json.dumps(answers.get(name, {}).get(n))[:300]}")
    refused = sum(is_refusal(a) for name in answers for a in answers[name].values())
    print(f"{sum(map(len, before.values()))} answers compared, {refused} of them refusals, {len(different)} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
