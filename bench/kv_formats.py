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
    """Of one format beside f16, on a text."""
    text = [args.text] if args.text else []
    found = quire(["kv-check", "-m", args.model, "--kv", "bf16" if kv == "f16" else kv, "--json", *text], args.quire)
    if kv == "f16":
        return {"bytes": found["bytes_per_token_f16"], "perplexity": found["perplexity_f16"]}
    return {"bytes": found["bytes_per_token"], "perplexity": found["perplexity"],
            "change": found["perplexity"] / found["perplexity_f16"] - 1, "divergence": found["divergence_mean"],
            "divergence_p99": found["divergence_p99"], "agreement": found["agreement"]}


def answers(args, kv):
    found = quire(["eval", "house", "-m", args.model, "--kv", kv, "--only", "reading,needles", "--needle-tokens",
                   str(args.needle_tokens), "--limit", str(args.limit), "--json",
                   *(["--sentences"] if args.sentences else [])], args.quire)
    needles = found["needles"][0]
    reading = [found["reading"][part] for part in ("new", "unseen")]
    return {"needles": needles["right"], "needles_asked": needles["asked"],
            "questions": sum(r["right"] for r in reading), "questions_asked": sum(r["asked"] for r in reading)}


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
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--skip", default="", help="quality,answers,decode: what not to measure")
    args = parser.parse_args()
    formats = [f.replace(";", ",") for f in args.formats.split(",")]
    skip = args.skip.split(",")

    speeds = {kv: [] for kv in formats}
    for _ in range(0 if "decode" in skip else args.rounds):
        for kv in formats:
            speeds[kv].append(decode(args, kv))
    print("| KV | bytes of a token | perplexity | divergence, mean (99 %) | same top token | needles | questions "
          f"| decode at {args.depth}, tok/s |\n|---|---|---|---|---|---|---|---|")
    rows = []
    for kv in formats:
        row = {"kv": kv}
        if "quality" not in skip:
            row.update(quality(args, kv))
        if "answers" not in skip:
            row.update(answers(args, kv))
        if speeds[kv]:
            row["tok_s"] = statistics.median(speeds[kv])
        rows.append(row)
        print("| " + " | ".join(cells(row)) + " |", flush=True)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"model": args.model, "depth": args.depth, "rows": rows}, out, indent=1)


def cells(row):
    told = [row["kv"], "", "", "", "", "", "", ""]
    if "bytes" in row:
        told[1] = f"{row['bytes']:,}"
        told[2] = f"{row['perplexity']:.4f}"
    if "change" in row:
        told[2] += f" ({row['change']:+.2%})"
        told[3] = f"{row['divergence']:.5f} ({row['divergence_p99']:.4f})"
        told[4] = f"{row['agreement']:.1%}"
    if "needles" in row:
        told[5:7] = [f"{row[what]} of {row[what + '_asked']}" for what in ("needles", "questions")]
    if "tok_s" in row:
        told[7] = f"{row['tok_s']:.1f}"
    return told


if __name__ == "__main__":
    main()
