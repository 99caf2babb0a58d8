#!/usr/bin/env python3
"""Compares `quire tokenize` with the Hugging Face library on real tokenizers, and with llama.cpp on GGUF files.

Usage: check_tokenizers.py [--quire PATH] [--count N] [--seed N] MODEL...

A MODEL is a folder with tokenizer.json, or a .gguf file. Needs the `tokenizers` package, for GGUF files
`llama_cpp`. Exits with 1 if anything differs.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

from tokenizer_strings import strings


def quire(program, model, options, inputs):
    lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in inputs)
    result = subprocess.run([program, "tokenize", "-m", model, "--json-lines", *options], input=lines.encode(),
                            capture_output=True)
    if result.returncode != 0:
        sys.exit(f"{model}: {result.stderr.decode().strip()}")
    return [parse(line) for line in result.stdout.decode().split("\n")[:-1]]


def parse(line):
    """One line of output: a JSON value, or ids separated by spaces."""
    try:
        value = json.loads(line)
        return [value] if isinstance(value, int) else value
    except json.JSONDecodeError:
        return [int(word) for word in line.split()]


class Check:
    def __init__(self):
        self.compared = self.different = 0

    def compare(self, what, inputs, ours, theirs):
        if len(ours) != len(inputs):
            sys.exit(f"{what}: {len(inputs)} lines in, {len(ours)} out")
        wrong = [i for i in range(len(inputs)) if ours[i] != theirs[i]]
        self.compared += len(inputs)
        self.different += len(wrong)
        print(f"{what}: {len(inputs)} compared, {len(wrong)} differ", flush=True)
        for i in wrong[:3]:
            print(f"  input  {inputs[i]!r}\n  ours   {ours[i]!r}\n  theirs {theirs[i]!r}")


def flags(add, parse_special):
    return ([] if add else ["--no-special"]) + (["--special"] if parse_special else [])


def check_folder(check, program, folder, count, seed):
    from tokenizers import Tokenizer
    library = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    added = [token.content for token in library.get_added_tokens_decoder().values()]
    texts = strings(seed, count, added[:80])
    encoded = []
    for add in (True, False):
        for parse_special in (True, False):
            library.encode_special_tokens = not parse_special
            encoded = [library.encode(text, add_special_tokens=add).ids for text in texts]
            ours = quire(program, folder, flags(add, parse_special), texts)
            check.compare(f"{folder} encode add={add} parse={parse_special}", texts, ours, encoded)
    rng = random.Random(seed)
    size = library.get_vocab_size()
    ids = encoded + [[rng.randrange(size) for _ in range(rng.randrange(1, 12))] for _ in range(count // 2)]
    ids = [item for item in ids if item]
    for keep in (False, True):
        theirs = [library.decode(item, skip_special_tokens=not keep) for item in ids]
        ours = quire(program, folder, ["--decode"] + (["--special"] if keep else []), ids)
        check.compare(f"{folder} decode keep={keep}", ids, ours, theirs)


def check_gguf(check, program, path, count, seed):
    import llama_cpp
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    texts = [text for text in strings(seed, count, ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]) if "\0" not in text]
    for add in (True, False):
        for parse_special in (True, False):
            theirs = [model.tokenize(text.encode(), add_bos=add, special=parse_special) for text in texts]
            ours = quire(program, path, flags(add, parse_special), texts)
            check.compare(f"{path} encode add={add} parse={parse_special}", texts, ours, theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default="build/release/quire")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    check = Check()
    for model in options.models:
        run = check_gguf if model.endswith(".gguf") else check_folder
        run(check, options.quire, model, options.count, options.seed)
    print(f"{check.compared} compared, {check.different} differ")
    sys.exit(1 if check.different else 0)


if __name__ == "__main__":
    main()
