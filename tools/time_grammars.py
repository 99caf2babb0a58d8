#!/usr/bin/env python3
"""Compiles schemas and computes masks with quire and with llguidance in turns, over one real vocabulary, and compares the times.

    python3 tools/time_grammars.py TOKENIZER_FOLDER SCHEMAS.jsonl [--quire build/release/quire]

Times are of the processor, not of the clock on the wall. Each line of SCHEMAS is {"schema": ..., "text": "an instance"}. Both get the instance's tokens one by one. Needs llguidance, tokenizers
and numpy.
"""
import argparse
import json
import pathlib
import subprocess
import time

import llguidance
import llguidance.numpy
import numpy
from tokenizers import Tokenizer


def quantiles(values):
    return " ".join(f"p{q} {numpy.percentile(values, q):10.1f}" for q in (50, 90, 99)) + f" mean {numpy.mean(values):10.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("schemas", type=pathlib.Path)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    theirs = llguidance.LLTokenizer(str(options.folder / "tokenizer.json"))
    quire = subprocess.Popen([options.quire, "grammar", "-m", str(options.folder), "--json-lines"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    bitmask = llguidance.numpy.allocate_token_bitmask(1, theirs.vocab_size)
    masks, compiles = {"quire": [], "llguidance": []}, {"quire": [], "llguidance": []}
    refused = {"quire": 0, "llguidance": 0}

    def ask_quire(schema, text):
        quire.stdin.write(json.dumps({"schema": schema, "texts": [text], "time": True}) + "\n")
        quire.stdin.flush()
        answer = json.loads(quire.stdout.readline())
        if "error" in answer:
            refused["quire"] += 1
            return
        compiles["quire"].append(answer["compile_us"])
        masks["quire"] += answer["mask_us"]

    def ask_theirs(schema, text):
        begin = time.thread_time()
        matcher = llguidance.LLMatcher(theirs, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)))
        compiles["llguidance"].append(1e6 * (time.thread_time() - begin))
        if matcher.is_error():
            refused["llguidance"] += 1
            compiles["llguidance"].pop()
            return
        for token in tokenizer.encode(text, add_special_tokens=False).ids:
            begin = time.thread_time()
            llguidance.numpy.fill_next_token_bitmask(matcher, bitmask, 0)
            masks["llguidance"].append(1e6 * (time.thread_time() - begin))
            if not matcher.consume_token(token):
                break

    lines = [json.loads(line) for line in options.schemas.read_text().splitlines()]
    ask_quire({"type": "null"}, "null")  # reads the vocabulary
    ask_theirs({"type": "null"}, "null")
    for values in (*masks.values(), *compiles.values()):
        values.clear()
    for number, line in enumerate(lines * options.rounds):
        order = (ask_quire, ask_theirs) if number % 2 == 0 else (ask_theirs, ask_quire)
        for ask in order:
            ask(line["schema"], line["text"])
    for name in masks:
        print(f"{name:11} masks ({len(masks[name])}), microseconds: {quantiles(masks[name])}")
    for name in compiles:
        print(f"{name:11} compilations ({len(compiles[name])}):       {quantiles(compiles[name])}; refused {refused[name]}")


if __name__ == "__main__":
    main()
