#!/usr/bin/env python3
"""What each way to prune a prompt's KV cache keeps of the answers, and what it frees and costs.

    kv_policies.py [--model FILE] [--data FOLDER] [--cases N] [--fact-tokens 1024,3900] [--kept 70%,50%,30%,20%] [--policies zip,...]

Answers: of the facts in long prompts and the questions about short texts that the whole cache answers, those that less of it does;
pruned with the question at the prompt's end (seen), and before it (not seen). FOLDER: questions that chose nothing, made by
tools/house/make_eval.py with another seed. Bytes, time and memory: one prompt of --prompt-tokens, greedy, the KV cache at its end, the
time to its first token and the most memory of the process. Prints Markdown tables."""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

WORDS = "the clerk counted forty lamps and wrote their names into a long green book before the rain began again "


def quire(program, args, text=None):
    """What it prints as JSON, and its greatest memory in bytes."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((text or "").encode())
        given.seek(0)
        child = subprocess.Popen([program, *args], stdin=given, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        out.seek(0)
        err.seek(0)
        if status != 0:
            raise SystemExit(f"{' '.join(args)}: {err.read().decode().strip()[-400:]}")
        return json.loads(out.read()), usage.ru_maxrss * 1024


def curve(args, tokens):
    data = ["--data", args.data] if args.data else []
    found, _ = quire(args.quire, ["kv-check", "--curve", "--dry", "--json", "-m", args.model, "--formats", args.kv, *data,
                                  "--policies", args.policies, "--shares", args.kept, "--cases", str(args.cases),
                                  "--fact-tokens", str(tokens)])
    return found


def cost(args, kept, policy):
    """Bytes of the cache, milliseconds to the first token (the median of some rounds), and the most memory."""
    flags = [] if policy is None else ["--kv-keep", kept, "--kv-policy", policy]
    text = (WORDS * args.prompt_tokens)[: args.prompt_tokens * 4]
    found = [quire(args.quire, ["run", "-m", args.model, "--kv", args.kv, "--raw", "--temperature", "0", "-n", "4",
                                "--ignore-eos", "--json", *flags, "-"], text) for _ in range(args.rounds)]
    return {"prompt": found[0][0]["prompt_tokens"], "bytes": found[0][0]["kv"]["bytes"],
            "ttft_ms": statistics.median(f["timings"]["ttft_ms"] for f, _ in found), "memory": max(m for _, m in found)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--model", default="house")
    parser.add_argument("--data", help="the folder with the questions (default: those of the house)")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--cases", type=int, default=60, help="questions of each kind")
    parser.add_argument("--fact-tokens", default="1024")
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", default="70%,50%,30%,20%")
    parser.add_argument("--policies", default="streaming,snap,expected,zip,evaluator,evaluator-prompt")
    parser.add_argument("--no-cost", action="store_true", help="answers only")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()

    figures = {"model": args.model, "kv": args.kv, "curves": []}
    for tokens in args.fact_tokens.split(","):
        found = curve(args, int(tokens))
        figures["curves"].append(found)
        answered = found["answered"]
        print(f"\nFacts in prompts of {found['tokens']} tokens: {answered['facts']} of {found['asked']['facts']} are known from the whole cache; "
              f"questions about short texts: {answered['texts']} of {found['asked']['texts']}.\n\n"
              "| kept | policy | facts, question seen | not seen | texts, question seen | not seen |\n|---|---|---|---|---|---|")
        points = {(round(p["share"], 4), p["policy"], p["question"]): p["kept"] for p in found["points"]}
        for kept in args.kept.split(","):
            share = round(float(kept.rstrip("%")) / 100, 4)
            for policy in args.policies.split(","):
                cells = [points[share, policy, question][kind] / max(1, answered[kind])
                         for kind in ("facts", "texts") for question in ("seen", "not seen")]
                print(f"| {kept} | `{policy}` | " + " | ".join(f"{cell:.0%}" for cell in cells) + " |", flush=True)
    if not args.no_cost:
        figures["cost"] = []
        print("\n| kept | policy | KV bytes | first token | most memory |\n|---|---|---|---|---|")
        for kept, policy in [("100%", None)] + [(k, p) for k in args.kept.split(",") for p in args.policies.split(",")]:
            row = {"kept": kept, "policy": policy, **cost(args, kept, policy)}
            figures["cost"].append(row)
            print(f"| {kept} | {f'`{policy}`' if policy else ''} | {row['bytes'] / 1e6:.2f} MB | {row['ttft_ms']:.0f} ms | "
                  f"{row['memory'] / 1e6:.0f} MB |", flush=True)
        first = figures["curves"][0]
        hidden = {(p["share"], p["policy"]): p["kept"] for p in first["points"] if p["question"] == "not seen" or p["policy"] is None}
        for row in figures["cost"]:  # as kv_plot.py draws it
            kept = hidden[round(float(row["kept"].rstrip("%")) / 100, 4), row["policy"]]
            row.update(needles=kept["facts"], questions=kept["texts"], needles_asked=first["asked"]["facts"],
                       questions_asked=first["asked"]["texts"])
        figures["rows"] = figures["cost"]
    if args.json:
        with open(args.json, "w") as out:
            json.dump(figures, out, indent=1)


if __name__ == "__main__":
    main()
