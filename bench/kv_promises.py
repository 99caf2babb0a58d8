"""What a pruned cache keeps of what it promises, on the house model: cases that did not choose the curve (auto), many questions to
one pruned document (documents), and a fact that is asked long after a budget was full (budget).

  python3 bench/kv_promises.py auto --model MODEL      # beside MODEL is its curve: quire kv-check --curve
  python3 bench/kv_promises.py documents
  python3 bench/kv_promises.py budget --cases 6
"""

import argparse
import contextlib
import json
import pathlib
import random
import re
import resource
import subprocess
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent.parent
DATA = HERE / "models" / "house" / "eval"
CHARACTERS = 3.6  # of a token of these texts, at least


def lines(name):
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def spread(n, count):
    return [i * n // count for i in range(count)]


def words(text):
    found = re.findall(r"[A-Za-z0-9']+", text.lower())
    return found[1:] if len(found) > 1 and found[0] in ("a", "an", "the") else found


def is_right(expected, answer):
    part, said = words(expected), re.findall(r"[A-Za-z0-9']+", answer.lower())
    return any(said[i : i + len(part)] == part for i in range(len(said)))


def text_with(facts, tokens, seed):
    """Facts, spread over other texts of so many tokens in all."""
    room = tokens * CHARACTERS - sum(len(fact) + 2 for fact in facts)
    filler = [line if isinstance(line, str) else line["text"] for line in lines("filler.jsonl")]
    random.Random(seed).shuffle(filler)
    parts = []
    for part in filler:
        if len(part) + 2 <= room:
            room -= len(part) + 2
            parts.append(part)
    for k, fact in enumerate(facts):
        parts.insert((k * len(parts) + seed % max(1, len(parts))) // len(facts), fact)
    return "\n\n".join(parts)


@contextlib.contextmanager
def server(args, *options):
    command = [args.quire, "serve", "-m", args.model, "--port", "0", "--threads", str(args.threads), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address = None
        told = []
        while address is None:
            line = process.stderr.readline() or process.stdout.readline()
            if not line:
                raise SystemExit("the server ended: " + "".join(told))
            told.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            address = found and f"http://127.0.0.1:{found.group(1)}"
        yield address
    finally:
        process.terminate()
        process.wait()


def ask(address, question, quire, path="/v1/chat/completions"):
    body = {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 24,
        "quire": {"report": True, **quire},
    }
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def said(reply):
    return reply["choices"][0]["message"]["content"] or ""


def auto(args):
    """Facts and questions that the curve was not made of."""
    curve_facts, curve_texts = set(spread(120, args.curve_cases)), None
    needles = lines("needles.jsonl")
    asked = [(r["text"], q) for r in lines("reading.jsonl") for q in r["questions"]]
    curve_texts = set(spread(len(asked), args.curve_cases))
    facts = [needles[i] for i in range(len(needles)) if i not in curve_facts]
    texts = [asked[i] for i in range(len(asked)) if i not in curve_texts]
    facts = [facts[i] for i in spread(len(facts), min(args.cases // 3, len(facts)))]
    texts = [texts[i] for i in spread(len(texts), args.cases - len(facts))]
    cases = [("fact", text_with([n["sentence"]], args.tokens, k) + "\n\n" + n["question"], n["answer"]) for k, n in enumerate(facts)]
    cases += [("text", text + "\n\n" + q["question"], q["answer"]) for text, q in texts]
    right, used = {}, {}
    for kind, options, quire in (
        ("f16", ["--kv", "f16"], {}),
        ("auto", ["--kv-keep", "auto", "--kv-target", args.target], {"kv_keep": "auto"}),
    ):
        with server(args, *options) as address:
            replies = [ask(address, prompt, quire) for _, prompt, _ in cases]
        right[kind] = [is_right(c[2], said(r)) for c, r in zip(cases, replies)]
        used[kind] = [r["quire"]["kv"] for r in replies]
    for what in ("fact", "text"):
        own = [i for i, case in enumerate(cases) if case[0] == what]
        known = [i for i in own if right["f16"][i]]
        kept = sum(right["auto"][i] for i in known)
        size = {kind: sum(used[kind][i]["bytes"] for i in own) for kind in used}
        ways = sorted({f"{u.get('policy', 'all is kept')} {u.get('kept', 1):.2f}" for u in (used["auto"][i] for i in own)})
        print(f"{what}s: {len(own)} asked, {len(known)} answered in f16, of those {kept} from what auto keeps "
              f"({100 * kept / max(1, len(known)):.1f} %), {100 * size['auto'] / size['f16']:.1f} % of the bytes; {ways[:6]}", flush=True)


def documents(args):
    needles = lines("needles.jsonl")
    texts = args.cases // 4
    stated = [[needles[i * 4 + k] for k in range(4)] for i in range(texts)]
    with server(args) as address:
        for keep, policy in (("100%", "zip"), ("50%", "zip"), ("30%", "zip"), ("50%", "evaluator"), ("30%", "evaluator")):
            right = found = size = prompt = 0
            for i, facts in enumerate(stated):
                document = text_with([fact["sentence"] for fact in facts], args.tokens, i)
                for k, fact in enumerate(facts):
                    reply = ask(address, fact["question"], {"kv_keep": keep, "kv_policy": policy, "kv_document": document})
                    right += is_right(fact["answer"], said(reply))
                    if k > 0:
                        found += reply["usage"]["prompt_tokens_details"]["cached_tokens"]
                        prompt += reply["usage"]["prompt_tokens"]
                    size += reply["quire"]["kv"]["bytes"]
            print(f"{policy} {keep}: {right} of {4 * texts}, {size / 4 / texts / 1e6:.2f} MB each; of the prompts after the first "
                  f"{100 * found / prompt:.0f} % of the tokens were there", flush=True)


def budget(args):
    needles = lines("needles.jsonl")
    chosen = [needles[i] for i in spread(len(needles), args.cases)]
    for times in (1.5, 3, 20):
        pinned = ["--kv-budget", str(args.rows), "--kv-pin", "48"]
        bound = ["--kv-budget", str(args.rows), "--kv-pin", "4", "--kv-policy"]
        # A context holds no text of twenty budgets whole.
        ways = {"all is kept": []} if times < 10 else {}
        for policy, options in {**ways, "pinned": pinned, "snap": [*bound, "snap"], "streaming": [*bound, "streaming"]}.items():
            if args.policies and policy not in args.policies.split(","):
                continue
            right = 0
            for i, fact in enumerate(chosen):
                tokens = int(times * args.rows)
                filler = ""
                for seed in range(100):
                    if len(filler) >= tokens * CHARACTERS:
                        break
                    filler += text_with([""], tokens - int(len(filler) / CHARACTERS), 1000 * i + seed) + "\n\n"
                prompt = fact["sentence"] + "\n\n" + filler + fact["question"]
                command = [args.quire, "run", "-m", args.model, "--json", "--temperature", "0", "-n", "24", "--threads", str(args.threads), *options, "-"]
                reply = json.loads(subprocess.run(command, input=prompt, capture_output=True, text=True, check=True).stdout)
                right += is_right(fact["answer"], reply["text"])
            print(f"a fact {times} budgets of {args.rows} rows ago, {policy}: {right} of {len(chosen)}", flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("what", choices=("auto", "documents", "budget"))
parser.add_argument("--quire", default=str(HERE / "build" / "release" / "quire"))
parser.add_argument("--model", default="house")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--tokens", type=int, default=1000, help="of a text that hides facts")
parser.add_argument("--cases", type=int, default=200)
parser.add_argument("--curve-cases", type=int, default=50, help="of each kind, that the curve was made of")
parser.add_argument("--target", default="98%")
parser.add_argument("--policies", help="of budget: only these")
parser.add_argument("--rows", type=int, default=256)
parsed = parser.parse_args()
{"auto": auto, "documents": documents, "budget": budget}[parsed.what](parsed)
print(f"CPU of all programs: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime:.0f} s (user)")
