#!/usr/bin/env python3
"""What each way to prune a prompt's KV cache keeps of the answers, and what it frees and costs.

    kv_policies.py [--model FILE] [--limit N] [--kept 100%,75%,50%,30%] [--policies zip,...] [--json FILE]

Answers: questions about texts and facts among other texts, where only the text before the question is pruned, so that no
policy knows what will be asked. Bytes and time: one prompt of --prompt-tokens, greedy, the KV cache at its end and the time
to its first token. Prints a Markdown table."""
import argparse
import json
import statistics
import subprocess

WORDS = "the clerk counted forty lamps and wrote their names into a long green book before the rain began again "


def quire(program, args, text=None):
    done = subprocess.run([program, *args], capture_output=True, text=True, input=text)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(args)}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def answers(args, kept, policy):
    flags = [] if policy is None else ["--kv-keep", kept, "--kv-policy", policy]
    found = quire(args.quire, ["eval", "house", "-m", args.model, "--kv", args.kv, "--only", "reading,needles",
                               "--needle-tokens", str(args.needle_tokens), "--limit", str(args.limit), "--json",
                               *(["--sentences"] if args.sentences else []), *flags])
    reading = [found["reading"][part] for part in ("new", "unseen")]
    return {"needles": found["needles"][0]["right"], "needles_asked": found["needles"][0]["asked"],
            "questions": sum(r["right"] for r in reading), "questions_asked": sum(r["asked"] for r in reading)}


def cost(args, kept, policy):
    """Bytes of the cache and milliseconds to the first token, the median of some rounds."""
    flags = [] if policy is None else ["--kv-keep", kept, "--kv-policy", policy]
    text = (WORDS * args.prompt_tokens)[: args.prompt_tokens * 4]
    found = [quire(args.quire, ["run", "-m", args.model, "--kv", args.kv, "--raw", "--temperature", "0", "-n", "4",
                                "--ignore-eos", "--json", *flags, "-"], text) for _ in range(args.rounds)]
    return {"prompt": found[0]["prompt_tokens"], "bytes": found[0]["kv"]["bytes"],
            "ttft_ms": statistics.median(f["timings"]["ttft_ms"] for f in found)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--model", default="house")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--sentences", action="store_true", help="the model answers in sentences")
    parser.add_argument("--limit", type=int, default=40, help="questions of each kind")
    parser.add_argument("--needle-tokens", type=int, default=1024)
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", default="75%,50%,30%")
    parser.add_argument("--policies", default="streaming,snap,expected,zip,evaluator")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()

    rows = []
    print("| kept | policy | needles | questions | of the full score | KV bytes | first token |\n|---|---|---|---|---|---|---|")
    cases = [("100%", None)] + [(kept, policy) for kept in args.kept.split(",") for policy in args.policies.split(",")]
    for kept, policy in cases:
        row = {"kept": kept, "policy": policy, **answers(args, kept, policy), **cost(args, kept, policy)}
        rows.append(row)
        score = (row["needles"] + row["questions"]) / max(1, rows[0]["needles"] + rows[0]["questions"])
        print(f"| {kept} | {policy or ''} | {row['needles']} of {row['needles_asked']} | {row['questions']} of "
              f"{row['questions_asked']} | {score:.0%} | {row['bytes'] / 1e6:.2f} MB | {row['ttft_ms']:.0f} ms |", flush=True)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"model": args.model, "kv": args.kv, "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()
