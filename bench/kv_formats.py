#!/usr/bin/env python3
"""What each format of the KV cache costs and saves: bytes, perplexity, divergence, recall, answers, speed.

    kv_formats.py --model FILE [--sentences] [--text FILE] [--formats f16,int8,...] [--limit N] [--depth N] [--rounds N]

Decode speed is measured in rounds over all formats, so that what else the machine does meets them alike; the median is
told. Prints a Markdown table."""
import argparse
import json
import statistics
import subprocess

FORMATS = "f16,bf16,int8,fp8,k=int8;v=q4,q4,q4_plain"


def quire(args, program):
    done = subprocess.run([program, *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(args)}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def quality(args, kv):
    """Of one format against f16, on a text."""
    if kv == "f16":
        return None
    text = [args.text] if args.text else []
    return quire(["kv-check", "-m", args.model, "--kv", kv, "--json", *text], args.quire)


def answers(args, kv):
    found = quire(["eval", "house", "-m", args.model, "--kv", kv, "--only", "reading,needles", "--needle-tokens",
                   str(args.needle_tokens), "--limit", str(args.limit), "--json",
                   *(["--sentences"] if args.sentences else [])], args.quire)
    needles = found["needles"][0]
    reading = [found["reading"][part] for part in ("new", "unseen")]
    return (f"{needles['right']} of {needles['asked']}",
            f"{sum(r['right'] for r in reading)} of {sum(r['asked'] for r in reading)}")


def decode(args, kv):
    found = quire(["bench", "-m", args.model, "--kv", kv, "--json", "--seconds", "0.3", "--batch", "1", "--gen", "8",
                   "--prompt", "16", "--depth", str(args.depth)], args.quire)
    return next(r["tok_s"] for r in found["results"] if r["phase"] == "decode" and r["depth"] == args.depth)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--model", default="house")
    parser.add_argument("--sentences", action="store_true", help="the model answers in sentences")
    parser.add_argument("--text", help="for perplexity and divergence; default: kv-check's own")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--limit", type=int, default=40, help="questions of each kind")
    parser.add_argument("--needle-tokens", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", default="", help="quality,answers,decode: what not to measure")
    args = parser.parse_args()
    formats = [f.replace(";", ",") for f in args.formats.split(",")]
    skip = args.skip.split(",")

    speeds = {kv: [] for kv in formats}
    for _ in range(0 if "decode" in skip else args.rounds):
        for kv in formats:
            speeds[kv].append(decode(args, kv))
    print("| KV | bytes of a token | perplexity | divergence, mean (99 %) | same top token | needles | questions "
          f"| decode at {args.depth}, tok/s |")
    print("|---|---|---|---|---|---|---|---|")
    for kv in formats:
        found = None if "quality" in skip else quality(args, kv)
        row = [kv, "", "", "", "", "", "", ""]
        if found:
            row[1:5] = [f"{found['bytes_per_token']:,}",
                        f"{found['perplexity']:.4f} ({found['perplexity'] / found['perplexity_f16'] - 1:+.2%})",
                        f"{found['divergence_mean']:.5f} ({found['divergence_p99']:.4f})", f"{found['agreement']:.1%}"]
        if "answers" not in skip:
            row[5:7] = answers(args, kv)
        if speeds[kv]:
            row[7] = f"{statistics.median(speeds[kv]):.1f}"
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
