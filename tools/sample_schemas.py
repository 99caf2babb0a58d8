#!/usr/bin/env python3
"""Has a model answer by many schemas at a temperature at which it says anything, and checks each finished answer with jsonschema.

    python3 tools/sample_schemas.py SCHEMAS [--count 1000] [--temperature 2] [--quire build/release/quire] [-m MODEL]

SCHEMAS is a folder of MaskBench's, {"schema": ...} in each file. An answer that ends by itself must be JSON and must be valid; one
that reaches its most tokens says nothing. Exit code 1 where one is not. Needs jsonschema.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import sys
import urllib.error
import urllib.request

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "clients"))
from served import KEY, Served  # noqa: E402


def ask(url, schema, seed, options):
    """(finish_reason, text), or ("refused", why)."""
    body = {"messages": [{"role": "user", "content": "Answer in JSON."}], "temperature": options.temperature, "seed": seed,
            "max_tokens": options.tokens, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": "Bearer " + KEY})
    try:
        with urllib.request.urlopen(request) as reply:
            choice = json.load(reply)["choices"][0]
    except urllib.error.HTTPError as error:
        return "refused", json.load(error)["error"]["message"]
    return choice["finish_reason"], choice["message"]["content"]


def problem(schema, text):
    """Why a text is not an instance; nothing if it is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    try:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    except jsonschema.ValidationError as error:
        return error.message
    except Exception as error:  # a schema that the validator cannot follow
        return None if isinstance(error, (jsonschema.SchemaError, RecursionError)) else f"the validator failed: {error!r}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemas", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--temperature", type=float, default=2)
    parser.add_argument("--tokens", type=int, default=300, help="of an answer, at the most")
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("-m", "--model", default="house")
    options = parser.parse_args()
    files = sorted(options.schemas.glob("*.json"))
    files = files[::max(1, len(files) // options.count)][:options.count]
    schemas = [json.loads(file.read_text())["schema"] for file in files]
    server = Served(options.quire, "-m", options.model)
    counts, wrong = collections.Counter(), 0
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda case: ask(server.url, case[1], case[0], options), enumerate(schemas))
            for file, schema, (finish, text) in zip(files, schemas, answers):
                counts[finish] += 1
                why = problem(schema, text) if finish == "stop" else None
                if why:
                    wrong += 1
                    print(f"WRONG {file.name}: {why}\n  {text[:300]!r}", flush=True)
    finally:
        server.close()
    print(f"{len(schemas)} schemas: " + ", ".join(f"{count} {finish}" for finish, count in counts.most_common()) + f"; {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
