#!/usr/bin/env python3
"""wheel_test.py --library LIBRARY --quire PROGRAM: makes the wheel, installs it into a clean environment, and asks it.

What Python says is compared with what the program says; what stays behind after many loads is measured.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# In the environment, where nothing is but the wheel.
INSIDE = r'''
import json, os, sys, threading
import quire

model, loads = sys.argv[1], int(sys.argv[2])
assert "site-packages" in quire.__file__, quire.__file__
assert os.path.exists(os.path.join(os.path.dirname(quire.__file__), "py.typed"))
greedy = quire.SamplingParams(temperature=0, max_tokens=16)
with quire.LLM("house", ctx=512, threads=2, kv="f16") as llm:
    # Twenty lines stream an answer.
    pieces = [piece.text for piece in llm.stream("What is a KV cache?", greedy)]
    whole = llm.chat("What is a KV cache?", greedy, explain=True)
    assert len(pieces) > 3 and "".join(pieces) == whole.text and whole.finish_reason == "length", (pieces, whole)
    assert whole.explain.raw["cache"]["cached_tokens"] > 0
    assert "<table>" in whole.explain._repr_html_() and "first token" in str(llm.explain("Hello", greedy))
    assert "<table>" in llm.stats._repr_html_()

    # Who stops listening cancels.
    stream = llm.stream("Tell me a story.", quire.SamplingParams(temperature=0, max_tokens=400, ignore_eos=True))
    next(stream); stream.close()
    assert llm.stats.raw["running"] == 0 and llm.stats.raw["kv"]["held_pages"] == 0

    texts = llm.generate(["One", "Two", "Three"], greedy)
    assert [t.text for t in texts] == [llm.generate(p, greedy).text for p in ("One", "Two", "Three")]
    said = llm.generate("Is it so? ", quire.SamplingParams(choice=["yes", "no"], temperature=0)).text
    assert said in ("yes", "no"), said
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    assert "ok" in json.loads(llm.generate("JSON: ", quire.SamplingParams(json_schema=schema, temperature=0, max_tokens=200)).text)

    ids = llm.tokenize("Pages of keys: \u00fc")
    assert llm.detokenize(llm.tokenize("Pages: \u00fc", add_special=False)) == "Pages: \u00fc"
    told = llm.generate(ids, quire.SamplingParams(max_tokens=1, temperature=0, logprobs=3))
    logits = llm.logits(ids)
    assert len(told.tokens[0].top) >= 3
    assert max(range(len(logits)), key=lambda i: logits[i]) == told.tokens[0].id

    near, far, same = llm.embed(["pages of keys", "a cat", "pages of keys"]).tolist()
    closeness = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert near == same == llm.embed("pages of keys").tolist() and abs(closeness(near, near) - 1) < 1e-4
    assert closeness(near, far) < 0.9999 and len(llm.embed("a cat", dimensions=4)) == 4

    for wrong in (lambda: llm.generate("a", quire.SamplingParams(temperature=-1)), lambda: llm.generate([]),
                  lambda: quire.LLM("house", colour="red"), lambda: llm.chat([{"role": "king", "content": "x"}])):
        try:
            wrong()
        except quire.InvalidError as error:
            assert str(error)
        else:
            raise AssertionError("nonsense was taken")
    try:
        quire.LLM("/no/such.gguf")
    except quire.QuireError as error:
        assert "/no/such.gguf" in str(error)
    greeting = llm.chat("Hello", greedy).text
try:
    llm.generate("a")
except quire.InvalidError:
    pass

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def load():
    with quire.LLM(model, ctx=64, max_seqs=2, threads=1) as tiny:
        tiny.generate([1, 2, 3], quire.SamplingParams(max_tokens=2, temperature=0))

for _ in range(max(10, loads // 5)):
    load()
before = resident()
for _ in range(loads):
    load()
grown = resident() - before
print(json.dumps({"greeting": greeting, "loads": loads, "grown_bytes": grown, "resident_bytes": resident(), "threads": threading.active_count()}))
assert grown < 8 << 20, f"{loads} loads left {grown} bytes behind"
'''


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True, type=pathlib.Path)
    parser.add_argument("--quire", required=True)
    parser.add_argument("--loads", default="60", help="how often a small model is opened and closed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        made = subprocess.run(
            [sys.executable, ROOT / "tools" / "make_wheel.py", "--library", arguments.library, "--folder", place],
            check=True, capture_output=True, text=True)
        print(made.stdout.strip())
        wheel = next(place.glob("*.whl"))
        try:
            venv.create(place / "env", with_pip=True)
        except subprocess.CalledProcessError:
            print("python3-venv is missing")
            return 77
        python = place / "env" / "bin" / "python3"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel], check=True)
        (place / "inside.py").write_text(INSIDE)
        asked = subprocess.run([python, place / "inside.py", "house-draft", arguments.loads],
                               cwd=place, capture_output=True, text=True)
        print(asked.stdout.strip(), asked.stderr.strip()[-2000:])
        if asked.returncode != 0 or asked.stderr.strip():  # the library is silent
            return 1
        told = json.loads(asked.stdout.splitlines()[-1])
        program = subprocess.run(
            [arguments.quire, "run", "--temperature", "0", "-n", "16", "--ctx", "512", "--kv", "f16", "--json", "Hello"],
            check=True, capture_output=True, text=True)
        said = json.loads(program.stdout)["text"]
        if said != told["greeting"]:
            print(f"the program says {said!r}, Python {told['greeting']!r}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
