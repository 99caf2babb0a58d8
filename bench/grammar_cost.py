#!/usr/bin/env python3
"""What keeping to a schema costs a token: processor time of `quire run` with and without one, in turns.

  python3 bench/grammar_cost.py --quire build/release/quire [-m MODEL] [--rounds 10] [--tokens 400]

Each round runs every schema and none at all, in another order, to the same number of tokens and once to one token; the difference is the
tokens' own. One thread, so that processor time is time. The model's words do not matter: the temperature is 1, the seed the round's.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile

SCHEMAS = {
    "none": None,
    "texts in a list": {"type": "array", "minItems": 500, "items": {"type": "string"}},
    "objects in a list": {"type": "array", "minItems": 500, "items": {
        "type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}, "good": {"type": "boolean"}},
        "required": ["name", "count", "good"], "additionalProperties": False}},
    "a pattern": {"type": "string", "pattern": "^([a-z]+ ){500}$"},
}


def seconds(command):
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True)
    after = os.times()
    assert done.returncode == 0, done.stderr
    return after.children_user - before.children_user + after.children_system - before.children_system, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", required=True)
    parser.add_argument("-m", "--model", default="house")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=400)
    given = parser.parse_args()
    costs = {name: [] for name in SCHEMAS}
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for number, (name, schema) in enumerate(SCHEMAS.items()):
            files[name] = os.path.join(folder, f"{number}.json")
            with open(files[name], "w") as file:
                json.dump(schema, file)
        for turn in range(given.rounds):
            for name in random.Random(turn).sample(list(SCHEMAS), len(SCHEMAS)):
                def cost(tokens):
                    command = [given.quire, "run", "-m", given.model, "--threads", "1", "--temperature", "1", "--seed", str(turn),
                               "--max-tokens", str(tokens), "--json"]
                    command += ["--ignore-eos"] if SCHEMAS[name] is None else ["--schema", files[name]]
                    spent, said = seconds([*command, "Tell me a story about a fox."])
                    return spent, json.loads(said)["completion_tokens"]
                (some, few), (all_, many) = cost(1), cost(given.tokens)
                if many - few >= given.tokens // 2:
                    costs[name].append((all_ - some) / (many - few) * 1e6)
    base = statistics.median(costs["none"])
    for name, found in costs.items():
        if not found:
            print(f"{name:20} no answer was long enough")
            continue
        found.sort()
        low, high = found[len(found) // 4], found[3 * len(found) // 4]
        print(f"{name:20} {statistics.median(found):8.1f} us a token ({low:.1f} to {high:.1f}), {statistics.median(found) / base - 1:+.1%}; {len(found)} rounds")


if __name__ == "__main__":
    main()
