#!/usr/bin/env python3
"""Compiles schemas and computes masks with quire and with llguidance in turns, over one real vocabulary, and compares answers and times.

    python3 tools/time_grammars.py TOKENIZER_FOLDER SCHEMAS [--every N] [--only NAME] [--show] [--quire build/release/quire]

SCHEMAS is a folder of MaskBench's ({"schema": ..., "tests": [{"valid": true, "data": ...}, ...]} in each file) or a file of lines
{"schema": ..., "text": "an instance"}. Both are given the tokens of the instances one by one. What they say of an instance is
counted as right, not allowed (a valid one), wrong (an invalid one was allowed) or refused (the schema). Times are of the processor,
not of the clock on the wall, of the schemas that both take; a time of masks is of valid instances. Needs llguidance, tokenizers and
numpy.
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

OUTCOMES = ("right", "not allowed", "wrong", "refused")


def quantiles(values):
    if not values:
        return "none"
    return " ".join(f"p{q} {numpy.percentile(values, q):9.1f}" for q in (50, 90, 99)) + f"  mean {numpy.mean(values):9.1f}"


class Quire:
    name = "quire"

    def __init__(self, program, folder):
        self.process = subprocess.Popen([program, "grammar", "-m", str(folder), "--json-lines"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, schema, texts):
        """(microseconds to compile, of each mask, whether each text is accepted), or the reason for a refusal."""
        self.process.stdin.write(json.dumps({"schema": schema, "texts": texts or ["null"], "time": True}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            return answer["error"]
        return answer["compile_us"], answer["mask_us"] if texts else [], answer["accepted"][:len(texts)]


class Llguidance:
    name = "llguidance"

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokens = llguidance.LLTokenizer(str(folder / "tokenizer.json"))
        self.mask = llguidance.numpy.allocate_token_bitmask(1, self.tokens.vocab_size)

    def ask(self, schema, texts):
        begin = time.thread_time()
        matcher = llguidance.LLMatcher(self.tokens, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)))
        took = 1e6 * (time.thread_time() - begin)
        if matcher.is_error():
            return matcher.get_error()
        masks, accepted = [], []
        for number, text in enumerate(texts):
            matcher.reset()
            goes = True
            for token in self.tokenizer.encode(text, add_special_tokens=False).ids:
                if number == 0:
                    begin = time.thread_time()
                    llguidance.numpy.fill_next_token_bitmask(matcher, self.mask, 0)
                    masks.append(1e6 * (time.thread_time() - begin))
                goes = matcher.consume_token(token)
                if not goes:
                    break
            accepted.append(bool(goes and matcher.is_accepting()))
        return took, masks, accepted


def read_cases(path, every, only):
    """(name, schema, texts, which are valid); a valid one comes first."""
    if path.is_file():
        for number, line in enumerate(path.read_text().splitlines()):
            case = json.loads(line)
            yield f"line {number + 1}", case["schema"], [case["text"]], [True]
        return
    for file in sorted(path.glob("*.json"))[::every]:
        if only and only not in file.name:
            continue
        case = json.loads(file.read_text())
        tests = sorted(case.get("tests", []), key=lambda test: not test["valid"])
        # As the peer writes it where white space is left to a model.
        yield file.name, case["schema"], [json.dumps(t["data"], ensure_ascii=False) for t in tests], [t["valid"] for t in tests]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("schemas", type=pathlib.Path)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--every", type=int, default=1, help="of a folder: each so many-th file")
    parser.add_argument("--only", help="of a folder: files whose name has this in it")
    parser.add_argument("--show", action="store_true", help="prints each schema that is not right, and each that is slow")
    options = parser.parse_args()
    engines = [Quire(options.quire, options.folder), Llguidance(options.folder)]
    for engine in engines:
        engine.ask({"type": "null"}, ["null"])  # reads the vocabulary
    masks = {engine.name: [] for engine in engines}
    compiles = {engine.name: [] for engine in engines}
    outcomes = {engine.name: dict.fromkeys(OUTCOMES, 0) for engine in engines}
    for number, (name, schema, texts, valid) in enumerate(read_cases(options.schemas, options.every, options.only)):
        answers = {}
        for engine in engines if number % 2 == 0 else engines[::-1]:
            answers[engine.name] = engine.ask(schema, texts)
        for engine, answer in answers.items():
            if isinstance(answer, str):
                outcome = "refused"
            elif any(goes and not fits for goes, fits in zip(answer[2], valid)):
                outcome = "wrong"
            else:
                outcome = "right" if answer[2] == valid else "not allowed"
            outcomes[engine][outcome] += 1
            if options.show and outcome != "right":
                print(f"{engine:11} {name}: {outcome}{': ' + answer if isinstance(answer, str) else ''}", flush=True)
        if any(isinstance(answer, str) for answer in answers.values()):
            continue
        for engine, (compiled, times, _) in answers.items():
            compiles[engine].append(compiled)
            if valid and valid[0]:
                masks[engine] += times
            if options.show and (compiled > 2e4 or max(times, default=0) > 3e3):
                print(f"{engine:11} {name}: compiled {compiled:.0f}, slowest mask {max(times, default=0):.0f}", flush=True)
    for engine in outcomes:
        print(f"{engine:11} schemas: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes[engine].items()))
    for engine in compiles:
        print(f"{engine:11} compilations ({len(compiles[engine])}), microseconds: {quantiles(compiles[engine])}")
    for engine in masks:
        print(f"{engine:11} masks ({len(masks[engine])}), microseconds: {quantiles(masks[engine])}")


if __name__ == "__main__":
    main()
