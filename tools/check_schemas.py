#!/usr/bin/env python3
"""Runs the JSON-Schema-Test-Suite through quire's grammar engine, by category.

    python3 tools/check_schemas.py FOLDER [--command 'build/release/quire grammar --json-lines']

FOLDER holds the suite's files (a draft, such as JSON-Schema-Test-Suite/tests/draft2020-12). A schema is compiled, or refused with a
sentence. Of one that is compiled each instance, written as JSON, is allowed or not. A valid instance that is not allowed costs a
model a way to say something; an invalid one that is allowed is wrong, and the exit code is 1.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys


def cases(folder: pathlib.Path):
    draft = next((d for d in ("draft7", "draft6", "draft4") if d in str(folder)), None)
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            if draft and isinstance(schema, dict):
                schema.setdefault("$schema", f"http://json-schema.org/draft-0{draft[-1]}/schema#")
            yield str(path.relative_to(folder)), group["description"], schema, group["tests"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--command", default="build/release/quire grammar --json-lines")
    parser.add_argument("--show", action="store_true", help="name each instance that is not allowed, and each refusal")
    options = parser.parse_args()
    groups = list(cases(options.folder))
    lines = [json.dumps({"schema": schema, "texts": [json.dumps(test["data"], ensure_ascii=False) for test in tests]})
             for _, _, schema, tests in groups]
    done = subprocess.run(options.command, shell=True, input="\n".join(lines) + "\n", capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(groups):
        print(done.stderr, f"{len(answers)} answers to {len(groups)} schemas", file=sys.stderr)
        return 1
    counts = collections.defaultdict(collections.Counter)
    for (path, about, _, tests), answer in zip(groups, answers):
        count = counts[path]
        if "error" in answer:
            count["refused schemas"] += 1
            count["refused"] += len(tests)
            if options.show:
                print(f"refused: {path}: {about}: {answer['error']}")
            continue
        passed = True
        for test, accepted in zip(tests, answer["accepted"]):
            if accepted == test["valid"]:
                count["right"] += 1
                continue
            passed = False
            count["wrongly accepted" if accepted else "not allowed"] += 1
            if options.show or accepted:
                kind = "WRONGLY ACCEPTED" if accepted else "not allowed"
                print(f"{kind}: {path}: {about}: {test['description']}: {json.dumps(test['data'])[:80]}")
        count["whole schemas" if passed else "schemas in part"] += 1
    total = collections.Counter()
    print(f"{'file':48} {'right':>6} {'refused':>8} {'not allowed':>12} {'wrongly accepted':>17}")
    for path, count in counts.items():
        total.update(count)
        print(f"{path:48} {count['right']:6} {count['refused']:8} {count['not allowed']:12} {count['wrongly accepted']:17}")
    print(f"{'all':48} {total['right']:6} {total['refused']:8} {total['not allowed']:12} {total['wrongly accepted']:17}")
    print(f"schemas: {total['whole schemas']} whole, {total['schemas in part']} in part, {total['refused schemas']} refused")
    return 1 if total["wrongly accepted"] else 0


if __name__ == "__main__":
    sys.exit(main())
