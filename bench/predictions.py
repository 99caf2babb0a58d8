#!/usr/bin/env python3
"""What `quire inspect --what-if` predicts beside what `quire bench` measures, turn by turn; medians as a Markdown table."""

import argparse
import json
import statistics
import subprocess

PROMPTS = (128, 512, 2048)
DEPTHS = (64, 1024, 4000)
GENERATED = 8


def output_of(arguments):
    return json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def predict(quire, model, prompts, depths):
    told = output_of([quire, "inspect", model, "--json", "--what-if", "kv=int8",
                      "--prompt", ",".join(map(str, prompts)), "--depth", ",".join(map(str, depths))])
    times = {}
    for case in (told["base"], told["what_if"]):
        for row in case["ttft"]:
            times[case["kv"], "TTFT", row["prompt"]] = row["ms"]
        for row in case["itl"]:
            times[case["kv"], "ITL", row["depth"]] = row["ms"]
    return times


def measure(quire, model, kv, prompts, depths):
    # `bench` decodes a few tokens from a depth on: half of them before the depth that is meant.
    told = output_of([quire, "bench", "-m", model, "--json", "--kv", kv, "--seconds", "0.2", "--batch", "1",
                      "--gen", str(GENERATED), "--prompt", ",".join(map(str, prompts)),
                      "--depth", ",".join(str(depth - GENERATED // 2) for depth in depths)])
    times = {}
    for row in told["results"]:
        if row["phase"] == "prefill":
            times[kv, "TTFT", row["tokens"]] = row["tokens"] / row["tok_s"] * 1e3
        else:
            times[kv, "ITL", row["depth"] + GENERATED // 2] = 1e3 / row["tok_s"]
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--model", default="house")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")], default=PROMPTS)
    parser.add_argument("--depths", type=lambda text: [int(n) for n in text.split(",")], default=DEPTHS)
    options = parser.parse_args()
    predicted, measured = {}, {}
    for _ in range(options.rounds):
        for key, ms in predict(options.quire, options.model, options.prompts, options.depths).items():
            predicted.setdefault(key, []).append(ms)
        for kv in ("f16", "int8"):
            for key, ms in measure(options.quire, options.model, kv, options.prompts, options.depths).items():
                measured.setdefault(key, []).append(ms)
    print("| KV | what | predicted ms, median | measured | off by | predicted ms, least | measured | off by |")
    print("|---|---|---|---|---|---|---|---|")
    for key in predicted:
        kv, what, size = key
        cells = [kv, f"{what} {'of' if what == 'TTFT' else 'at'} {size}"]
        # Whatever disturbs a run makes it slower: where the machine is shared, the least say more.
        for of in (statistics.median, min):
            says, is_ = of(predicted[key]), of(measured[key])
            cells += [f"{says:.1f}", f"{is_:.1f}", f"{(says / is_ - 1) * 100:+.0f} %"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
